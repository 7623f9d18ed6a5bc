"""What runs now, as the user chooses it: nothing, this host's GPUs, a stored state, or a plan that runs."""

from __future__ import annotations

import socket
from pathlib import PurePath
from typing import Any

import streamlit as st

from app.plans.deploy import state_editor
from app.session.workspace import read
from app.shell import address, frame
from torchsplit_core.hardware import NvmlFault, open_nvml
from torchsplit_core.hardware.host_state.from_driver import state_of_driver
from torchsplit_core.hardware.host_state.from_texts import HostText, decode_text, state_of_texts
from torchsplit_core.pictures.numbers import counted, escape_markdown
from torchsplit_core.planning.request.fleet_text import parse_fleet
from torchsplit_core.transition import read_state
from torchsplit_core.values import HostState, InputFault, PlanOutcome, PlanRequest, StateGpu, quoted
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.untrusted_files import read_contract

KEY = "runs-now"
"""The key of the choice, which stands in the address too: `NOTHING`, `HOST`, or a result as KIND:NAME."""
NOTHING, HOST = "nothing", "host"
KIND_WORDS = {"host_state": "State", "plan": "Plan that runs"}
HOST_S = 300.0
"""Seconds after which this host is read again."""
FRESH_NAME = "state"


def render(
    workspace: Workspace, scenario: str, plan: PlanOutcome, request: PlanRequest | None
) -> HostState | None:
    """The choice, the editor and the form that adds a state; the chosen state, None where none is chosen or it cannot
    be read."""
    stored = workspace.artifacts()
    options = [NOTHING, *([HOST] if has_gpus() else [])]
    for kind in KIND_WORDS:
        options += [f"{kind}:{name}" for name in named_results.names_in(stored, kind)]
    chosen: str | None = st.session_state.get(KEY)
    if chosen is not None and chosen not in options:
        options.append(chosen)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.selectbox(
            "What runs now", options, index=None, key=KEY, format_func=_words,
            placeholder="Choose what runs on these GPUs now",
        )  # fmt: skip
        if chosen == HOST and st.button("Read again", help="Ask this host's driver once more."):
            _host.clear()
            st.rerun()
        label = "Set by hand" if chosen in (None, NOTHING) else "Edit by hand"
        if st.button(
            label, key="state-by-hand", disabled=state_editor.is_open(workspace, scenario),
            help="GPUs, their slices and who runs there, on a map. What you save becomes a state of the workspace.",
        ):  # fmt: skip
            with frame.fault_boundary():
                started = _read(workspace, chosen or NOTHING, plan)
                kind, _, edited = (chosen or NOTHING).partition(":")
                state_editor.open_draft(workspace, scenario, started, edited if kind == "host_state" else "")
                st.rerun()
    state_editor.render(workspace, scenario, plan, request)
    with st.expander("Add a state: a file of capture, or texts of nvidia-smi and mig-parted"):
        _add(workspace)
    if chosen is None:
        return None
    with frame.fault_boundary():
        return _read(workspace, chosen, plan)
    return None


def _words(option: str) -> str:
    if option == NOTHING:
        return "Nothing: the GPUs are empty"
    if option == HOST:
        return "This host, by its driver"
    kind, _, name = option.partition(":")
    return f"{KIND_WORDS.get(kind, kind)}: {name}"


def _read(workspace: Workspace, chosen: str, plan: PlanOutcome) -> HostState:
    if chosen == NOTHING:
        return HostState(tuple(StateGpu(gpu.id, gpu.type) for gpu in plan.gpus))
    if chosen == HOST:
        state, notes = _host()
        for text in notes:
            st.caption(escape_markdown(text))
        return state
    kind, _, name = chosen.partition(":")
    value = read(workspace, kind, name) if kind in KIND_WORDS else None
    if value is None:
        problem = f"names {quoted(chosen)}, which this workspace does not have"
        raise InputFault("What runs now", problem, "Choose another, or add it below.")
    return read_state(value, name)


@st.cache_resource(ttl=HOST_S, show_spinner=False)
def has_gpus() -> bool:
    """Whether this server's host has GPUs by its driver."""
    try:
        with open_nvml() as nvml:
            return nvml.gpu_count() > 0
    except (NvmlFault, InputFault):
        return False


@st.cache_resource(ttl=HOST_S, show_spinner="Reading this host …")
def _host() -> tuple[HostState, tuple[str, ...]]:
    try:
        with open_nvml() as nvml:
            return state_of_driver(nvml, socket.gethostname(), skip_unknown=True)
    except NvmlFault as fault:
        problem = f"has no driver to ask: {fault.words}"
        raise InputFault("this host", problem, "Choose another state, or add one below.") from fault


def _add(workspace: Workspace) -> None:
    """The form; what it stores is chosen at once, what it refuses stays in its fields."""
    with st.form("add-state", border=False):
        file = st.file_uploader(
            "State (JSON), as torchsplit capture writes it, or a plan that runs", type=["json"], key="state-file",
            max_upload_size=192,
        )  # fmt: skip
        st.caption("Or texts of one host, taken one right after the other:")
        texts = {
            label: place.file_uploader(label, key=f"state-text {label}", max_upload_size=1)
            for place, label in zip(
                st.columns(3), ("nvidia-smi -L", "nvidia-smi mig -lgi", "nvidia-mig-parted export"), strict=True
            )
        }  # fmt: skip
        left, right = st.columns(2)
        host = left.text_input("Host, for the GPUs' ids", key="state-host", placeholder="node3")
        types = right.text_input(
            "GPU types in order, where no nvidia-smi -L names them", key="state-types", placeholder="8xA100-80GB"
        )  # fmt: skip
        skip = st.checkbox("Leave out cards that are not in the catalogue", key="state-skip")
        pressed = st.form_submit_button("Add and choose")
    if not pressed:
        return
    with frame.fault_boundary():
        given = {label: text for label, text in texts.items() if text is not None}
        if file is not None and given:
            raise InputFault("State", "comes with texts, which would be another state", "Remove one of them.")
        if file is not None:
            state, wanted = _state_file(file), PurePath(file.name).name.partition(".")[0]
        else:
            state, wanted = _state_of(given, host.strip(), types, skip), host.strip()
        name = named_results.free_name(workspace, ("host_state",), wanted[:100] or FRESH_NAME)
        workspace.put("host_state", name, state)
        frame.notify(f"The state {name} of {counted(len(state.gpus), 'GPU')} is in the workspace.")
        # The field stands already: the address sets it in the next run.
        st.query_params[address.FROM] = f"host_state:{name}"
        st.rerun()


def _state_file(file: Any) -> HostState:
    _, value = read_contract(file.getvalue(), file.name)
    if not isinstance(value, HostState | PlanOutcome):
        raise InputFault(
            file.name, "is neither a host state nor a plan", "Choose what torchsplit capture or plan wrote."
        )
    return read_state(value, file.name)


def _state_of(given: dict[str, Any], host: str, types: str, skip: bool) -> HostState:
    if not given:
        raise InputFault("Add a state", "has no file", "Choose a state, or texts of nvidia-smi.")
    smi, lgi, mig_parted = (
        _text(given.get(label))
        for label in ("nvidia-smi -L", "nvidia-smi mig -lgi", "nvidia-mig-parted export")
    )
    named = (
        [entry.type for entry in parse_fleet(types, "GPU types") for _ in range(entry.count)]
        if types.strip()
        else None
    )
    return state_of_texts(smi, lgi, mig_parted, types=named, host=host or None, skip_unknown=skip)


def _text(file: Any) -> HostText | None:
    return None if file is None else decode_text(file.getvalue(), file.name)

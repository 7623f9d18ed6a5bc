"""The switch that plans from what runs now, and how many of its GPUs may change."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from app.plans.inputs.draft_editor import DraftEditor, check
from app.session import draft as drafts
from app.session.workspace import names, read
from app.shell import address
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.sweep.points import spread_values
from torchsplit_core.transition import fleet_state, names_by_plan, read_state
from torchsplit_core.values import HostState, InputFault, PlanOutcome, PlanRequest

REQUEST = "request"
"""The choice of the state that the stored request has."""
KIND_WORDS = {"host_state": "State", "plan": "Plan that runs"}
MOST_STOPS = 17
"""Places of the slider."""


def render(editor: DraftEditor, planned: PlanOutcome | None) -> None:
    """The switch, the state and the limit; nothing where no state is known. `planned`: the scenario's stored plan."""
    options = _options(editor, planned)
    if not options:
        return
    key = f"running-now {editor.workspace.id} {editor.name}"
    at_state, at_switch, at_limit = f"{key} state", f"{key} on", f"{key} limit"
    if st.session_state.get(at_state) not in options:
        linked = st.query_params.get(address.FROM)
        st.session_state[at_state] = linked if linked in options else options[0]
    is_on = editor.current.current is not None
    st.session_state[at_switch] = is_on

    def switch() -> None:
        _apply(editor, planned, st.session_state[at_state] if st.session_state[at_switch] else None)

    def choose() -> None:
        if is_on:
            _apply(editor, planned, st.session_state[at_state])

    with st.container(border=True, key="inputs-now"):
        st.header("What runs now", anchor=False)
        st.toggle(
            "Start from what runs now", key=at_switch, on_change=switch,
            help="The plan keeps what runs where it is as good; the slider limits how many GPUs may change.",
        )  # fmt: skip
        st.selectbox("What runs", options, key=at_state, format_func=_words, on_change=choose)
        if is_on:
            total = sum(entry.count for entry in editor.current.gpus)
            limit = editor.current.objective.max_touched_gpus
            stops = {
                int(value) for value in spread_values("touched_gpus", 0, total, min(total + 1, MOST_STOPS))
            }
            now = total if limit is None else min(limit, total)
            st.session_state[at_limit] = now
            st.select_slider(
                "GPUs that may change, at most", sorted({*stops, now, total}), key=at_limit,
                format_func=lambda count: "any" if count == total else str(count),
                on_change=lambda: _limit(editor, st.session_state[at_limit], total),
            )  # fmt: skip


def _options(editor: DraftEditor, planned: PlanOutcome | None) -> list[str]:
    """The states to begin with; empty where neither the request nor the workspace nor the address has one."""
    options = [REQUEST] if editor.stored.current is not None else []
    options += [f"host_state:{name}" for name in names(editor.workspace, "host_state")]
    linked = st.query_params.get(address.FROM, "")
    if (
        linked.startswith("plan:")
        and read(editor.workspace, "plan", linked.removeprefix("plan:")) is not None
    ):
        options.append(linked)
    if options and planned is not None and planned.gpus:
        options.append(f"plan:{editor.name}")
    return list(dict.fromkeys(options))


def _words(option: str) -> str:
    if option == REQUEST:
        return "As the scenario has it"
    kind, _, name = option.partition(":")
    return f"{KIND_WORDS[kind]}: {name}"


def _apply(editor: DraftEditor, planned: PlanOutcome | None, chosen: str | None) -> None:
    """Make the request with this state the draft; None: without one, so without a limit."""
    request = _newest(editor)
    fault = ""
    try:
        if chosen is None:
            edited = replace(
                request, current=None, objective=replace(request.objective, max_touched_gpus=None)
            )
        else:
            edited = replace(request, current=_state(editor, request, planned, chosen))
            check(edited, "what runs now", request.models[:1])
        editor.write(edited)
    except InputFault as reason:
        fault = str(reason)
    drafts.set_fault(editor.workspace, editor.name, editor.stored, fault)


def _limit(editor: DraftEditor, most: int, total: int) -> None:
    request, limit = _newest(editor), None if most == total else most
    editor.write(replace(request, objective=replace(request.objective, max_touched_gpus=limit)))


def _newest(editor: DraftEditor) -> PlanRequest:
    """The draft's request: another edit may have come since the fields were drawn."""
    draft = drafts.load_draft(editor.workspace, editor.name, editor.stored)
    return draft.request if draft else editor.stored


def _state(
    editor: DraftEditor, request: PlanRequest, planned: PlanOutcome | None, chosen: str
) -> HostState | None:
    if chosen == REQUEST:
        return editor.stored.current
    kind, _, name = chosen.partition(":")
    value = read(editor.workspace, kind, name)
    if value is None:
        problem = f"names {escape_markdown(name)}, which this workspace does not have any more"
        raise InputFault("What runs now", problem, "Choose another state.")
    state = read_state(value, name)
    fleet = {gpu.id: gpu.type for gpu in list_gpus(request.gpus)}
    return fleet_state(fleet, state, names_by_plan(planned, state) if planned is not None else {})

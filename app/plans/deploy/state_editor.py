"""What runs now, set by hand: GPUs, their MIG mode and layout, and what runs on each slice; a map and its fields."""

from __future__ import annotations

from dataclasses import dataclass, replace

import streamlit as st

from app.components.picture import picture
from app.plans.deploy import state_fields
from app.session import scenario
from app.shell import address, frame
from torchsplit_core.hardware import catalogue, without_mig
from torchsplit_core.hardware.host_state.editing import add_gpus
from torchsplit_core.hardware.host_state.validity import check_state
from torchsplit_core.pictures.numbers import counted
from torchsplit_core.pictures.slice_map import state_svg
from torchsplit_core.values import HostState, InputFault, PlanOutcome, PlanRequest
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace

MOST_STEPS = 100
MOST_ADDED = 1024
"""GPUs that are added at once."""
FRESH_NAME = "now"


@dataclass(frozen=True, slots=True)
class StateDraft:
    """A state that is being edited: the states so far, the last is on screen. `stored` is the name of the state of the
    workspace that it began with, empty where it is a new one; `place` is the chosen place of the map."""

    steps: tuple[HostState, ...]
    stored: str = ""
    place: str = ""

    @property
    def now(self) -> HostState:
        """The state on screen."""
        return self.steps[-1]

    def changed(self, state: HostState, place: str | None = None) -> StateDraft:
        """After an edit."""
        steps = self.steps if state == self.now else (*self.steps, state)[-MOST_STEPS:]
        return replace(self, steps=steps, place=self.place if place is None else place)


def draft_key(workspace: Workspace, name: str) -> str:
    """The session's key of the draft of this scenario."""
    return f"state by hand {workspace.id} {name}"


def open_draft(workspace: Workspace, name: str, state: HostState, stored: str = "") -> None:
    """Begin to edit a state."""
    st.session_state[draft_key(workspace, name)] = StateDraft((state,), stored)


def is_open(workspace: Workspace, name: str) -> bool:
    """Whether a state is being edited."""
    return isinstance(st.session_state.get(draft_key(workspace, name)), StateDraft)


def render(workspace: Workspace, name: str, plan: PlanOutcome, request: PlanRequest | None) -> None:
    """The editor, where a state is being edited. Nothing else of the page is drawn anew by an edit."""
    if is_open(workspace, name):
        with st.container(border=True, key="state-editor"):
            st.fragment(_editor)(workspace, name, plan, request)


def _editor(workspace: Workspace, name: str, plan: PlanOutcome, request: PlanRequest | None) -> None:
    key = draft_key(workspace, name)
    draft = st.session_state.get(key)
    if not isinstance(draft, StateDraft):
        return

    def change(state: HostState, place: str | None = None) -> None:
        st.session_state[key] = st.session_state[key].changed(state, place)

    st.subheader("What runs now, by hand", anchor=False)
    if draft.now.gpus:
        picture(
            state_svg(draft.now, scenario.colours(workspace), places=True), key="state-edit-map", chosen=draft.place,
            on_place=lambda place: change(st.session_state[key].now, place),
        )  # fmt: skip
        state_fields.render(key, draft.now, draft.place, plan, request, change)
    _add_gpus(key, draft.now, plan, change)
    _save(workspace, name, draft)


def _add_gpus(key: str, state: HostState, plan: PlanOutcome, change: state_fields.Change) -> None:
    kinds = list(dict.fromkeys((*(gpu.type for gpu in plan.gpus), *catalogue(), *without_mig())))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        kind = st.selectbox("More GPUs, of type", kinds, key=f"{key} type", width=180)
        count = st.number_input("How many", 1, MOST_ADDED, 1, key=f"{key} count", width=110)
        host = st.text_input("On host", key=f"{key} host", placeholder="no name", width=120)
        st.button(
            "Add GPUs", key="state-add-gpus",
            on_click=lambda: change(add_gpus(state, str(kind), int(count), host.strip())),
        )  # fmt: skip


def _save(workspace: Workspace, name: str, draft: StateDraft) -> None:
    key = draft_key(workspace, name)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        wanted = st.text_input(
            "Name of the state", draft.stored or FRESH_NAME, key=f"{key} name", max_chars=100, width=220,
            help="The state that you edit is replaced under its name. Another name makes another state.",
        ).strip()  # fmt: skip
        fault = _fault(draft.now)
        pressed = st.button("Save and choose", type="primary", key="state-save", disabled=bool(fault))
        st.button(
            "Undo", key="state-undo", disabled=len(draft.steps) == 1,
            on_click=lambda: st.session_state.update({key: replace(draft, steps=draft.steps[:-1])}),
        )  # fmt: skip
        if st.button("Close without saving", key="state-close"):
            del st.session_state[key]
            st.rerun(scope="app")
    if fault:
        st.error(fault)
    if pressed:
        with frame.fault_boundary():
            if not wanted:
                raise InputFault("name of the state", "is empty", "Type one.")
            saved = wanted
            if wanted != draft.stored:
                saved = named_results.free_name(workspace, ("host_state",), wanted)
            workspace.put("host_state", saved, draft.now)
            frame.notify(f"The state {saved} of {counted(len(draft.now.gpus), 'GPU')} is in the workspace.")
            del st.session_state[key]
            st.query_params[address.FROM] = f"host_state:{saved}"
            st.rerun(scope="app")


def _fault(state: HostState) -> str:
    """Why no host can be in this state, as a message; empty where one can."""
    if not state.gpus:
        return "The state has no GPU. Add at least one."
    try:
        check_state(state)
    except InputFault as fault:
        return str(fault)
    return ""

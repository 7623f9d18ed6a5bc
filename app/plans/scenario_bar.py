"""The bar of the Plan page: the choice of the scenario, and the menu that renames, copies and deletes it."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.session import scenario
from app.session.result_kind import SCENARIO
from app.shell import frame, navigation, result_list
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace


def open_scenario(workspace: Workspace) -> tuple[str | None, tuple[str, ...]]:
    """The current scenario, None without any, and all scenarios.

    An address of an unknown scenario ends the page, which shows nothing of another one.
    """
    known = SCENARIO.names(workspace)
    if (missing := SCENARIO.unknown_in_address(known)) is not None:
        _unknown(workspace, missing, known)
        st.stop()
    return SCENARIO.current(workspace, known), known


def undo(workspace: Workspace) -> None:
    """The button that brings back a scenario that was just deleted."""
    name = scenario.deleted_name(workspace)
    if name is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", border=True, key="scenario-deleted"):
        st.markdown(f"Deleted the scenario **{escape_markdown(name)}**.", width="content")
        if st.button("Undo", key="scenario-undo"):
            with frame.fault_boundary():
                scenario.undelete(workspace)
                st.rerun()


def _unknown(workspace: Workspace, missing: str, known: Sequence[str]) -> None:
    text = (
        f"There is no scenario {missing!r} in this workspace (any more): it was renamed or deleted, or the "
    )
    text += "address is of another workspace. Nothing is shown in its place."
    st.error(escape_markdown(text))
    if known:
        chosen = st.selectbox("Scenarios here", known, None, placeholder="Choose a scenario", width=320)
        if chosen is not None:
            SCENARIO.choose(workspace, chosen)
            st.rerun()


def render(workspace: Workspace, name: str, known: Sequence[str]) -> None:
    """The choice among the known scenarios, and the buttons of the current one."""
    if len(known) > 1:
        result_list.render_switch(workspace, SCENARIO, name, known)
    else:
        st.markdown(f"**{escape_markdown(name)}**", width="content")
    if st.button("Present", icon=":material/slideshow:", key="present", help="The map on the whole window."):
        navigation.go("Present", name)
    # A menu for each scenario: an open menu must not stay open for the next one, its Delete under the mouse.
    with st.popover("Scenario …", key=f"scenario-menu-{name}"):
        _menu(workspace, name)


def _menu(workspace: Workspace, name: str) -> None:
    st.caption(
        "The address of this page is a link to this scenario. Requests and plans come back in as files."
    )
    # With another scenario the field begins anew.
    new = st.text_input("Name", name, key=f"scenario-name-{name}", max_chars=scenario.LONGEST_NAME)
    with st.container(horizontal=True):
        renamed = st.button("Rename", key="scenario-rename")
        about = "A copy to change; this one stays as it is."
        copied = st.button("Duplicate", key="scenario-duplicate", help=about)
        about = "It can be brought back until the next change."
        deleted = st.button("Delete", key="scenario-delete", help=about)
    # Below the buttons: a fault leaves all three in place.
    with frame.fault_boundary():
        if renamed:
            scenario.save_as(workspace, name, new, keep=False)
            st.rerun()
        if copied:
            free = named_results.free_name(workspace, named_results.SCENARIO_KINDS, f"{name} copy")
            scenario.save_as(workspace, name, free if new.strip() == name else new, keep=True)
            st.rerun()
        if deleted:
            scenario.delete(workspace, name)
            st.rerun()

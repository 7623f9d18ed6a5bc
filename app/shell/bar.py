"""The bar at the head of every page: workspace, scenario, running jobs, a link to copy, help."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import streamlit as st

from app.components.share import share
from app.session import workspace as workspaces
from app.session import workspace_list
from app.session.result_kind import SCENARIO
from app.shell import navigation
from torchsplit_core import jobs
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.workspace.store import Workspace

EntryT = TypeVar("EntryT")
MOST = 8
"""A longer list of workspaces or scenarios gets a search field."""


def render(workspace: Workspace) -> None:
    """Draw the bar."""
    with st.container(horizontal=True, vertical_alignment="center", key="bar", gap="small"):
        _workspaces(workspace)
        _scenarios(workspace)
        st.space("stretch")
        running = len(jobs.running(workspace))
        navigation.link(
            "Activity", f"Activity · {running}" if running else "Activity", icon=":material/pending_actions:"
        )
        with st.container(width="content"):
            copy_link(workspace)
        navigation.link("Help", "Help", icon=":material/help:")


def copy_link(workspace: Workspace) -> None:
    """Draw the button that copies the address; it also reports the browser's theme and the id of its tab."""
    identity = workspace.id if workspaces.is_kept(workspace) else None
    share(workspaces.COOKIE, identity, navigation.PATHS)


def _workspaces(workspace: Workspace) -> None:
    menu = st.popover(
        escape_markdown(workspace.name), icon=":material/folder_open:", key="bar-workspace", on_change="rerun",
    )  # fmt: skip
    if not menu.open:
        return
    with menu:
        others = [
            summary
            for summary in workspace_list.list_workspaces(workspaces.store())
            if summary.id != workspace.id
        ]
        for summary in _filter_entries(
            others, "bar-search", lambda summary: f"{summary.name} {summary.description}"
        ):
            navigation.link(
                "Overview",
                escape_markdown(summary.name),
                workspace=workspaces.store().open(summary.id),
                help=summary.description,
            )
        if not others:
            st.caption("There is no other workspace yet.")
        if workspaces.is_kept(workspace) and st.button("New workspace", key="bar-new"):
            workspaces.use(workspaces.fresh())
            navigation.go("Overview")
        navigation.link("Workspace", "Name, files and copies of this one")


def _scenarios(workspace: Workspace) -> None:
    known = SCENARIO.names(workspace)
    if not known:
        return
    name = SCENARIO.current(workspace, known) or known[0]
    menu = st.popover(
        escape_markdown(name), icon=":material/view_quilt:", key="bar-scenario", on_change="rerun",
    )  # fmt: skip
    if menu.open:
        with menu:
            for title in _filter_entries(list(known), "bar-scenario-search", str):
                navigation.link("Plan", escape_markdown(title), title)


def _filter_entries(entries: list[EntryT], key: str, words: Callable[[EntryT], str]) -> list[EntryT]:
    """Where there are many entries, draw a search field and return those that match."""
    if len(entries) <= MOST:
        return entries
    text = st.text_input(
        "Search", key=key, placeholder=f"one of {len(entries)}", label_visibility="collapsed"
    )
    matches = [entry for entry in entries if text.lower() in words(entry).lower()]
    if len(matches) > MOST:
        st.caption(f"The first {MOST} of {len(matches)}.")
    return matches[:MOST]

"""The bar at the head of every page: which workspace, which scenario, what works, the link to what is seen, help."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import streamlit as st

from app.components.share import share
from app.session import shelf
from app.session import workspace as workspaces
from app.session.thing import SCENARIO
from app.shell import navigation
from torchsplit_core import jobs
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.workspace.store import Workspace

Found = TypeVar("Found")
MOST = 8
"""Workspaces or scenarios in a list before it can be searched."""


def show(workspace: Workspace) -> None:
    """The bar."""
    with st.container(horizontal=True, vertical_alignment="center", key="bar", gap="small"):
        _workspaces(workspace)
        _scenarios(workspace)
        st.space("stretch")
        running = len(jobs.running(workspace))
        navigation.link(
            "Activity",
            f"Activity · {running}" if running else "Activity",
            icon=":material/pending_actions:",
        )
        with st.container(width="content"):
            copy_link(workspace)
        navigation.link("Help", "Help", icon=":material/help:")


def copy_link(workspace: Workspace) -> None:
    """The button that copies the address; with it the browser tells its theme and the id of its tab."""
    identity = workspace.id if workspaces.is_kept(workspace) else None
    share(workspaces.COOKIE, identity, navigation.PATHS)


def _workspaces(workspace: Workspace) -> None:
    menu = st.popover(
        escape_markdown(workspace.name), icon=":material/folder_open:", key="bar-workspace", on_change="rerun",
    )  # fmt: skip
    if not menu.open:
        return
    with menu:
        others = [one for one in shelf.stocked(workspaces.store()) if one.id != workspace.id]
        for one in _searched(others, "bar-search", lambda one: f"{one.name} {one.words}"):
            navigation.link(
                "Overview", escape_markdown(one.name), workspace=workspaces.store().open(one.id), help=one.words
            )
        if not others:
            st.caption("There is no other workspace yet.")
        if workspaces.is_kept(workspace) and st.button("New workspace", key="bar-new"):
            workspaces.use(workspaces.fresh())
            navigation.go("Overview")
        navigation.link("Workspace", "Name, files and copies of this one")


def _scenarios(workspace: Workspace) -> None:
    known = SCENARIO.known(workspace)
    if not known:
        return
    name = SCENARIO.current(workspace, known) or known[0]
    menu = st.popover(
        escape_markdown(name), icon=":material/view_quilt:", key="bar-scenario", on_change="rerun",
    )  # fmt: skip
    if menu.open:
        with menu:
            for one in _searched(list(known), "bar-scenario-search", str):
                navigation.link("Plan", escape_markdown(one), one)


def _searched(every: list[Found], key: str, words: Callable[[Found], str]) -> list[Found]:
    """Those that the text fits, where there are so many that one has to search."""
    if len(every) <= MOST:
        return every
    text = st.text_input("Search", key=key, placeholder=f"one of {len(every)}", label_visibility="collapsed")
    found = [one for one in every if text.lower() in words(one).lower()]
    if len(found) > MOST:
        st.caption(f"The first {MOST} of {len(found)}.")
    return found[:MOST]

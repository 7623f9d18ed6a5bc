"""The page of one model: its graph, its profile, its cuts."""

from __future__ import annotations

import streamlit as st

from app.models.cuts import page as cuts_page
from app.models.graph import page as graph_page
from app.models.profile import page as profile_page
from app.object_pages import unknown_object
from app.session import cuts
from app.session.result_kind import MODEL
from app.shell import address, frame, result_list
from torchsplit_core.workspace.store import Workspace

TAB = "model-tab"
"""The key of the page's tabs."""
GRAPH, PROFILED, CUTS = TABS = ("Graph", "Profile", "Cuts")
# Heading and choice in one row; notices have a row of their own below.
STYLE = """<style>
.stMain h1 { font-size: 1.35rem; padding: 0; overflow-wrap: anywhere; }
.stMainBlockContainer > .stVerticalBlock { gap: .6rem; }
.st-key-model-head > [data-testid="stLayoutWrapper"] { order: 1; flex: 1 0 100%; margin-top: -.5rem; }
</style>"""
VIEWS = {GRAPH: (graph_page.TITLES, graph_page.TAB), PROFILED: (profile_page.TITLES, profile_page.TAB)}
"""The views of a tab, and their key."""


def render(first: str = GRAPH, *, all_profiles: bool = False) -> None:
    """The whole page, at the tab of the address, else at the `first`; `all_profiles` shows those of all models."""
    opened = frame.opened_workspace()
    known = MODEL.names(opened)
    if (missing := MODEL.unknown_in_address(known)) is not None:
        unknown_object.render(opened, MODEL.word, missing, known, "Graph")
        return
    name = MODEL.current(opened, known)
    tab = address.selected_tab(address.TAB, TABS, TAB, first)
    open_tab = next((title for title in TABS if address.slug(title) == tab), first)
    _settle(opened, name, tab, open_tab)
    st.html(STYLE)
    with st.container(horizontal=True, vertical_alignment="center", key="model-head", gap="xsmall"):
        window = (open_tab, *filter(None, (name,)))
        frame.render_head(opened, name or "Model", *window, failures=MODEL.job_kinds, about=name)
        if name is not None and len(known) > 1:
            result_list.render_switch(opened, MODEL, name, known)
    st.session_state.setdefault(TAB, first)
    for title, container in zip(TABS, st.tabs(TABS, key=TAB, on_change="rerun"), strict=True):
        if container.open:
            with container:
                _tab(opened, title, name, all_profiles)


def _settle(opened: Workspace, name: str | None, tab: str | None, open_tab: str) -> None:
    """Set the address to model, tab, view and cut."""
    view = cut = None
    if open_tab in VIEWS:
        view = address.selected_tab(address.VIEW, *VIEWS[open_tab])
    elif name is not None:
        cut = _cut(opened, name)
    wanted = {MODEL.word: name, address.TAB: tab, address.VIEW: view, address.CUT: cut}
    address.set_address(opened, wanted)


def _cut(opened: Workspace, name: str) -> str | None:
    """The chosen cut's key: of a new address, else the user's choice."""
    requested, seen = st.query_params.get(address.CUT), f"cut of {name} in the address"
    if requested and requested != st.session_state.get(seen):
        cuts.choose(opened, name, requested)
    selected = cuts.selected_key(opened, name)
    st.session_state[seen] = selected
    return selected


def _tab(opened: Workspace, title: str, name: str | None, all_profiles: bool) -> None:
    if title == GRAPH:
        graph_page.render(opened, name)
    elif title == PROFILED:
        profile_page.render(opened, None if all_profiles else name)
    else:
        cuts_page.render(opened, name)

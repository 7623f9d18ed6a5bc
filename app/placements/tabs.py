"""The page LLM placements: sizing an LLM, its placements, and estimates beside measured rows, a tab each."""

from __future__ import annotations

import streamlit as st

from app.placements import measured
from app.placements.list_page import LIST
from app.placements.sizing import page as sizing_page
from app.shell import address
from torchsplit_core.workspace.store import Workspace

TAB = "placements-tab"
"""The key of the page's tabs."""
SIZE, PLACEMENTS, MEASURED = TITLES = ("Size", "Placements", "Measured")
_SHOWN = {SIZE: sizing_page.render, PLACEMENTS: LIST.render, MEASURED: measured.render}


def render(workspace: Workspace) -> None:
    """The tabs below the page's heading."""
    turned = address.selected_tab(address.TAB, TITLES, TAB)
    address.set_address(workspace, {address.TAB: turned})
    for title, tab in zip(TITLES, st.tabs(TITLES, key=TAB, on_change="rerun"), strict=True):
        if tab.open:
            with tab:
                _SHOWN[title](workspace)

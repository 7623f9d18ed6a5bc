"""The window as a stage: keys for the buttons of the page that is presented, full screen, and a map that fits.

The keys press buttons that are there, by the names of their containers: `present-before`, `present-after`,
`present-leave`. What the component itself shows is the button of the full screen, where the browser has one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import streamlit as st

NAME = "torchsplit_stage"
HTML = '<button type="button" class="full" hidden>Full screen · F</button>'
CSS = """
.full { font: inherit; font-size: .875rem; font-family: var(--st-font); color: var(--st-text-color);
  background: transparent; border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius);
  min-height: 2.2rem; padding: .15rem .75rem; cursor: pointer; white-space: nowrap; }
.full:hover { border-color: var(--st-primary-color); color: var(--st-link-color); }
.full:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px; }
.full[hidden] { display: none; }
"""
SCRIPT = Path(__file__).with_name("stage.js")


@st.cache_resource
def _component() -> Any:
    """Registered once a server, not once a run."""
    return st.components.v2.component(NAME, html=HTML, css=CSS, js=SCRIPT.read_text(encoding="utf-8"))


def fullscreen_button(at: Literal["before", "after", ""]) -> None:
    """The button of the full screen; `at` says which of two plans is shown, empty where there is no second."""
    _component()(data={"at": at}, key="stage")

"""The graph explorer: a canvas with its panels, as a component of the page itself.

Its code is fixed text from the files beside this one; everything of a model travels as data and
is drawn on a canvas or set as text, never as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import streamlit as st

NAME = "torchsplit_explorer"
FOLDER = Path(__file__).resolve().parent
SCRIPTS = ("scene.js", "panels.js", "input.js", "around.js", "explorer.js")
"""Joined in this order to one module; the last exports it."""


@st.cache_resource
def _component() -> Any:
    """Registered once a server, not once a run."""
    return st.components.v2.component(
        NAME,
        html=(FOLDER / "explorer.html").read_text(encoding="utf-8"),
        css=(FOLDER / "explorer.css").read_text(encoding="utf-8"),
        js="\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS),
    )


def explorer(
    data: Mapping[str, Any],
    *,
    key: str,
    on_action: Callable[[], None],
    on_selection: Callable[[], None],
    on_overlay: Callable[[], None],
) -> None:
    """Mount the explorer. `data`: `text` is the drawing as JSON (see `app.explorer.mount`), `version` names it,
    `focus` says what to select and `overlay` which colours to begin with.

    What the user does is in `st.session_state[key]`: `action` (kind, item, node) where a box is to
    be opened, closed or revealed, `selection` (item, node, region) and `overlay`, when the callback runs.
    """
    _component()(
        data=dict(data),
        key=key,
        on_action_change=on_action,
        on_selection_change=on_selection,
        on_overlay_change=on_overlay,
    )

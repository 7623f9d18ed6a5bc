"""The graph explorer: a canvas with its panels, as a component of the page.

Its code is fixed text from the files beside this one. A model travels as data, which the code draws on the canvas or
sets as text, never as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from app.components.keys import component

NAME = "torchsplit_explorer"
FOLDER = Path(__file__).resolve().parent
SCRIPTS = ("scene.js", "panels.js", "input.js", "around.js", "explorer.js")
"""Joined in this order to one module; the last exports it."""


_PARTS = {name: (FOLDER / f"explorer.{name}").read_text(encoding="utf-8") for name in ("html", "css")}
_PARTS["js"] = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
_component = partial(component, NAME, _PARTS)


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

    When a callback runs, `st.session_state[key]` has what the user did: `action` (kind, item, node) to open, close or
    reveal a box, `selection` (item, node, region), or `overlay`.
    """
    handlers = {
        "on_action_change": on_action,
        "on_selection_change": on_selection,
        "on_overlay_change": on_overlay,
    }
    _component()(data=dict(data), key=key, **handlers)

"""The presentation in the window: keyboard shortcuts, full screen, and a map that fits.

The shortcuts press the buttons of the containers `present-before`, `present-after` and `present-leave`. The component
itself shows the button for full screen, where the browser offers that.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from app.components.keys import component

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


_component = partial(component, NAME, {"html": HTML, "css": CSS, "js": SCRIPT.read_text(encoding="utf-8")})


def fullscreen_button(at: Literal["before", "after", ""]) -> None:
    """The button for full screen; `at` says which of two plans is shown, empty where there is only one."""
    _component()(data={"at": at}, key="stage")

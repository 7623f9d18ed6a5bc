"""A button that takes keyboard users past the menu, to the results of a page or to its heading.

Streamlit's router would take a link within the page for a change of the address, so a button moves the focus. It shows
only while it has the focus.
"""

from __future__ import annotations

from functools import partial

from app.components.keys import component

NAME = "torchsplit_skip"
HTML = '<button type="button" class="skip">Skip to the results</button>'
CSS = """
.skip { position: absolute; left: -100vw; top: .3rem; z-index: 100; padding: .3rem .7rem; font-size: .875rem;
  font-family: var(--st-font); color: var(--st-link-color); background: var(--st-background-color);
  border: 1px solid var(--st-primary-color); border-radius: var(--st-base-radius); }
.skip:focus { left: .5rem; }
"""
JS = """
export default function ({ parentElement }) {
  const button = parentElement.querySelector(".skip");
  if (!button) return;
  button.onclick = () => {
    const target = document.querySelector(".st-key-results") ?? document.querySelector("h1");
    if (!target) return;
    target.setAttribute("tabindex", "-1");
    target.focus();
    target.scrollIntoView({ block: "start" });
  };
}
"""


_component = partial(component, NAME, {"html": HTML, "css": CSS, "js": JS, "isolate_styles": False})


def skip_link() -> None:
    """The button; draw it before anything else that takes the focus."""
    _component()(key="skip")

"""A drawing (HTML with SVG) in the page itself, so that it takes the theme's colours and its titles show on hover.

`st.html` removes SVG. The drawing travels as data, never as code: the script below takes out
whatever could run before it is shown.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

NAME = "torchsplit_picture"
JS = """
export default function ({ parentElement, data }) {
  const place = parentElement.querySelector(".picture");
  if (!place || place.dataset.shown === data.markup) return;
  const parsed = new DOMParser().parseFromString(data.markup, "text/html");
  const unsafe = "script, iframe, object, embed, foreignObject, style, link";
  for (const node of parsed.querySelectorAll(unsafe)) node.remove();
  for (const node of parsed.querySelectorAll("*"))
    for (const name of node.getAttributeNames())
      if (name.toLowerCase().startsWith("on") || name.toLowerCase().endsWith("href")) node.removeAttribute(name);
  place.replaceChildren(...parsed.body.childNodes);
  place.dataset.shown = data.markup;
}
"""


@st.cache_resource
def _component() -> Any:
    """Registered once a server, not once a run."""
    return st.components.v2.component(NAME, html='<div class="picture"></div>', js=JS, isolate_styles=False)


def picture(markup: str, *, key: str) -> None:
    """Show a drawing. The markup's texts must be escaped by who drew it."""
    _component()(data={"markup": markup}, key=key)

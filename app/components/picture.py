"""A drawing (HTML with SVG) in the page itself, so that it takes the theme's colours and its titles show on hover.

A click on something with `data-model`, in a drawing or in a table beside it, picks that model: all that belongs
to others fades, in both, until the same is clicked again. The pick stays while the page is drawn anew.

`st.html` removes SVG. The drawing travels as data, never as code: the script below takes out
whatever could run before it is shown.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

NAME = "torchsplit_picture"
JS = """
const PICK = "torchsplit-pick";
function pick(model) {
  let style = document.getElementById(PICK);
  if (!style) {
    style = document.createElement("style");
    style.id = PICK;
    document.head.append(style);
    document.addEventListener("click", clicked);
  }
  const same = model === null || style.dataset.model === model;
  if (same) delete style.dataset.model;
  else style.dataset.model = model;
  const other = same ? "" : `:not([data-model="${CSS.escape(model)}"])`;
  style.textContent = same ? "" :
    `.picture svg[data-model]${other} { opacity: .2; } table.ts tr[data-model]${other} { opacity: .4; }`;
  for (const button of document.querySelectorAll("table.ts button[data-pick]"))
    button.setAttribute("aria-pressed", String(!same && button.dataset.pick === model));
}
function clicked(event) {
  const hit = event.target.closest?.(".picture svg[data-model], table.ts button[data-pick]");
  if (hit) pick(hit.dataset.model ?? hit.dataset.pick);
}
export default function ({ parentElement, data }) {
  if (!document.getElementById(PICK)) pick(null);
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

"""A drawing (HTML with SVG) in the page itself, so that it takes the theme's colours and its titles show on hover.

A click on an element with `data-model`, in a drawing or in a table beside it, picks that model: everything of other
models fades in both, until the same model is clicked again. The pick outlives a new run of the page. While a model that
runs in stages is picked, arrows over the picture join its stages.

With `on_place`, an element with `data-place` is a button: a click, Enter or space chooses its place.

`st.html` removes SVG. The drawing travels as data, never as code: before it is shown, the script below removes whatever
could run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import streamlit as st

from app.components.keys import component, component_key

NAME = "torchsplit_picture"
CSS = """
.picture { position: relative; }
.picture svg.arrows { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible;
  pointer-events: none; }
.picture svg.arrows path { fill: none; stroke: currentColor; stroke-width: 2; }
.picture svg.arrows path.tip { fill: currentColor; stroke: none; }
.picture svg.arrows path.joined { stroke-dasharray: 2 5; stroke-linecap: round; opacity: .8; }
.picture svg.arrows text { fill: currentColor; font: 700 12px var(--st-font, sans-serif); text-anchor: middle;
  paint-order: stroke; stroke: var(--st-background-color, #fff); stroke-width: 4px; }
"""
ARROWS = Path(__file__).with_name("arrows.js")
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
  for (const picture of document.querySelectorAll(".picture")) drawArrows(picture, style.dataset.model);
}
function choose(picture, chosen, report, picks) {
  picture.dataset.chosen = chosen;
  for (const node of picture.querySelectorAll("[data-place]")) {
    node.setAttribute("tabindex", "0");
    node.setAttribute("role", "button");
    node.setAttribute("aria-label", node.querySelector("title")?.textContent ?? node.dataset.place);
    node.setAttribute("aria-pressed", String(node.dataset.place === chosen));
    const press = event => {
      event.stopPropagation();
      event.preventDefault();
      // Told again, it is chosen no more where that picks its model too.
      const now = picks && node.dataset.place === picture.dataset.chosen ? "" : node.dataset.place;
      choose(picture, now, report, picks);
      if (picks) {
        const model = event.target.closest("svg[data-model]") ?? node.querySelector("svg[data-model]");
        pick(null);
        if (now && model) pick(model.dataset.model);
      }
      // Not the place alone: the same one may be told twice.
      report("place", picks ? `${node.dataset.place}|${Date.now()}` : node.dataset.place);
    };
    node.onclick = press;
    node.onkeydown = event => { if (event.key === "Enter" || event.key === " ") press(event); };
  }
}
function draw(picture, markup) {
  const opened = picture.querySelector("details[open]")?.dataset.group;
  const held = picture.contains(document.activeElement) ? document.activeElement.dataset.place : undefined;
  const parsed = new DOMParser().parseFromString(markup, "text/html");
  const unsafe = "script, iframe, object, embed, foreignObject, style, link";
  for (const node of parsed.querySelectorAll(unsafe)) node.remove();
  for (const node of parsed.querySelectorAll("*"))
    for (const name of node.getAttributeNames())
      if (name.toLowerCase().startsWith("on") || name.toLowerCase().endsWith("href")) node.removeAttribute(name);
  picture.replaceChildren(...parsed.body.childNodes);
  picture.dataset.shown = markup;
  // What was open stays open.
  if (opened !== undefined)
    picture.querySelector(`details[data-group="${CSS.escape(opened)}"]`)?.setAttribute("open", "");
  return held;
}
function clicked(event) {
  const hit = event.target.closest?.(".picture svg[data-model], table.ts button[data-pick]");
  if (!hit) return;
  pick(hit.dataset.model ?? hit.dataset.pick);
  const now = document.getElementById(PICK).dataset.model ?? "";
  // Not the model alone: the same one may be told twice.
  for (const picture of document.querySelectorAll(".picture")) picture.told?.("model", `${now}|${Date.now()}`);
}
export default function ({ parentElement, data, setStateValue }) {
  if (!document.getElementById(PICK)) pick(null);
  const picture = parentElement.querySelector(".picture");
  if (!picture) return;
  const held = picture.dataset.shown === data.markup ? undefined : draw(picture, data.markup);
  const arrows = () => drawArrows(picture, document.getElementById(PICK).dataset.model);
  arrows();
  // Wrapping moves the slices.
  picture.sized ??= new ResizeObserver(arrows);
  picture.sized.observe(picture);
  picture.told = data.models ? setStateValue : undefined;
  if (data.chosen === undefined) return;
  choose(picture, data.chosen, setStateValue, data.picks);
  if (held !== undefined)
    picture.querySelector(`[data-place="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
}
"""


_PARTS = {"html": '<div class="picture"></div>', "css": CSS, "js": ARROWS.read_text(encoding="utf-8") + JS}
_component = partial(component, NAME, {**_PARTS, "isolate_styles": False})


def picture(
    markup: str,
    *,
    key: str,
    chosen: str | None = None,
    on_place: Callable[[str], None] | None = None,
    on_model: Callable[[str], None] | None = None,
    picks: bool = False,
) -> None:
    """Show a drawing whose texts are escaped.

    `on_place` is called with the `data-place` that the user chose, before the page runs again; `chosen` is the place
    that stands out now, "" for none. With `picks` a choice picks the model of the place too, and choosing the same
    place again, which is reported too, ends both. `on_model` is called with a model that the user picked elsewhere, in
    a table, and with "" where the same model was picked again. It needs `on_place`.
    """
    key = component_key(key)
    if on_place is None:
        _component()(data={"markup": markup}, key=key)
        return

    def changed() -> None:
        place = st.session_state[key].get("place")
        if isinstance(place, str):
            on_place(place.rpartition("|")[0] if picks else place)

    def picked() -> None:
        model = st.session_state[key].get("model")
        if isinstance(model, str) and on_model is not None:
            on_model(model.rpartition("|")[0])

    data = {"markup": markup, "chosen": chosen or "", "picks": picks, "models": on_model is not None}
    _component()(data=data, key=key, on_place_change=changed, on_model_change=picked)

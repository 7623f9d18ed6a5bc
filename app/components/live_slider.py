"""A slider that reports every move at once.

Streamlit's slider waits until it has rested for 200 ms, half of the time that a new plan may take. This one is the
browser's own range input, with its keys, role and name. While the page works on an answer it reports nothing; then the
newest move follows, so that fast moves do not pile up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import streamlit as st

from app.components.keys import component, component_key

NAME = "torchsplit_live_slider"
HTML = """<div class="live-slider">
<div class="line" aria-hidden="true"><span></span><i class="note"></i><span></span></div>
<input type="range" step="1" min="0">
<div class="line ends" aria-hidden="true"><span></span><span></span></div>
</div>"""
CSS = """
.live-slider { font-family: var(--st-font); color: var(--st-text-color); font-size: .875rem; }
.live-slider .line { display: flex; justify-content: space-between; gap: .5rem; }
.live-slider .line:not(.ends) span:last-child { color: var(--st-link-color); font-variant-numeric: tabular-nums; }
.live-slider input { appearance: none; width: 100%; height: 6px; margin: .6rem 0 .45rem; border-radius: 3px;
  cursor: pointer;
  background: linear-gradient(to right, var(--st-primary-color) var(--share), var(--st-border-color) var(--share)); }
.live-slider input::-webkit-slider-thumb { appearance: none; width: 16px; height: 16px; border-radius: 50%;
  background: var(--st-primary-color); }
.live-slider input::-moz-range-thumb { width: 16px; height: 16px; border: 0; border-radius: 50%;
  background: var(--st-primary-color); }
.live-slider input:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 7px; }
@media (forced-colors: active) { .live-slider input { appearance: auto; } }
.live-slider .ends { font-size: .8rem; opacity: .75; }
.live-slider.row .ends { display: none; }
.live-slider.row input { margin: .3rem 0 .2rem; }
.live-slider.row .line { align-items: baseline; }
.live-slider .note { font-style: normal; margin-inline: auto .2rem; font-size: .8rem; opacity: .85;
  white-space: nowrap; }
.live-slider .note.below { opacity: 1; font-weight: 600; color: color-mix(in srgb, #d92d20 70%, currentColor); }
"""
JS = """
const PATIENCE_MS = 1000;
export default function ({ parentElement, data, setStateValue }) {
  const input = parentElement.querySelector(".live-slider input");
  if (!input) return;
  const [what, now, first, last] = parentElement.querySelectorAll(".live-slider .line span");
  const told = input.told ??= { sent: data.place, held: undefined, timer: undefined };
  const show = () => {
    now.textContent = data.texts[input.value];
    input.setAttribute("aria-valuetext", now.textContent);
    input.style.setProperty("--share", `${(100 * input.value) / Math.max(1, input.max)}%`);
  };
  const send = place => {
    told.sent = place;
    told.timer = setTimeout(answered, PATIENCE_MS);
    setStateValue("place", place);
  };
  const answered = () => {
    clearTimeout(told.timer);
    told.timer = undefined;
    const next = told.held;
    told.held = undefined;
    if (next !== undefined && next !== told.sent) send(next);
  };
  input.oninput = () => {
    show();
    const place = Number(input.value);
    if (told.timer === undefined) send(place);
    else told.held = place;
  };
  what.textContent = data.label;
  parentElement.querySelector(".live-slider").classList.toggle("row", data.row);
  const note = parentElement.querySelector(".live-slider .note");
  note.textContent = data.note;
  note.classList.toggle("below", data.below);
  input.setAttribute("aria-label", data.label);
  first.textContent = data.texts[0];
  last.textContent = data.texts[data.texts.length - 1];
  input.max = data.texts.length - 1;
  if (told.timer !== undefined && data.place === told.sent) answered();
  // A hand on the slider is ahead of what the page knows.
  if (told.timer === undefined) {
    input.value = told.sent = data.place;
    show();
  }
}
"""


_component = partial(component, NAME, {"html": HTML, "css": CSS, "js": JS, "isolate_styles": False})


def live_slider(
    label: str,
    texts: Sequence[str],
    place: int,
    *,
    key: str,
    on_move: Callable[[int], None],
    row: bool = False,
    note: str = "",
    below: bool = False,
) -> None:
    """A slider over `texts` at `place` (from 0); `on_move` is called with the new place before the page runs again.

    As a `row` of several it omits the labels of its ends. The `note` precedes its value, in red where `below`.
    """

    key = component_key(key)

    def moved() -> None:
        chosen = st.session_state[key].get("place")
        if isinstance(chosen, int) and 0 <= chosen < len(texts):
            on_move(chosen)

    data = {
        "label": label, "texts": list(texts), "place": place, "row": row, "note": note, "below": below,
    }  # fmt: skip
    _component()(data=data, key=key, on_place_change=moved)

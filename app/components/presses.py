"""What a hasty hand presses, made good once for the whole window.

A double click is one press of a button: the second would act on what the first one puts in its place (another
scenario to delete) or do everything twice. A link that is pressed straight from a field waits for the field's report,
which Streamlit sends a moment later and as of the page that is left: the server would go back to it.
"""

from __future__ import annotations

from functools import partial

from app.components.keys import component

NAME = "torchsplit_presses"
JS = """
const DOUBLE_MS = 300, NEAR_PX = 8, REPORT_MS = 150;
const BUTTONS = '[data-testid="stButton"] button, [data-testid="stFormSubmitButton"] button';
// Steps, which one takes as fast as one likes.
const STEPS = '.st-key-tour, [class*="-undo"]';

function watch() {
  let pressed = { at: -Infinity, x: 0, y: 0 }, left = -Infinity;
  const stop = event => { event.preventDefault(); event.stopImmediatePropagation(); };
  document.addEventListener("focusout", event => {
    if (event.target.matches?.("input, select, textarea, [role=slider]")) left = performance.now();
  }, true);
  document.addEventListener("click", event => {
    // Keys and scripts press without a place: `detail` is 0.
    if (!event.detail) return;
    const now = performance.now(), { clientX: x, clientY: y } = event;
    if (event.target.closest?.(BUTTONS)) {
      if (event.target.closest(STEPS)) return;
      const near = Math.hypot(x - pressed.x, y - pressed.y) <= NEAR_PX;
      if (near && now - pressed.at < DOUBLE_MS) stop(event);
      else pressed = { at: now, x, y };
      return;
    }
    const link = event.target.closest?.("a[href]"), wait = left + REPORT_MS - now;
    if (!link || link.target === "_blank" || wait <= 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
    stop(event);
    setTimeout(() => link.click(), wait);
  }, true);
}

export default function () {
  if (window.torchsplitPresses) return;
  window.torchsplitPresses = true;
  watch();
}
"""
CSS = ".st-key-presses { position: absolute; }"
_component = partial(
    component, NAME, {"html": "<span></span>", "css": CSS, "js": JS, "isolate_styles": False}
)


def watch_presses() -> None:
    """Watch the presses of the window from now on."""
    _component()(key="presses")

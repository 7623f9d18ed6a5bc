"""A tour of five steps around the plan of the measured mix, which can be skipped. A browser shows it once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import streamlit as st

from app.components.keys import component
from app.plans.screen.layout import NARROW_PX

COOKIE = "torchsplit_tour"
MARK_NAME = "torchsplit_tour_seen"
JS = f"""
export default function () {{
  document.cookie = "{COOKIE}=seen; path=/; max-age=31536000; samesite=strict";
}}
"""
STEP = "tour-step"
"""The session's key of the step that is shown; beyond the last step the tour has ended."""


@dataclass(frozen=True, slots=True)
class TourStep:
    """The element that is outlined, and the text about it; `aside`: the card keeps off the inputs at the left."""

    selector: str
    text: str
    aside: bool = False


STEPS = (
    TourStep(
        ".st-key-results",
        "**The verdict.** The first line says whether every model gets its demand, also under load, and who is the "
        "tightest.",
    ),
    TourStep(
        ".st-key-slices",
        "**A slice.** A card is a GPU, a box on it a MIG slice in the colour of its model, the bar below its load. "
        "Click one to see how its model runs there.",
    ),
    TourStep(
        ".st-key-inputs-models",
        "**A slider.** Move a demand: a new plan follows at once, as a draft. Nothing is kept until you say so.",
        aside=True,
    ),
    TourStep(
        ".st-key-card-0",
        "**The proof.** Where a plan is proven optimal, no other serves the worst-served model better. How far any "
        "plan could go at most is the bound.",
    ),
    TourStep(
        ".st-key-deploy-plan",
        "**Deploy.** Writes the files for mig-parted, nvidia-smi or Kubernetes. Nothing is applied from here.",
    ),
)
STYLE = """
[data-testid="stLayoutWrapper"]:has(> .st-key-tour) { position: fixed; left: 15.5rem; bottom: 1rem; z-index: 95;
  width: min(21rem, calc(100vw - 2rem)); }
/* Work in progress stands at the right; below this width the menu is folded away. */
@media (max-width: 768px) { [data-testid="stLayoutWrapper"]:has(> .st-key-tour) { left: 1rem; } }
.st-key-tour { background: var(--ground); box-shadow: 0 2px 14px rgb(0 0 0 / .22); padding: .8rem; }
"""
# Above work in progress; in a narrow window the inputs are folded away.
ASIDE = f"""
@media (min-width: {NARROW_PX + 1}px) {{ [data-testid="stLayoutWrapper"]:has(> .st-key-tour) {{
  left: auto; right: 1rem; bottom: 11rem; }} }}
"""


_component = partial(component, MARK_NAME, {"js": JS})


def render() -> None:
    """The current step; nothing once the tour was skipped or has ended."""
    step = st.session_state.get(STEP, 0)
    if step >= len(STEPS):
        _component()(key="tour-seen")
        return
    if step == 0 and st.context.cookies.get(COOKIE):
        return
    outlined = (
        f"{STEPS[step].selector} {{ outline: 3px solid light-dark(#0f766e, #2dd4bf); outline-offset: 4px; }}"
    )
    st.html(f"<style>{STYLE}{outlined}{ASIDE if STEPS[step].aside else ''}</style>")
    with st.container(key="tour", border=True, gap="small"):
        st.markdown(STEPS[step].text)
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(f"{step + 1} of {len(STEPS)}", width="stretch")
            last = step + 1 == len(STEPS)
            if not last:
                st.button("Skip the tour", key="tour-skip", on_click=_to, args=(len(STEPS),))
            st.button(
                "Done" if last else "Next", key="tour-next", type="primary", on_click=_to, args=(step + 1,)
            )


def _to(step: int) -> None:
    st.session_state[STEP] = step

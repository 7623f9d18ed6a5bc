"""The layout of the Plan page: inputs at the left, the map beside them, the drawer above the inputs.

The inputs fold by style alone: they stay on the page, so that what is typed in them is not lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from torchsplit_core.latency_slo.verdict import PlanVerdict

NARROW_PX = 1200
"""In a window up to this width the inputs are below the map, and folded at first."""
INK = {"red": "#d92d20", "amber": "#d97706"}
FOLDED = "plan-inputs-folded"
"""In the session: whether the inputs of a wide window are folded."""
OPENED = "plan-inputs-opened"
"""In the session: whether those of a narrow one are open."""
# A grid, so that the drawer is above the inputs without moving the map.
STYLE = """
.stMain h1 { font-size: 1.35rem; padding: 0; }
.stMainBlockContainer > .stVerticalBlock { gap: .6rem; }
.st-key-results [data-testid="stAlertContainer"] { padding: .4rem .8rem; }
.st-key-numbers [class*="st-key-card-"] { padding: .55rem .8rem; }
.st-key-numbers [data-testid="stMetricValue"] { font-size: 1.4rem; line-height: 1.25; }
.st-key-numbers [data-testid="stMetric"] > div { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 .6rem; }
.st-key-numbers [data-testid="stMetricLabel"] { flex: 0 0 100%; }
/* Two lines are kept free: the explanation comes later, and adds to them. */
.st-key-numbers [data-testid="stCaptionContainer"] p { font-size: .8rem; line-height: 1.3; min-height: 2.6em; }
.st-key-plan-results h2, .st-key-plan-chosen h2, .st-key-plan-chosen h3, .st-key-plan-inputs h2 {
  padding-block: 0 .55rem; }
.st-key-map > [data-testid="stLayoutWrapper"] > .stVerticalBlock { padding: .8rem; gap: .7rem; }
.st-key-plan-chosen [class*="st-key-drawer"] { padding: .8rem; }
.st-key-plan-chosen svg { max-width: 100%; height: auto; }
.st-key-plan-inputs [class*="st-key-inputs-"] { padding: .8rem; gap: .6rem; }
.st-key-plan-inputs [class*="st-key-inputs-"] h2 { padding-block: 0 .3rem; }
/* As high as the button that may stand in it. */
.st-key-fleet-head { min-height: 2.4rem; }
.st-key-figures-missing button { color: light-dark(#a3241b, #ffa198); }
.st-key-plan-columns > [data-testid="stHorizontalBlock"],
.st-key-plan-columns > * > [data-testid="stHorizontalBlock"] { display: grid; gap: .9rem; align-items: start;
  grid-template: "chosen map" auto "inputs map" 1fr / clamp(440px, 31.6vw, 560px) minmax(0, 1fr); }
.st-key-plan-columns > * > [data-testid="stHorizontalBlock"] > [data-testid="stColumn"] { width: auto; min-width: 0; }
.st-key-plan-columns [data-testid="stColumn"]:nth-child(1) { grid-area: chosen; }
.st-key-plan-columns [data-testid="stColumn"]:nth-child(2) { grid-area: inputs; }
.st-key-plan-columns [data-testid="stColumn"]:nth-child(3) { grid-area: map; }
.st-key-plan-results [data-testid="stColumn"][data-testid="stColumn"] { grid-area: auto; }
"""
WIDE = """
/* The inputs scroll apart: whatever is changed, the map is in sight. */
.st-key-plan-columns > * > [data-testid="stHorizontalBlock"] > [data-testid="stColumn"]:nth-child(2) {
  position: sticky; top: .6rem; max-height: max(24rem, calc(100vh - 28rem)); overflow-y: auto;
  overscroll-behavior: contain; scrollbar-width: thin; }
.st-key-inputs-narrow { display: none; }
"""
SLIM = """
.st-key-plan-columns > [data-testid="stHorizontalBlock"], .st-key-plan-columns > * > [data-testid="stHorizontalBlock"] {
  grid-template: "map" "chosen" "inputs" / minmax(0, 1fr) !important; }
.st-key-inputs-wide { display: none; }
"""
PHONE = """
.st-key-numbers > [data-testid="stLayoutWrapper"] > [data-testid="stHorizontalBlock"] { display: grid; gap: .5rem;
  grid-template-columns: 1fr 1fr; }
.st-key-numbers [data-testid="stColumn"] { width: auto; min-width: 0; }
"""


@dataclass(frozen=True, slots=True)
class Places:
    """Containers of the page, in the order of a narrow window: the map, the drawer, the inputs."""

    results: DeltaGenerator
    chosen: DeltaGenerator
    inputs: DeltaGenerator


def places() -> Places:
    """The three parts below the numbers."""
    with st.container(key="plan-columns"):
        chosen, inputs, results = st.columns([6, 6, 13], gap="small")
    map_place, chosen_place = results.container(key="plan-results"), chosen.container(key="plan-chosen")
    return Places(map_place, chosen_place, inputs.container(key="plan-inputs"))


def fold_buttons() -> None:
    """The buttons that fold the inputs: one for wide windows, where they are open at first, one for narrow windows."""
    with st.container(key="inputs-fold", width="content", gap=None):
        for key, state, first in (("inputs-wide", FOLDED, True), ("inputs-narrow", OPENED, False)):
            opened = bool(st.session_state.get(state)) != first
            st.button(
                "Inputs", icon=f":material/{'left_panel_close' if opened else 'left_panel_open'}:", key=key,
                help="Fold the inputs away" if opened else "Show the inputs", on_click=_turn, args=(state,),
            )  # fmt: skip


def _turn(state: str) -> None:
    st.session_state[state] = not st.session_state.get(state)


def style(*, working: bool, chosen: bool) -> None:
    """The page's style. Containers keep their keys: with another key one would be drawn anew and jump."""
    wide, slim = WIDE, SLIM
    if st.session_state.get(FOLDED):
        wide += ".st-key-plan-inputs { display: none; }"
        wide += "" if chosen else _one_column()
    if not st.session_state.get(OPENED):
        slim += ".st-key-plan-inputs { display: none; }"
    st.html(
        f"<style>{STYLE}@media (min-width: {NARROW_PX + 1}px) {{{wide}}}@media (max-width: {NARROW_PX}px) {{{slim}}}"
        f"@media (max-width: 640px) {{{PHONE}}}"
        f".st-key-numbers, .st-key-map {{ opacity: {0.6 if working else 1}; transition: opacity .2s; }}</style>"
    )


def _one_column() -> str:
    """The style for the map alone, with nothing at its left."""
    return (
        '.st-key-plan-columns > [data-testid="stHorizontalBlock"], .st-key-plan-columns > * >'
        ' [data-testid="stHorizontalBlock"] { grid-template: "map" / minmax(0, 1fr) !important; }'
        '.st-key-plan-columns > * > [data-testid="stHorizontalBlock"] > :nth-child(-n+2) { display: none; }'
    )


def tint(verdict: PlanVerdict | None) -> None:
    """Give the first number the colour of the verdict."""
    ink = INK.get(verdict.level if verdict else "")
    colour = "inherit" if ink is None else f"color-mix(in srgb, {ink} 70%, currentColor)"
    st.html(f'<style>.st-key-card-0 [data-testid="stMetricValue"] {{ color: {colour}; }}</style>')

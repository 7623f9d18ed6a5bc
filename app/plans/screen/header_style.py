"""The style of the head of the Plan page, whose height is fixed: an edit moves nothing below it."""

from __future__ import annotations

import streamlit as st

STYLE = """<style>
/* The scenario's row is the heading that is seen. */
.stMain h1 { position: absolute; width: 1px; height: 1px; margin: -1px; overflow: hidden; clip-path: inset(50%); }
.stMainBlockContainer > .stVerticalBlock { gap: .45rem !important; }
.st-key-headline { flex-wrap: nowrap !important; }
.st-key-headline > * { min-width: 0; flex: 0 0 auto !important; }
/* The name, behind the button that folds the inputs: it gives way. */
.st-key-headline > :nth-child(2) { flex: 0 1 auto !important; }
.st-key-headline [data-testid="stMarkdownContainer"] p { white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; }
.st-key-results, .st-key-facts, .st-key-draft-bar { flex: none !important; box-sizing: border-box; }
.st-key-results { min-height: 3rem; justify-content: center; }
.st-key-results [data-testid="stAlertContainer"] { padding: .25rem .8rem !important; }
.st-key-results [data-testid="stAlertContainer"] p { font-size: .92rem; line-height: 1.35; }
.st-key-facts { min-height: 1.9rem; flex-wrap: nowrap !important; }
.st-key-facts > [data-testid="stElementContainer"]:first-child { min-width: 0; flex: 1 1 auto; }
.st-key-facts [data-testid="stCaptionContainer"] p { font-size: .85rem; margin: 0; line-height: 1.2; }
.st-key-facts button { min-height: 1.8rem; padding-block: 0; white-space: nowrap; }
.st-key-numbers [class*="st-key-card-"] { min-height: 6.2rem; }
/* In the corner of its card: beside a long value it would need a line of its own. */
@media (min-width: 1200px) { .st-key-numbers [class*="st-key-card-"] { position: relative; }
  .st-key-numbers [data-testid="stMetricDelta"] { position: absolute; top: 2.1rem; right: .7rem; } }
.st-key-slices-head { height: 1.8rem; flex: none !important; flex-wrap: nowrap !important; }
.st-key-slices-head h2 { padding: 0 !important; white-space: nowrap; }
.st-key-slices-head [data-testid="stTextInputRootElement"] { height: 1.8rem; min-height: 0; }
.st-key-map > [data-testid="stLayoutWrapper"] > .stVerticalBlock { gap: .45rem !important; }
@media (max-width: 1199px) { .st-key-results { min-height: 4.1rem; }
  .st-key-facts { min-height: 2.8rem; }
  .st-key-numbers [class*="st-key-card-"] { min-height: 9.4rem; } }
@media (max-width: 640px) { .st-key-headline { flex-wrap: wrap !important; min-height: 9rem; }
  .st-key-results { min-height: 7rem; }
  .st-key-facts { min-height: 5.2rem; flex-wrap: wrap !important; }
  /* The inputs are folded away here: there is nothing that an edit could move. */
  .st-key-results:has([data-testid="stAlertContentInfo"]), .st-key-facts:has(.nothing) { min-height: 0; }
  .st-key-numbers [class*="st-key-card-"] { min-height: 9.4rem; } }
</style>"""


NOTHING = '<span class="nothing"></span>'
"""The content of an empty place: Streamlit would omit the place without any."""


def style() -> None:
    """Set the heights."""
    st.html(STYLE)

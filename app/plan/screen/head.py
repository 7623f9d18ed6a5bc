"""The head of the Plan page has one height whatever it says: what an edit changes up there moves nothing below it."""

from __future__ import annotations

import streamlit as st

# Text that needs more scrolls in its place.
STYLE = """<style>
/* The scenario's row is the heading that is seen. */
.stMain h1 { position: absolute; width: 1px; height: 1px; margin: -1px; overflow: hidden; clip-path: inset(50%); }
.stMainBlockContainer > .stVerticalBlock { gap: .45rem !important; }
.st-key-results, .st-key-facts, .st-key-draft-bar { flex: none !important; box-sizing: border-box; }
.st-key-results { height: 3rem !important; justify-content: center; }
.st-key-results [data-testid="stAlertContainer"] { max-height: 3rem; overflow-y: auto; scrollbar-width: thin;
  padding: .25rem .8rem !important; }
.st-key-results [data-testid="stAlertContainer"] p { font-size: .92rem; line-height: 1.35; }
.st-key-facts { height: 1.9rem !important; overflow: hidden auto; scrollbar-width: thin; flex-wrap: nowrap !important; }
.st-key-facts > [data-testid="stElementContainer"]:first-child { min-width: 0; flex: 1 1 auto; }
.st-key-facts [data-testid="stCaptionContainer"] p { font-size: .85rem; margin: 0; line-height: 1.2; }
.st-key-facts button { min-height: 1.8rem; padding-block: 0; white-space: nowrap; }
.st-key-numbers [class*="st-key-card-"] { height: 6.4rem !important; overflow: hidden auto; scrollbar-width: thin; }
@media (max-width: 1199px) { .st-key-results { height: 4.1rem !important; }
  .st-key-results [data-testid="stAlertContainer"] { max-height: 4.1rem; }
  .st-key-facts { height: 2.8rem !important; }
  .st-key-numbers [class*="st-key-card-"] { height: 8.4rem !important; } }
@media (max-width: 640px) { .st-key-results { height: 7rem !important; }
  .st-key-results [data-testid="stAlertContainer"] { max-height: 7rem; }
  .st-key-facts { height: 5rem !important; flex-wrap: wrap !important; }
  .st-key-numbers [class*="st-key-card-"] { height: 9.4rem !important; } }
</style>"""


def style() -> None:
    """The heights."""
    st.html(STYLE)

"""What every page has: the open workspace, its heading, running work, and faults as one red line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.format.numbers import plain
from app.session import trust, workspace
from app.shell import job_panel
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.store import Workspace

# Layout only; colours come from the theme. `st-key-…` is the class Streamlit gives a keyed container.
STYLE = """<style>
[data-testid="stMainBlockContainer"] { padding: 2.5rem clamp(1rem, 3vw, 3rem) 3rem; }
[data-testid="stMetricValue"], table.ts { font-variant-numeric: tabular-nums; }
[data-testid="stMetricLabel"] p { white-space: normal; }
table.ts { border-collapse: collapse; width: 100%; font-size: .875rem; }
table.ts th { font-weight: 500; text-align: left; padding: .3rem .5rem;
  border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
table.ts td { padding: .4rem .5rem; border-bottom: 1px solid color-mix(in srgb, currentColor 10%, transparent); }
table.ts th.n, table.ts td.n { text-align: right; white-space: nowrap; }
table.ts td.name { white-space: nowrap; }
table.ts i.swatch { display: inline-block; width: .7em; height: .7em; border-radius: 2px; margin-right: .5em; }
table.ts button[data-pick] { background: none; border: 0; padding: 0; font: inherit; color: inherit; cursor: pointer;
  text-align: left; }
table.ts button[aria-pressed="true"] { font-weight: 700; text-decoration: underline; }
.picture svg[data-model], .picture [data-place] { cursor: pointer; }
.picture [data-place] { outline: none; }
.picture .edge { opacity: 0; }
.picture [data-place]:hover > .edge { opacity: .35; }
.picture [data-place]:focus-visible > .edge, .picture [data-place][aria-pressed="true"] > .edge { opacity: 1; }
.picture details.alike { font-size: .82rem; margin-top: .2rem; }
.picture details.alike summary { cursor: pointer; width: fit-content; }
.picture details.alike p, .picture details.alike ul { margin: .2rem 0 .2rem 1rem; padding: 0; }
.picture details.alike p, .picture details.alike li { font-size: inherit; }
table.facts th { width: 42%; vertical-align: top; padding: .3rem .4rem .3rem 0; opacity: .85;
  border-bottom: 1px solid color-mix(in srgb, currentColor 10%, transparent); }
table.facts td { text-align: right; padding: .3rem 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
table.facts .estimated { color: color-mix(in srgb, #d97706 60%, currentColor); }
table.ts .below { color: color-mix(in srgb, #d92d20 70%, currentColor); font-weight: 600; }
table.ts span.bar { display: block; position: relative; height: .8rem; min-width: 5rem; border-radius: 3px;
  background: color-mix(in srgb, currentColor 9%, transparent); }
table.ts span.bar i { display: block; height: 100%; border-radius: 3px; }
table.ts span.bar b { position: absolute; top: -.2rem; bottom: -.2rem; width: 2px; background: currentColor; }
[data-testid="stCaptionContainer"], [data-testid="stCaptionContainer"] p { color: inherit !important; }
[data-testid="stCaptionContainer"] { opacity: .78; }
@media (max-width: 640px) { /* the picture before its controls */
  [class*="st-key-picture-beside-"] > [data-testid="stHorizontalBlock"],
  [class*="st-key-picture-beside-"] > * > [data-testid="stHorizontalBlock"],
  [class*="st-key-picture-below-"] { flex-direction: column-reverse; }
  [class*="st-key-picture-beside-"] [data-testid="stColumn"] { flex: none; width: 100%; } }
/* The dark theme's accent carries white text on buttons; as text of its own it would be too dim. */
[role="tab"][aria-selected="true"], [role="tab"][aria-selected="true"] *,
[data-testid="stSliderThumbValue"] { color: inherit !important; }
div.wide { overflow-x: auto; }
/* What has the focus is ringed in the accent, at least 3 to 1 on either theme's grounds. */
[data-testid="stApp"] :is(a, button, summary, [tabindex="0"], [role="tab"]):focus-visible {
  outline: 2px solid light-dark(#0b5f58, #5eead4) !important; outline-offset: 2px; }
[data-testid="stBaseButton-primary"]:is(:hover, :focus-visible) { background: light-dark(#0b5f58, #0b6b62) !important;
  border-color: transparent !important; }
@media (prefers-reduced-motion: reduce) {
  *, *::before, *::after { animation-duration: .01ms !important; animation-iteration-count: 1 !important;
    transition-duration: .01ms !important; scroll-behavior: auto !important; } }
</style>"""


def run(menu: Callable[[Workspace], Any]) -> None:
    """One run of the app: the menu, then the chosen page."""
    trust.settle()
    with telling():
        menu(workspace.current()).run()


def open_page(title: str) -> Workspace:
    """The heading of a page, messages of the last action, and work in progress; the open workspace."""
    opened = workspace.current()
    name_window(title)
    st.html(STYLE)
    st.title(title, anchor=False)
    # One place for what comes and goes: what follows keeps its position, and so is not drawn anew.
    with st.container(key="notices"):
        if trouble := opened.store.trouble():
            st.warning(plain(trouble))
        for text in st.session_state.pop("said", []):
            st.success(plain(text))
        job_panel.show(opened)
    return opened


def name_window(*parts: str) -> None:
    """What the browser's tab says, so that several can be told apart."""
    st.set_page_config(page_title=" · ".join((*parts, "TorchSplit")))


def picture_beside(name: str) -> DeltaGenerator:
    """A container of columns, controls left and a picture right; where the window is narrow the picture comes first."""
    return st.container(key=f"picture-beside-{name}")


def picture_below(name: str) -> DeltaGenerator:
    """A container of controls and a picture below them; where the window is narrow the picture comes first."""
    return st.container(key=f"picture-below-{name}")


def say(text: str) -> None:
    """Tell the user after the next rerun that something was done."""
    st.session_state.setdefault("said", []).append(text)


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """A user's fault becomes one red line; the page goes on and nothing stored is lost."""
    try:
        yield
    except InputFault as fault:
        st.error(plain(str(fault)))

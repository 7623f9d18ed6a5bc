"""What every page draws: the open workspace, its heading, running work, and a fault as one red line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.session import trust, workspace, workspace_list
from app.shell import bar, job_panel, navigation
from torchsplit_core import __version__
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.store import Workspace

ABOUT = f"TorchSplit {__version__}: PyTorch models on slices of NVIDIA GPUs, proven."
"""The entry of Streamlit's menu at the upper right: without an entry of ours Streamlit hides the menu."""
MOST_OFFERED = 20
"""How many workspaces the page offers where the address names an unknown one."""
# Layout only; colours come from the theme. `st-key-…` is the class Streamlit gives a keyed container.
STYLE = """<style>
/* Streamlit names the theme's colours only within components: this is what lies over other content. */
[data-testid="stApp"] { --ground: light-dark(#fbfbf9, #0f1418); }
[data-testid="stMainBlockContainer"] { padding: 1.1rem clamp(1rem, 3vw, 3rem) 7rem; }
.st-key-bar { border-bottom: 1px solid color-mix(in srgb, currentColor 12%, transparent); padding-bottom: .5rem; }
/* Streamlit's menu, with the choice of the theme, stands at the end of the bar; its header lies over the page. */
[data-testid="stHeader"] { background: none; }
[data-testid="stHeader"], [data-testid="stHeader"] * { pointer-events: none !important; }
[data-testid="stHeader"] :is(a, a *, button, button *) { pointer-events: auto !important; }
.st-key-bar { padding-right: max(0rem, 3.2rem - clamp(1rem, 3vw, 3rem)); }
/* That a page works is said below the bar, beside the heading. */
@media (min-width: 769px) { [data-testid="stStatusWidget"] { position: fixed; top: 4.4rem; right: 1.2rem; } }
/* Without a menu the logo stands over the page. */
.st-key-no-workspace { padding-top: 2.5rem; }
[class*="st-key-menu-"] { padding-left: 1.6rem; font-size: .875rem; }
/* Work in progress has a place of its own over the page: what comes and goes there moves nothing. */
[data-testid="stLayoutWrapper"]:has(> .st-key-jobs) { position: fixed; right: 1rem; bottom: 1rem; z-index: 90;
  width: min(26rem, calc(100vw - 2rem)); }
.st-key-jobs > * > [class*="st-key-job-"], .st-key-jobs [class*="st-key-job-"] {
  background: var(--ground); box-shadow: 0 2px 14px rgb(0 0 0 / .18); }
[data-testid="stMetricValue"], table.ts { font-variant-numeric: tabular-nums; }
[data-testid="stApp"] :is([data-testid="stMetricLabel"] p, [data-testid="stMetricValue"] *) {
  white-space: normal; overflow: visible; }
table.ts { border-collapse: collapse; width: 100%; font-size: .875rem; }
table.ts th { font-weight: 500; text-align: left; padding: .3rem .5rem;
  border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
table.ts td { padding: .4rem .5rem; border-bottom: 1px solid color-mix(in srgb, currentColor 10%, transparent); }
table.ts th.n, table.ts td.n { text-align: right; white-space: nowrap; }
table.ts td.name { white-space: nowrap; }
table.ts td.name a { color: inherit; text-underline-offset: .2em; }
table.ts th.held { min-width: 8rem; }
table.ts th[title] { cursor: help; text-decoration: underline dotted color-mix(in srgb, currentColor 45%, transparent);
  text-underline-offset: .25em; }
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
table.ts .range { font-size: .9em; opacity: .75; }
table.ts span.bar { display: block; position: relative; height: .8rem; min-width: 5rem; border-radius: 3px;
  background: color-mix(in srgb, currentColor 9%, transparent); }
table.ts span.bar i { display: block; height: 100%; border-radius: 3px; }
table.ts span.bar b { position: absolute; top: -.2rem; bottom: -.2rem; width: 2px; background: currentColor; }
[data-testid="stCaptionContainer"], [data-testid="stCaptionContainer"] p { color: inherit !important; }
[data-testid="stCaptionContainer"] { opacity: .78; }
/* There the header of Streamlit, with the button of the menu, lies over the page's first line. */
@media (max-width: 768px) { [data-testid="stMainBlockContainer"] { padding-top: 3.9rem; }
  [data-testid="stHeader"] { background: var(--ground); } .st-key-bar { padding-right: 0; } }
@media (min-width: 641px) and (max-width: 1199px) { /* a share of a narrow page would cut the controls' tables */
  [class*="st-key-picture-beside-"] > [data-testid="stHorizontalBlock"] > [data-testid="stColumn"]:first-child,
  [class*="st-key-picture-beside-"] > * > [data-testid="stHorizontalBlock"] > [data-testid="stColumn"]:first-child {
    flex: none; width: 17rem; }
  [class*="st-key-picture-beside-"] > [data-testid="stHorizontalBlock"] > [data-testid="stColumn"]:last-child,
  [class*="st-key-picture-beside-"] > * > [data-testid="stHorizontalBlock"] > [data-testid="stColumn"]:last-child {
    flex: 1 1 0; min-width: 0; }
  [class*="st-key-picture-beside-"] [data-testid="stColumn"] [data-testid="stColumn"]:has([data-testid="stMetric"]) {
    min-width: 11rem; } }
@media (max-width: 640px) { /* the picture before its controls */
  [class*="st-key-picture-beside-"] > [data-testid="stHorizontalBlock"],
  [class*="st-key-picture-beside-"] > * > [data-testid="stHorizontalBlock"],
  [class*="st-key-picture-below-"] { flex-direction: column-reverse; }
  [class*="st-key-picture-beside-"] [data-testid="stColumn"] { flex: none; width: 100%; } }
/* The dark theme's accent carries white text on buttons; as text of its own it would be too dim. */
[role="tab"][aria-selected="true"], [role="tab"][aria-selected="true"] *,
[role="radio"][data-variant][aria-checked="true"],
[role="radio"][data-variant][aria-checked="true"] *,
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
    """Run the app once: draw the menu and the bar, then the chosen page."""
    trust.configure_jobs()
    st.html(STYLE)
    with fault_boundary():
        opened = workspace.find()
        if opened is None:
            _render_unknown_workspace()
            return
        page = menu(opened)
        if page.url_path not in navigation.BARE_PAGES:
            bar.render(opened)
        page.run()


def open_page(
    title: str, *failures: str, apart: Callable[[Workspace], Collection[str]] | None = None
) -> Workspace:
    """Draw the heading of a page, messages of the last action, and running jobs; return the open workspace.

    `failures` are the kinds of work whose failures belong here; the page itself reports those of the jobs `apart`.
    """
    opened = opened_workspace()
    render_head(opened, title, failures=failures, apart=apart(opened) if apart else ())
    return opened


def opened_workspace() -> Workspace:
    """The open workspace; where the address names an unknown one, say so and stop the page."""
    opened = workspace.find()
    if opened is None:
        _render_unknown_workspace()
        st.stop()
    return opened


def render_head(
    opened: Workspace,
    title: str,
    *window: str,
    failures: Collection[str] = (),
    apart: Collection[str] = (),
    about: str | None = None,
) -> None:
    """Draw the heading of a page, messages of the last action, running jobs, and the `failures` of these kinds.

    The failures leave out the jobs `apart`, and with `about` all jobs on other things. `window` is the title of the
    window, where it differs from the page's.
    """
    set_window_title(*(window or (title,)))
    st.title(escape_markdown(title), anchor=False)
    # Messages come and go in one container: what follows keeps its position, so Streamlit does not redraw it.
    with st.container(key="notices"):
        render_store_trouble(opened)
        for text in st.session_state.pop("said", []):
            st.success(escape_markdown(text))
        job_panel.render(opened, failures, apart, about)


def render_store_trouble(opened: Workspace) -> None:
    """Warn about what keeps the store from writing, where something does."""
    if trouble := opened.store.disk_warning():
        st.warning(escape_markdown(trouble))


def _render_unknown_workspace() -> None:
    """Say that the address names an unknown workspace, and offer the stored ones."""
    requested = st.query_params[workspace.PARAMETER]
    set_window_title("Unknown workspace")
    with st.container(key="no-workspace"):
        st.title("There is no such workspace", anchor=False)
    st.error(
        escape_markdown(
            f"The address names the workspace {requested!r}, which is not here (any more): it was deleted, "
            "or the link is of another server. Nothing is shown in its place, and the address stays as it is."
        )
    )
    if workspace.store().deleted_name(requested) is not None and st.button(
        "Undo the deletion", key="unknown-undo"
    ):
        with fault_boundary():
            workspace.store().undelete(requested)
            st.rerun()
    st.header("Workspaces here", anchor=False)
    others = workspace_list.list_workspaces(workspace.store())
    for summary in others[:MOST_OFFERED]:
        with st.container(horizontal=True, vertical_alignment="center"):
            if st.button(summary.name, key=f"instead-{summary.id}"):
                _open_instead(summary.id)
            st.caption(escape_markdown(summary.description))
    if not others:
        st.caption("None has anything in it yet.")
    if st.button("Begin with an empty workspace", key="instead-new", type="primary"):
        _open_instead(None)


def _open_instead(identity: str | None) -> None:
    del st.query_params[workspace.PARAMETER]
    workspace.use(workspace.fresh() if identity is None else workspace.store().open(identity))
    st.rerun()


def set_window_title(*parts: str) -> None:
    """Set the title of the browser's tab, so that users can tell tabs apart, and the menu with the theme."""
    st.set_page_config(page_title=" · ".join((*parts, "TorchSplit")), menu_items={"About": ABOUT})


def picture_beside(name: str) -> DeltaGenerator:
    """A container of columns, controls left and a picture right; where the window is narrow the picture comes first."""
    return st.container(key=f"picture-beside-{name}")


def picture_below(name: str) -> DeltaGenerator:
    """A container of controls and a picture below them; where the window is narrow the picture comes first."""
    return st.container(key=f"picture-below-{name}")


def notify(text: str) -> None:
    """Tell the user after the next rerun what the app did."""
    st.session_state.setdefault("said", []).append(text)


@contextlib.contextmanager
def fault_boundary() -> Iterator[None]:
    """Show a user's fault as one red line; the rest of the page draws, and the store loses nothing."""
    try:
        yield
    except InputFault as fault:
        st.error(escape_markdown(str(fault)))

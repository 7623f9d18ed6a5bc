"""A button that copies the page's address. With it the browser reports its theme and the id of its tab, and remembers
the chosen theme and the workspace opened last.

A chart has the colours of the theme that the page was drawn with, and Streamlit does not draw it anew when the theme
changes. The report of the new theme does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import streamlit as st

from app.components import browser_tab
from app.components.keys import component

NAME = "torchsplit_share"
HTML = '<button type="button" class="share" aria-live="polite">Copy link</button>'
CSS = """
.share { font: inherit; font-size: .875rem; font-family: var(--st-font); color: var(--st-text-color);
  background: transparent; border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius);
  min-height: 2.4rem; padding: .25rem .75rem; cursor: pointer; white-space: nowrap; }
.share:hover { border-color: var(--st-primary-color); color: var(--st-link-color); }
.share:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px; }
"""
JS = """
const SHOWN_MS = 1600, YEAR_S = 31536000, HANDED_S = 30;
// The library keeps a theme for the path at which a window was opened; here it is one for all pages.
function carryTheme(pages) {
  const key = path => `stActiveTheme-${path}-v2`;
  const opened = new URL(performance.getEntriesByType("navigation")[0].name).pathname;
  const base = opened.slice(0, opened.lastIndexOf("/") + 1), chosen = localStorage.getItem(key(opened));
  if (chosen !== null) for (const page of pages) localStorage.setItem(key(base + page), chosen);
}
// A tab keeps its id over reloads, and a cookie has it while its page is loaded again: the first run knows it then.
// Another tab that is opened in this moment is handed it too, and makes one of its own.
function settleTab({ cookie, id, handed }, tell) {
  const lay = (value, seconds) =>
    document.cookie = `${cookie}=${value}; path=/; max-age=${seconds}; samesite=strict`;
  let own;
  try {
    own = sessionStorage.getItem(cookie);
    if (!own) {
      const made = crypto.getRandomValues(new Uint8Array(8));
      own = handed ? Array.from(made, one => one.toString(16).padStart(2, "0")).join("") : id;
      sessionStorage.setItem(cookie, own);
    }
  } catch { return; } // a browser that keeps nothing
  if (!window.torchsplitTab) {
    window.torchsplitTab = own;
    lay("", 0);
    addEventListener("pagehide", () => lay(own, HANDED_S));
  }
  if (own !== id) tell("tab", own);
}
function tellTheme() {
  const { app, drawn, told, tell } = window.torchsplitTheme;
  const seen = getComputedStyle(app).colorScheme;
  if (!drawn || seen === drawn || seen === told) return;
  window.torchsplitTheme.told = seen;
  tell("theme", seen);
}
export default function ({ parentElement, data, setStateValue }) {
  if (!window.torchsplitTheme) {
    const app = document.querySelector('[data-testid="stApp"]');
    window.torchsplitTheme = { app };
    document.addEventListener("visibilitychange", () => carryTheme(data.pages));
    new MutationObserver(tellTheme).observe(app, { attributeFilter: ["class"] });
  }
  const theme = window.torchsplitTheme;
  if (theme.told === data.theme) theme.told = undefined;
  Object.assign(theme, { drawn: data.theme, tell: setStateValue });
  tellTheme();
  settleTab(data.tab, setStateValue);
  if (data.workspace)
    document.cookie =
      `${data.cookie}=${encodeURIComponent(data.workspace)}; path=/; max-age=${YEAR_S}; samesite=strict`;
  const button = parentElement.querySelector(".share");
  if (!button) return;
  button.onclick = async () => {
    try {
      await copyText(document.location.href);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Copy it from the address bar";
    }
    clearTimeout(button.later);
    button.later = setTimeout(() => { button.textContent = "Copy link"; }, SHOWN_MS);
  };
}
"""


SCRIPT = Path(__file__).with_name("clipboard.js").read_text(encoding="utf-8") + JS
_component = partial(component, NAME, {"html": HTML, "css": CSS, "js": SCRIPT})


def share(cookie: str, workspace: str | None, pages: Sequence[str]) -> None:
    """The button. The browser keeps `workspace` under `cookie` for a visit without an address; the paths `pages` share
    one theme."""
    handed = browser_tab.previous_identity() is not None
    data = {
        "cookie": cookie, "workspace": workspace, "pages": list(pages), "theme": st.context.theme.type,
        "tab": {"cookie": browser_tab.COOKIE, "id": browser_tab.identity(), "handed": handed},
    }  # fmt: skip

    def set_identity() -> None:
        browser_tab.set_identity(st.session_state["share"].get("tab"))

    _component()(data=data, key="share", on_theme_change=lambda: None, on_tab_change=set_identity)

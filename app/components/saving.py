"""Buttons that export pictures as SVG and PNG, tables as CSV, and both to the clipboard.

The browser saves a picture as it is seen, in the page's colours, so the server sends nothing twice. A table goes to
the clipboard as tab-separated text, which spreadsheets and chats take as a table.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from app.components.keys import component, component_key
from app.format.glossary import column_explanations
from torchsplit_core.pictures.numbers import UNKNOWN, escape_markdown
from torchsplit_core.tables.cell_parsing import escape_formula

NAME = "torchsplit_saving"
HTML = '<div class="saving" data-saving><span data-lead></span><span role="status"></span></div>'
CSS = """
.saving { display: flex; flex-wrap: wrap; gap: .2rem .4rem; align-items: center; font: 400 .8rem var(--st-font);
  color: var(--st-text-color); }
.saving span { opacity: .8; }
.saving span:empty { display: none; }
.saving button { font: inherit; color: inherit; cursor: pointer; background: var(--st-background-color);
  border: 1px solid color-mix(in srgb, currentColor 45%, transparent); border-radius: 8px; padding: .1rem .6rem; }
.saving button:hover { border-color: var(--st-link-color); color: var(--st-link-color); }
.saving button:focus-visible { outline: 2px solid var(--st-link-color); outline-offset: 2px; }
"""
SCRIPTS = tuple(Path(__file__).with_name(name) for name in ("clipboard.js", "saving.js"))
MOST_COPIED = 20_000
"""Cells up to which the page has a table's text for the clipboard; a larger table is exported as a file."""

Rows = pd.DataFrame | Mapping[str, Any] | Sequence[Mapping[str, Any]]


def script() -> str:
    """The JavaScript of the buttons."""
    return "".join(part.read_text(encoding="utf-8") for part in SCRIPTS)


_component = partial(component, NAME, {"html": HTML, "css": CSS, "js": script(), "isolate_styles": False})


@contextlib.contextmanager
def exportable(what: str, file: str, *, key: str) -> Iterator[None]:
    """Give the chart or drawing inside buttons below it: SVG and PNG under the name `file`, and Copy.

    `what` names the picture for screen readers: "Slices".
    """
    with st.container(key=f"saved-{key}"):
        yield
        _buttons(key, what, file_name(file), lead="Save picture", instead="PNG")


def exportable_table(markup: str, what: str, file: str, *, key: str) -> None:
    """A table of HTML with buttons below it: CSV under the name `file`, and Copy, both as it reads.

    `what` names the table for screen readers.
    """
    with st.container(key=f"saved-{key}"):
        st.html(markup)
        _buttons(key, what, file_name(file), lead="Save table", instead="CSV", listed=True)


def _buttons(key: str, what: str, file: str, **more: Any) -> None:
    _component()(data={"what": what, "file": file, **more}, key=component_key(f"saving-{key}"))


def table(
    rows: Rows, file: str, *, key: str, alt: str, on_row: Callable[[int], None] | None = None, **more: Any
) -> Any:
    """A table without row numbers, its heads explained, and a button for the same as CSV under the name `file`.

    `on_row` is called with the place of a row that the user selects, before the page runs again. Returns what
    `st.dataframe` returns: the selection, where `more` asks for one.
    """

    def selected() -> None:
        places = st.session_state[key]["selection"]["rows"]
        if on_row is not None and places:
            on_row(places[0])

    if on_row is not None:
        more |= {"selection_mode": "single-row", "on_select": selected}
    frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
    more["column_config"] = column_config(frame, more.get("column_config"))
    shown = st.dataframe(frame, hide_index=True, placeholder=UNKNOWN, alt=alt, key=key, **more)
    csv_button(frame, file, key=key, alt=alt)
    return shown


def column_config(frame: pd.DataFrame, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The configuration of a table's columns: that `given`, with the glossary's explanation of heads without one."""
    config = {name: dict(column) for name, column in (given or {}).items()}
    for name, meaning in column_explanations(map(str, frame.columns)).items():
        column = config.setdefault(name, dict(st.column_config.Column()))
        column["help"] = column.get("help") or escape_markdown(meaning)
    return config


def csv_button(frame: pd.DataFrame, file: str, *, key: str, alt: str) -> None:
    """The buttons alone, file and clipboard, for a table that the page draws itself."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.download_button(
            "Table (CSV)", lambda: csv_of(frame), f"{file_name(file)}.csv", "text/csv",
            on_click="ignore", key=f"csv-{key}", type="tertiary", icon=":material/download:", help=f"{alt}, as CSV",
        )  # fmt: skip
        if frame.size <= MOST_COPIED:
            _buttons(f"table-{key}", alt, file, lead="", instead="CSV", text=csv_of(frame, between="\t"))


def csv_of(frame: pd.DataFrame, between: str = ",") -> str:
    """The table as CSV; an apostrophe precedes a text that a spreadsheet would run as a formula."""
    safe = frame.map(lambda cell: escape_formula(cell) if isinstance(cell, str) else cell)
    return str(safe.rename(columns=lambda name: escape_formula(str(name))).to_csv(index=False, sep=between))


def file_name(text: str) -> str:
    """A file name for any system, forbidden characters replaced: sample-bert@large for "sample:bert@large"."""
    return re.sub(r"[\x00-\x1f/\\:*?\"<>|\s]+", "-", text).strip("-.") or "file"

"""Rows of fields in which figures are edited: one row a thing, one column a figure of it, a slider beside one of them.

The fields are the browser's own (range, text, select, checkbox), so that keys, roles and names come with them, and
one component has them all: a widget of the library for each of a hundred fields would be drawn anew at every move.
What stands in them is what the page hands over; a field that the hand is ahead on is left alone until the page has
answered it. While an answer is under way nothing is reported; the newest of each field follows when it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from app.components.keys import component_key

NAME = "torchsplit_field_rows"
FOLDER = Path(__file__).parent
ADD, REMOVE, RESTORE = "add", "remove", "restore"
"""Fields of an edit that is about a whole row. The value of ADD has that of each field of the row, by column."""
Kind = Literal["figure", "text", "check", "choice", "choices"]
Options = Sequence[tuple[str, str]]
"""Values and what is shown for each."""


@dataclass(frozen=True, slots=True)
class Column:
    """A field that rows have. `width` holds in a wide drawer; in a narrow one it takes `quarters` of the row.

    `empty` is shown where nothing is given. With `slider` the row's stops stand on a slider beside the field.
    """

    id: str
    label: str
    kind: Kind = "figure"
    width: str = "4rem"
    quarters: int = 1
    help: str = ""
    empty: str = ""
    slider: bool = False
    options: Options = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A row. `about` names it for who does not see it, `name` is what is shown; its fields are those with a value.

    `before` has the values as stored of those that differ, `faults` what is wrong with what was typed, and `instead`
    the values that hold in place of that. A row that is `gone` was removed and can be put back; a `blank` one becomes
    a row when all its fields are filled.
    """

    id: str
    about: str
    values: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    colour: str = ""
    note: str = ""
    below: bool = False
    state: Literal["", "new", "gone", "blank"] = ""
    before: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    stops: Mapping[str, Sequence[tuple[float, str]]] = field(default_factory=dict)
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    locked: Sequence[str] = ()
    remove: str = ""

    def as_data(self) -> dict[str, Any]:
        """The row as the browser takes it, without what is empty."""
        fields = {name: getattr(self, name) for name in Row.__dataclass_fields__}
        return {"values": {}} | {name: value for name, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class Edit:
    """What was done to one field of a row: a text that was typed, a slider's number, a choice, on or off."""

    row: str
    field: str
    value: Any


@st.cache_resource
def _component() -> Any:
    """Registered once a server, not once a run."""
    js, css = (FOLDER.joinpath(f"field_rows.{kind}").read_text(encoding="utf-8") for kind in ("js", "css"))
    return st.components.v2.component(
        NAME, html='<div class="field-rows"></div>', css=css, js=js, isolate_styles=False
    )


def field_rows(
    label: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    key: str,
    on_edits: Callable[[Sequence[Edit]], None],
    more: Sequence[Column] = (),
    fold: str = "",
    named: bool = False,
    stacked: bool = False,
) -> None:
    """The rows; `on_edits` is called with what was edited before the page runs again.

    The fields of the columns `more` fold, under a button that says `fold` or dots alone. `named`: each row begins
    with its name, the slider below it. `stacked`: each field has its label above it at any width, as in a form.
    """
    key = component_key(key)

    def edited() -> None:
        on_edits(_parse_edits(st.session_state[key].get("edits")))

    data = {
        "label": label, "fold": fold, "named": named, "stacked": stacked, "rows": [row.as_data() for row in rows],
        "columns": [_column_data(column) for column in columns], "more": [_column_data(column) for column in more],
        "answered": _last_serial(st.session_state.get(key)),
    }  # fmt: skip
    _component()(data=data, key=key, on_edits_change=edited)


def _column_data(column: Column) -> dict[str, Any]:
    return {name: getattr(column, name) for name in Column.__dataclass_fields__}


def _last_serial(state: Any) -> float:
    """The number of the last report that has come."""
    report = state.get("edits") if state else None
    number = report.get("serial") if isinstance(report, Mapping) else None
    return number if isinstance(number, (int, float)) else 0


def _parse_edits(report: Any) -> tuple[Edit, ...]:
    listed = report.get("edits") if isinstance(report, Mapping) else None
    return tuple(
        Edit(str(entry.get("row")), str(entry.get("field")), entry.get("value"))
        for entry in (listed if isinstance(listed, list) else [])
        if isinstance(entry, Mapping)
    )

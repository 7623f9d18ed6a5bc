"""Rows of fields to edit figures: a row for each item, a column for each of its figures, a slider beside one of them.

The fields are the browser's own (range, text, select, checkbox), with their keys, roles and names. One component
has them all, because Streamlit would draw a widget for each of a hundred fields anew at every move. The page sets the
values; a field that the user edits is left alone until the page has answered. While the page works on an answer nothing
is reported until the user leaves the rows, perhaps for a button; then the newest value of each field follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from app.components.keys import component, component_key

NAME = "torchsplit_field_rows"
FOLDER = Path(__file__).parent
ADD, REMOVE, RESTORE = "add", "remove", "restore"
"""Fields of an edit of a whole row. The value of ADD has the value of each field of the row, by column."""
Kind = Literal["figure", "text", "check", "choice", "choices"]
Options = Sequence[tuple[str, str]]
"""Values and their labels."""


@dataclass(frozen=True, slots=True)
class Column:
    """A field of the rows. `width` holds in a wide drawer; in a narrow one the field takes `quarters` of the row.

    `empty` is the placeholder. With `slider` a slider beside the field has the row's stops.
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
    """A row. `about` names it for screen readers, `name` is shown; its fields are those with a value.

    `before` has the stored values of fields that differ, `faults` what is wrong with a typed value, and `instead` the
    value that holds in its place. A row that is `gone` was removed and can be restored; a `blank` one becomes a row
    once all its fields are filled.
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
        """The row as the browser takes it, without empty entries."""
        fields = {name: getattr(self, name) for name in Row.__dataclass_fields__}
        return {"values": {}} | {name: value for name, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of one field of a row: a typed text, a slider's number, a choice, on or off."""

    row: str
    field: str
    value: Any


_PARTS: dict[str, Any] = {"html": '<div class="field-rows"></div>', "isolate_styles": False}
_PARTS |= {kind: FOLDER.joinpath(f"field_rows.{kind}").read_text(encoding="utf-8") for kind in ("js", "css")}
_component = partial(component, NAME, _PARTS)


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
    """Show the rows; `on_edits` is called with the edits before the page runs again.

    The fields of the columns `more` fold under a button labelled `fold`, or with dots alone. `named`: each row begins
    with its name, the slider below it. `stacked`: each field has its label above it at any width, as in a form.
    """
    key = component_key(key)
    last = f"{key} last report"

    def edited() -> None:
        edits = edits_since(st.session_state[key].get("edits"), st.session_state.get(last, 0))
        st.session_state[last] = _last_serial(st.session_state[key])
        on_edits(edits)

    data = {
        "label": label, "fold": fold, "named": named, "stacked": stacked, "rows": [row.as_data() for row in rows],
        "columns": [_column_data(column) for column in columns], "more": [_column_data(column) for column in more],
        "answered": _last_serial(st.session_state.get(key)),
    }  # fmt: skip
    _component()(data=data, key=key, on_edits_change=edited)


def _column_data(column: Column) -> dict[str, Any]:
    return {name: getattr(column, name) for name in Column.__dataclass_fields__}


def _last_serial(state: Any) -> float:
    """The number of the last report that arrived."""
    report = state.get("edits") if state else None
    number = report.get("serial") if isinstance(report, Mapping) else None
    return number if isinstance(number, (int, float)) else 0


def edits_since(report: Any, last: float) -> tuple[Edit, ...]:
    """The edits of a report that no report up to the number `last` had: until it is answered, each has them again."""
    listed = report.get("edits") if isinstance(report, Mapping) else None
    return tuple(
        Edit(str(entry.get("row")), str(entry.get("field")), entry.get("value"))
        for entry in (listed if isinstance(listed, list) else [])
        if isinstance(entry, Mapping)
        and isinstance(since := entry.get("since"), (int, float))
        and since > last
    )

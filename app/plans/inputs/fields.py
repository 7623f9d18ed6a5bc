"""Fields of the inputs: values as texts, texts as values, and rows with what was changed. No streamlit in here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, TypeVar

from app.components.field_rows import ADD, REMOVE, RESTORE, Column, Edit, Row
from app.plans.inputs.draft_editor import DraftEditor, Table
from torchsplit_core.pictures.numbers import exact
from torchsplit_core.values import InputFault
from torchsplit_core.values.errors import quoted

Item = TypeVar("Item")
FACTORS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""The stops of a slider, as multiples of the stored value."""


@dataclass(frozen=True, slots=True)
class ItemMatch:
    """The places of an item in the stored request and in the draft; None where it is missing."""

    stored: int | None
    current: int | None


def match_items(
    stored: Sequence[Any], current: Sequence[Any], kind: Callable[[Any], Any] | None = None
) -> tuple[ItemMatch, ...]:
    """Match the items of both lists. Unequal items of one `kind` match as edited; without `kind` only equal ones match.

    New items are at the end, so that the items of a list that did not shrink match by place.
    """
    if list(stored) == list(current) or (kind is not None and len(current) >= len(stored)):
        places = range(len(current))
        return tuple(ItemMatch(place if place < len(stored) else None, place) for place in places)
    matches: list[ItemMatch] = []
    for tag, low, high, start, stop in SequenceMatcher(None, stored, current, autojunk=False).get_opcodes():
        if tag == "equal":
            matches += [ItemMatch(low + step, start + step) for step in range(high - low)]
            continue
        inner = [ItemMatch(place, None) for place in range(high - low)]
        inner += [ItemMatch(None, place) for place in range(stop - start)]
        if kind is not None:
            inner = list(match_items([*map(kind, stored[low:high])], [*map(kind, current[start:stop])]))
        for match in inner:
            was = None if match.stored is None else low + match.stored
            matches.append(ItemMatch(was, None if match.current is None else start + match.current))
    return tuple(matches)


def edit_items(
    stored: Sequence[Item],
    current: Sequence[Item],
    field_edit: Edit,
    kind: Callable[[Item], Any],
    new: Callable[[Mapping[str, str]], Item],
    change: Callable[[Item, Item | None, Edit], Item],
) -> tuple[Item, ...]:
    """The current items with one edit; its row is a place among the matches.

    `new` makes an item of the chosen values, `change` edits an item, given the stored one. An edit of an item that is
    gone changes nothing.
    """
    matches = match_items(stored, current, kind)
    if field_edit.field == ADD:
        return (*current, new(field_edit.value)) if all(field_edit.value.values()) else tuple(current)
    match = matches[int(field_edit.row)] if int(field_edit.row) < len(matches) else ItemMatch(None, None)
    was = None if match.stored is None else stored[match.stored]
    if match.current is None:
        if field_edit.field != RESTORE or was is None:
            return tuple(current)
        return restore_item(current, was, matches, int(field_edit.row))
    changed = () if field_edit.field == REMOVE else (change(current[match.current], was, field_edit),)
    return (*current[: match.current], *changed, *current[match.current + 1 :])


def restore_item(
    items: Sequence[Item], item: Item, matches: Sequence[ItemMatch], place: int
) -> tuple[Item, ...]:
    """The items with the one that is missing at a match, restored to its place."""
    before = sum(match.current is not None for match in matches[:place])
    return (*items[:before], item, *items[before:])


def number(text: Any, label: str, *, empty: float | None = None, needed: bool = False) -> float | None:
    """The number of a field. Raises InputFault for text that is no number, and for an empty field that is `needed`."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    written = "".join(str(text).split())
    if not written:
        if needed:
            raise InputFault(label, "is empty", "Enter a number above 0.")
        return empty
    try:
        return float(written)
    except ValueError:
        remedy = "Write a point for decimals: 1.5." if "," in written else "Enter a number, for example 1.5."
        raise InputFault(label, f"is {quoted(str(text))}, not a number", remedy) from None


def whole_number(text: Any, label: str) -> int:
    """The whole number of a field. Raises InputFault for anything else."""
    fault = InputFault(label, f"is {quoted(str(text))}, not a whole number", "Enter 1, 2, 3, …")
    try:
        value = number(text, label, needed=True)
    except InputFault:
        if not str(text).strip():
            raise
        raise fault from None
    if value is None or not value.is_integer():
        raise fault
    return int(value)


def build_row(
    editor: DraftEditor,
    table: Table,
    id: str,
    about: str,
    columns: Sequence[Column],
    now: Mapping[str, Any],
    was: Mapping[str, Any] | None,
    **look: Any,
) -> Row:
    """The row of an item with the values `now`, marked where they differ from the stored values `was`."""
    values, before, faults, instead = {}, {}, {}, {}
    for column in columns:
        if column.id not in now:
            continue
        value = now[column.id]
        values[column.id] = _value(column, value)
        if was is not None and column.id in was and was[column.id] != value:
            before[column.id] = _format_value(column, was[column.id])
        typed = editor.typed.get((table, id, column.id))
        if typed is not None:
            faults[column.id], instead[column.id] = typed.words, _format_value(column, value)
            values[column.id] = typed.value
    state = "new" if was is None else ""
    return Row(id, about, values, before=before, faults=faults, instead=instead, **{"state": state, **look})


def _value(column: Column, value: Any) -> Any:
    """The value for the browser's field."""
    if column.kind in ("check", "choices"):
        return value
    if value is None:
        return ""
    return exact(value) if column.kind == "figure" else str(value)


def _format_value(column: Column, value: Any) -> str:
    """The value as text beside the field."""
    if column.kind == "check":
        return "on" if value else "off"
    if column.kind == "choice":
        return dict(column.options).get(value, str(value))
    if column.kind == "choices":
        return ", ".join(value) or "none"
    return _value(column, value) or column.empty or "none"

"""Reads the cells of a record by column name; turns a bad cell into the record's refusal, here alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torchsplit_core.tables import cell_parsing
from torchsplit_core.tables.cell_parsing import BadCell, CellFault
from torchsplit_core.tables.sheet import Record, Sheet
from torchsplit_core.values import quoted, suggestion

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """Index and file name of each column; `defaults` are read for a missing column or an empty cell."""

    index_of: Mapping[str, int]
    named: Mapping[str, str]
    defaults: Mapping[str, str]
    width: int
    decimal_comma: bool


def column_layout(
    sheet: Sheet, mapping: Mapping[str, str] | None = None, defaults: Mapping[str, str] | None = None
) -> ColumnLayout:
    """The layout by `mapping` (our column → the file's); without a mapping by the file's own names."""
    named = dict(mapping) if mapping is not None else {name: name for name in sheet.header}
    index_of = {ours: sheet.header.index(theirs) for ours, theirs in named.items()}
    return ColumnLayout(index_of, named, dict(defaults or {}), len(sheet.header), sheet.decimal_comma)


@dataclass(frozen=True, slots=True)
class RecordFields:
    """The cells of one record. Its methods raise CellFault with the column they read."""

    record: Record
    layout: ColumnLayout

    def text(self, column: str) -> str:
        index = self.layout.index_of.get(column)
        cell = self.record.cells[index] if index is not None and index < len(self.record.cells) else ""
        return cell or self.layout.defaults.get(column, "")

    def has(self, column: str) -> bool:
        return not cell_parsing.is_missing(self.text(column))

    def read(self, column: str, reader: Callable[[str], Value]) -> Value:
        """Parse the cell with `reader`, a function of `cell_parsing` or another that raises CellFault."""
        try:
            return reader(self.text(column))
        except CellFault as fault:
            fault.column = fault.column or column
            raise

    def name(self, column: str) -> str:
        return self.read(column, cell_parsing.parse_name)

    def count(self, column: str, largest: int) -> int:
        comma = self.layout.decimal_comma
        return self.read(
            column, lambda text: cell_parsing.parse_count(text, decimal_comma=comma, largest=largest)
        )

    def positive(self, column: str) -> float:
        return self.read(
            column, lambda text: cell_parsing.parse_positive(text, decimal_comma=self.layout.decimal_comma)
        )

    def not_negative(self, column: str) -> float:
        return self.read(
            column,
            lambda text: cell_parsing.parse_not_negative(text, decimal_comma=self.layout.decimal_comma),
        )

    def optional(self, column: str) -> float | None:
        """A number of 0 or more; None if the cell is empty."""
        return self.not_negative(column) if self.has(column) else None

    def word(self, column: str, known: tuple[str, ...], default: str) -> str:
        """One of the `known` words, in lower case; `default` if the cell is empty."""
        text = self.text(column).lower() if self.has(column) else default
        if text not in known:
            raise CellFault(
                f"is {quoted(text)}, not a known value", suggestion(text, known, "values"), column
            )
        return text


def read_record(
    record: Record, layout: ColumnLayout, read: Callable[[RecordFields], Value]
) -> Value | BadCell:
    """The result of `read`, or the first bad cell."""
    if any(record.cells[layout.width :]):
        return BadCell(
            record.line,
            "",
            f"has {len(record.cells)} cells, more than the {layout.width} of the header",
            "Quote a cell that contains the delimiter, and write decimals with a point.",
        )
    fields = RecordFields(record, layout)
    try:
        return read(fields)
    except CellFault as fault:
        name = layout.named.get(fault.column, fault.column)
        return BadCell(record.line, name, fault.problem, fault.remedy)


def read_records(
    records: Iterable[Record], layout: ColumnLayout, read: Callable[[RecordFields], Value]
) -> tuple[list[Value], list[BadCell]]:
    """The results of `read`, and the first bad cell of each record that cannot be read."""
    values: list[Value] = []
    bad: list[BadCell] = []
    for record in records:
        value = read_record(record, layout, read)
        if isinstance(value, BadCell):
            bad.append(value)
        else:
            values.append(value)
    return values, bad

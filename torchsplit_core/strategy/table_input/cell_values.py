"""Cells of a training table as numbers: an empty cell is None; anything but a number raises an error."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from torchsplit_core.strategy.table_input.errors import RowError

LARGEST = 10**9
"""A larger count is a typing error."""
MISSING = frozenset({"", "-", "n/a", "na", "nan", "none", "null", "?"})


def text(row: Mapping[str, str], column: str) -> str:
    """The cell stripped and in lower case; empty if it says that there is nothing."""
    cell = (row.get(column) or "").strip()
    return "" if cell.lower() in MISSING else cell


def number(row: Mapping[str, str], column: str) -> float | None:
    """A number above 0, None if the cell is empty. Raises RowError for anything else."""
    cell = text(row, column)
    if not cell:
        return None
    try:
        value = float(cell.replace("_", ""))
    except ValueError:
        raise RowError(f"{column} is {cell[:40]!r}, no number") from None
    if not isfinite(value) or value <= 0:
        raise RowError(f"{column} is {cell[:40]}, and it is above 0")
    return value


def count(row: Mapping[str, str], column: str) -> int | None:
    """An integer from 1, None if the cell is empty. Raises RowError for anything else."""
    value = number(row, column)
    if value is None:
        return None
    if value != int(value) or value > LARGEST:
        raise RowError(f"{column} is {text(row, column)[:40]}, no whole number up to {LARGEST}")
    return int(value)

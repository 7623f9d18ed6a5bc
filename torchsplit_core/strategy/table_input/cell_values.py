"""Cells of a training table as numbers: empty is None, anything that is no number a reason."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from torchsplit_core.strategy.table_input.errors import RowError

LARGEST = 10**9
"""A count above is a slip of the pen."""
MISSING = frozenset({"", "-", "n/a", "na", "nan", "none", "null", "?"})


def text(row: Mapping[str, str], column: str) -> str:
    """The cell without blanks around it, lower case; what says that there is nothing as nothing."""
    cell = (row.get(column) or "").strip()
    return "" if cell.lower() in MISSING else cell


def number(row: Mapping[str, str], column: str) -> float | None:
    """A number above 0, None where the cell is empty. Raises RowFault for anything else."""
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
    """A whole number from 1, None where the cell is empty. Raises RowFault for anything else."""
    value = number(row, column)
    if value is None:
        return None
    if value != int(value) or value > LARGEST:
        raise RowError(f"{column} is {text(row, column)[:40]}, no whole number up to {LARGEST}")
    return int(value)

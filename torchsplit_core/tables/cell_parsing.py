"""Parses one cell into a number or a name, or raises a CellFault that says why it cannot."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NoReturn

from torchsplit_core.values import quoted

MISSING = frozenset({"", "-", "--", "na", "n/a", "#n/a", "none", "null"})
"""What people and spreadsheets write for a missing value (compared in lower case)."""

LARGEST_VALUE = 1e12
SMALLEST_VALUE = 1e-9
"""A throughput, time or size outside this range is a wrong unit or a typing error."""

LONGEST_NAME = 200
"""The limit of the contract files."""

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_COMMA_NUMBER = re.compile(r"[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?")
_NOT_FINITE = frozenset({"nan", "inf", "+inf", "-inf", "infinity", "-infinity", "#num!", "#div/0!"})


@dataclass(frozen=True, slots=True)
class BadCell:
    """Why a row was refused: its line (from 1), the file's column, the problem and the remedy.

    The column is "" if the whole row is at fault.
    """

    line: int
    column: str
    problem: str
    remedy: str

    @property
    def sentence(self) -> str:
        where = f"line {self.line}{f', {self.column}' if self.column else ''}"
        return f"{where}: {self.problem}. {self.remedy}"


class CellFault(Exception):
    """A cell cannot be parsed. The reader of the row adds the line, and the column if the fault names none."""

    def __init__(self, problem: str, remedy: str, column: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.column = column


def is_missing(text: str) -> bool:
    return text.lower() in MISSING


def parse_number(text: str, *, decimal_comma: bool) -> float:
    """Parse a finite number. Raises CellFault for an empty cell, text, NaN, infinity and values beyond ±1e12."""
    if is_missing(text):
        raise CellFault("is empty", "Give the figure, or remove the row.")
    if text.lower() in _NOT_FINITE:
        raise CellFault(f"is {text}, not a finite number", "Measure it again, or remove the row.")
    plain = text
    if decimal_comma and _COMMA_NUMBER.fullmatch(text):
        plain = text.replace(",", ".")
    if not _NUMBER.fullmatch(plain):
        _raise_not_a_number(text)
    value = float(plain)
    if not math.isfinite(value) or abs(value) > LARGEST_VALUE:
        raise CellFault(f"is {text}, beyond {LARGEST_VALUE:g}", "Check the unit.")
    return value


def _raise_not_a_number(text: str) -> NoReturn:
    if re.fullmatch(r"[0-9]{1,3}([,.' ][0-9]{3})+([.,][0-9]+)?", text) or re.fullmatch(
        r"[0-9]+,[0-9]+", text
    ):
        raise CellFault(
            f"is {quoted(text)}, with a decimal comma or a mark between thousands", "Write it like 1234.5."
        )
    if re.match(r"[0-9.]+ ?[a-zA-Zµ%]", text):
        raise CellFault(f"is {quoted(text)}, a number with a unit", "Leave the unit to the column's name.")
    raise CellFault(
        f"is {quoted(text)}, not a number", "Write the figure; a throughput of 0 means that memory ran out."
    )


def parse_positive(text: str, *, decimal_comma: bool) -> float:
    """A number above 0. Raises CellFault otherwise."""
    value = parse_number(text, decimal_comma=decimal_comma)
    if value < SMALLEST_VALUE:
        raise CellFault(f"is {text}, not above 0", "Measure it again, or remove the row.")
    return value


def parse_not_negative(text: str, *, decimal_comma: bool) -> float:
    """A number of 0 or more. Raises CellFault otherwise, and for a positive number below SMALLEST_VALUE."""
    value = parse_number(text, decimal_comma=decimal_comma)
    if value < 0:
        raise CellFault(f"is {text}, below the least value 0", "Measure it again, or remove the row.")
    if 0 < value < SMALLEST_VALUE:
        raise CellFault(f"is {text}, below the least positive value {SMALLEST_VALUE:g}", "Check the unit.")
    return value


def parse_count(text: str, *, decimal_comma: bool, largest: int) -> int:
    """A whole number from 1 to `largest`; 8.0 is 8. Raises CellFault otherwise."""
    value = parse_number(text, decimal_comma=decimal_comma)
    if value != int(value):
        raise CellFault(f"is {text}, not a whole number", "Give a whole number.")
    if value < 1:
        raise CellFault(f"is {text}, below the least value 1", "Give 1 or more.")
    if value > largest:
        raise CellFault(f"is {text}, above the greatest value {largest:,}", "Correct the cell.")
    return int(value)


def parse_name(text: str) -> str:
    """A name of 1 to 200 characters without control characters. Raises CellFault otherwise."""
    text = unescape_formula(text)
    if not text:
        raise CellFault("is empty", "Give the name.")
    if len(text) > LONGEST_NAME:
        raise CellFault(f"has {len(text)} characters, more than {LONGEST_NAME}", "Shorten it.")
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise CellFault(
            f"is {quoted(text)}, which contains a control character", "Remove the line break or tab."
        )
    return text


_FORMULA = re.compile(r"'*[=+\-@\t\r]")
"""Start of a text that a spreadsheet would run as a formula, after any apostrophes that already escape it."""


def escape_formula(text: str) -> str:
    """The text, with an apostrophe before it if a spreadsheet would run it as a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def unescape_formula(text: str) -> str:
    """The inverse of `escape_formula`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text

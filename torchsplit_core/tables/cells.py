"""One cell: text to a number or a name, or the reason why not."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NoReturn

MISSING = frozenset({"", "-", "--", "na", "n/a", "#n/a", "none", "null"})
"""What people and spreadsheets write where there is no value (compared in lower case)."""

LARGEST_VALUE = 1e12
SMALLEST_VALUE = 1e-9
"""Outside of this a throughput, a time or a size is a slip of units or of the pen."""

LONGEST_NAME = 200
"""As the contract's files have it."""

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_COMMA_NUMBER = re.compile(r"[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?")
_NOT_FINITE = frozenset({"nan", "inf", "+inf", "-inf", "infinity", "-infinity", "#num!", "#div/0!"})


@dataclass(frozen=True, slots=True)
class BadCell:
    """Why a row was refused: its line (from 1), the file's column, the cell, the rule, how to mend it."""

    line: int
    column: str
    value: str
    rule: str
    remedy: str

    @property
    def sentence(self) -> str:
        shown = self.value if len(self.value) <= 40 else self.value[:39] + "…"
        return f"line {self.line}, {self.column}: {shown!r} — {self.rule}. {self.remedy}"


class CellFault(Exception):
    """A cell breaks a rule; the reader of the row adds the line, and the column where the fault names none."""

    def __init__(self, rule: str, remedy: str, column: str = "") -> None:
        super().__init__(rule)
        self.rule = rule
        self.remedy = remedy
        self.column = column


def is_missing(text: str) -> bool:
    return text.lower() in MISSING


def number(text: str, *, decimal_comma: bool) -> float:
    """The finite number that a cell holds. Raises CellFault for an empty cell, text, NaN and infinity."""
    if is_missing(text):
        raise CellFault("the cell is empty", "Give the figure, or remove the row.")
    if text.lower() in _NOT_FINITE:
        raise CellFault("a figure is a finite number", "Measure it again, or remove the row.")
    plain = text
    if decimal_comma and _COMMA_NUMBER.fullmatch(text):
        plain = text.replace(",", ".")
    if not _NUMBER.fullmatch(plain):
        _refuse_text(text)
    value = float(plain)
    if not math.isfinite(value) or abs(value) > LARGEST_VALUE:
        raise CellFault(f"a figure is at most {LARGEST_VALUE:g}", "Check the unit.")
    return value


def _refuse_text(text: str) -> NoReturn:
    if re.fullmatch(r"[0-9]{1,3}([,.' ][0-9]{3})+([.,][0-9]+)?", text) or re.fullmatch(
        r"[0-9]+,[0-9]+", text
    ):
        raise CellFault(
            "a number has a decimal point and nothing between its thousands", "Write for example 1234.5."
        )
    if re.match(r"[0-9.]+ ?[a-zA-Zµ%]", text):
        raise CellFault("a cell is a number without a unit", "Leave the unit to the column's name.")
    raise CellFault(
        "the cell is a number", "Write the figure; a throughput of 0 says that the memory did not suffice."
    )


def positive(text: str, *, decimal_comma: bool) -> float:
    """A number above 0. Raises CellFault otherwise."""
    value = number(text, decimal_comma=decimal_comma)
    if value < SMALLEST_VALUE:
        raise CellFault("the figure is above 0", "Measure it again, or remove the row.")
    return value


def not_negative(text: str, *, decimal_comma: bool) -> float:
    """A number of 0 or more. Raises CellFault otherwise; so does a positive one too small to be meant."""
    value = number(text, decimal_comma=decimal_comma)
    if value < 0:
        raise CellFault("the figure is not negative", "Measure it again, or remove the row.")
    if 0 < value < SMALLEST_VALUE:
        raise CellFault(f"the figure is 0 or at least {SMALLEST_VALUE:g}", "Check the unit.")
    return value


def count(text: str, *, decimal_comma: bool, largest: int) -> int:
    """A whole number from 1 to `largest`; 8.0 is 8. Raises CellFault otherwise."""
    value = number(text, decimal_comma=decimal_comma)
    if value != int(value) or not 1 <= value <= largest:
        raise CellFault(f"it is a whole number from 1 to {largest:,}", "Correct the cell.")
    return int(value)


def name(text: str) -> str:
    """A name of 1 to 200 characters, none of them for control. Raises CellFault otherwise."""
    text = unguarded(text)
    if not text:
        raise CellFault("the cell is empty", "Give the name.")
    if len(text) > LONGEST_NAME:
        raise CellFault(f"a name has at most {LONGEST_NAME} characters", "Shorten it.")
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise CellFault("a name has no control characters", "Remove the line break or tab.")
    return text


_FORMULA = re.compile(r"'*[=+\-@\t\r]")
"""What a spreadsheet would run as a formula, with any apostrophes that already guard it."""


def guarded(text: str) -> str:
    """The text with an apostrophe before it where a spreadsheet would take it for a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def unguarded(text: str) -> str:
    """The inverse of `guarded`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text

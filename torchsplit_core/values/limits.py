"""How large, how small and how named what comes from outside may be: one place for every format and command."""

from __future__ import annotations

import math
import re

from torchsplit_core.values.errors import InputFault, quoted

SMALLEST_POSITIVE = 1e-9
"""A number that must be above 0, or may be a divisor, is at least this: quotients stay far from overflow."""

LARGEST_MAGNITUDE = 1e15
"""Beyond it, sums of doubles no longer tell neighbouring plans apart."""

LARGEST_WHOLE = 2**53
"""Whole numbers up to here are exact as doubles, with which solvers compute."""

MOST_TIER = 1000
"""Highest tier of a model: no plan has more ranks than it could have models, and a larger number is a mistake."""

LONGEST_NAME = 200
NAME_FAULT = "contains a control character, a line break or half a surrogate pair"
# C0 and C1 controls, the line and paragraph separator, surrogates.
_NO_NAME = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def is_name(text: str) -> bool:
    """Whether the text may name a model, a variant, a stage or a GPU: it has nothing of what NAME_FAULT names.

    Such names stand in file names, manifests, terminals and tables, each of which reads a control
    character in its own way.
    """
    return _NO_NAME.search(text) is None


def check_name(where: str, text: object) -> None:
    """Raises InputFault for what may not name anything; an empty text is one of its reader's rules."""
    if not isinstance(text, str):
        raise InputFault(where, f"is {quoted(text)}, not text", "Give a name.")
    if not is_name(text):
        raise InputFault(where, f"is {quoted(text)}, which {NAME_FAULT}", "Rename it.")


def check_number(where: str, value: object, *, positive: bool = False, signed: bool = False) -> None:
    """Raises InputFault for what is no number of a request.

    It is finite and 0 or more (`positive`: above 0; `signed`: of either sign), and what is not 0 has a
    magnitude between SMALLEST_POSITIVE and LARGEST_MAGNITUDE; below it only `signed` goes.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputFault(where, f"is {quoted(value)}, not a number", "Give a number.")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputFault(where, f"is {value}, not a finite number", "Give a number.")
    if positive and value <= 0:
        raise InputFault(where, f"is {quoted(value)}, not above 0", "Give a number above 0.")
    if value < 0 and not signed:
        raise InputFault(where, f"is {quoted(value)}, below the least value 0", "Give a number of 0 or more.")
    if abs(value) > LARGEST_MAGNITUDE:
        beyond = f"above the greatest value {LARGEST_MAGNITUDE:g}"
        if value < 0:
            beyond = f"below the least value {-LARGEST_MAGNITUDE:g}"
        raise InputFault(where, f"is {quoted(value)}, {beyond}", "Check its unit.")
    if 0 < value < SMALLEST_POSITIVE and not signed:
        raise InputFault(
            where,
            f"is {value}, below the least positive value {SMALLEST_POSITIVE:g}",
            "Give a larger number, or check its unit.",
        )


def check_whole(where: str, value: object, *, least: int = 0, most: int = LARGEST_WHOLE) -> None:
    """Raises InputFault for what is no whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputFault(where, f"is {quoted(value)}, not a whole number", "Give a whole number.")
    if value < least:
        raise InputFault(
            where, f"is {quoted(value)}, below the least value {least}", f"Give {least} or more."
        )
    if value > most:
        raise InputFault(
            where, f"is {quoted(value)}, above the greatest value {most}", f"Give {most} or less."
        )

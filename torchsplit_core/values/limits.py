"""How large, how small and how named what comes from outside may be: one place for every format and command."""

from __future__ import annotations

import math
import re

from torchsplit_core.values.errors import InputFault

SMALLEST_POSITIVE = 1e-9
"""A number that must be above 0, or may be a divisor, is at least this: quotients stay far from overflow."""

LARGEST_MAGNITUDE = 1e15
"""Beyond it, sums of doubles no longer tell neighbouring plans apart."""

LARGEST_WHOLE = 2**53
"""Whole numbers up to here are exact as doubles, which solvers reckon in."""

LONGEST_NAME = 200
NAME_RULE = "a name has no control characters, no line breaks and no half of a surrogate pair"
# C0 and C1 controls, the line and paragraph separator, surrogates.
_NO_NAME = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def is_name(text: str) -> bool:
    """Whether the text may name a model, a variant, a stage or a GPU, by NAME_RULE.

    Such names stand in file names, manifests, terminals and tables, each of which reads a control
    character in its own way.
    """
    return _NO_NAME.search(text) is None


def check_name(where: str, text: object) -> None:
    """Raises InputFault for what may not name anything; an empty text is one of its reader's rules."""
    if not isinstance(text, str) or not is_name(text):
        raise InputFault(where, text, NAME_RULE, "Rename it.")


def check_number(where: str, value: object, *, positive: bool = False, signed: bool = False) -> None:
    """Raises InputFault for what is no number of a request.

    It is finite and 0 or more (`positive`: above 0; `signed`: of either sign), and what is not 0 has a
    magnitude between SMALLEST_POSITIVE and LARGEST_MAGNITUDE; below it only `signed` goes.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputFault(where, value, "it is a finite number", "Give a number.")
    # A whole number may be too large to be compared as a float, so this comes first.
    if isinstance(value, int) and abs(value) > LARGEST_MAGNITUDE:
        raise InputFault(where, "a larger number", f"it is at most {LARGEST_MAGNITUDE:g}", "Check its unit.")
    if not math.isfinite(value):
        raise InputFault(where, value, "it is a finite number", "Give a number.")
    if (value < 0 and not signed) or (positive and value == 0):
        rule = "it is above 0" if positive else "it is 0 or more"
        raise InputFault(where, value, rule, "Give a larger number.")
    if abs(value) > LARGEST_MAGNITUDE:
        raise InputFault(where, value, f"it is at most {LARGEST_MAGNITUDE:g}", "Check its unit.")
    if 0 < value < SMALLEST_POSITIVE and not signed:
        rule = (
            f"it is at least {SMALLEST_POSITIVE:g}"
            if positive
            else f"it is 0, or at least {SMALLEST_POSITIVE:g}"
        )
        raise InputFault(where, value, rule, "Give a larger number, or check its unit.")


def check_whole(where: str, value: object, *, least: int = 0, most: int = LARGEST_WHOLE) -> None:
    """Raises InputFault for what is no whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        shown = value if not isinstance(value, int) or abs(value) < 10**20 else "a larger number"
        raise InputFault(where, shown, f"it is a whole number from {least} to {most}", "Give a whole number.")

"""The unit of instants: whole ticks if all times are decimals, otherwise milliseconds as doubles.

Rules for the same instant (ends, then arrivals, then starts) need exact equality, but 0.1 + 0.2 and 0.3 are two
different doubles. So if nothing is drawn and all times have a small enough common denominator, instants are
integers, and their sums are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

GRIDS_PER_S = (10**3, 10**6, 10**9)
"""A trace is exact if all its times are decimals of three, six or nine digits."""

MOST_TICKS = 2**62
"""Larger instants would not fit in the arrays."""

Instants = NDArray[Any]
"""int64 ticks or float64 milliseconds."""


@dataclass(frozen=True, slots=True)
class TimeBase:
    """Without `ticks_per_ms` instants are milliseconds as doubles."""

    ticks_per_ms: int | None = None

    def from_ms(self, ms: Fraction) -> Any:
        """Convert a duration from milliseconds."""
        if self.ticks_per_ms is None:
            return float(ms)
        ticks = ms * self.ticks_per_ms
        return ticks.numerator if ticks.denominator == 1 else float(ticks)

    def to_ms(self, spans: Instants) -> NDArray[np.float64]:
        """Convert durations to milliseconds."""
        if self.ticks_per_ms is None:
            return np.asarray(spans, dtype=np.float64)
        return np.asarray(spans / self.ticks_per_ms, dtype=np.float64)


def as_fraction(number: float) -> Fraction:
    """The decimal as which a number is written: 0.1 is one tenth."""
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


def choose_time_base(spans_ms: Iterable[Fraction], per_ms: int, longest_ms: float) -> TimeBase:
    """Ticks in which all spans and 1 / `per_ms` are whole if `longest_ms` then fits; otherwise doubles."""
    ticks = math.lcm(per_ms, *(span.denominator for span in spans_ms))
    return TimeBase(ticks if ticks * longest_ms < MOST_TICKS else None)


def to_decimal_ticks(times_s: Sequence[float]) -> tuple[NDArray[np.int64], int] | None:
    """Times as integers, and how many of their unit a second has; None if they are no such decimals."""
    times = np.asarray(times_s, dtype=np.float64)
    # Checking the first hundred avoids converting a million drawn times in vain.
    head = times[:100]
    for per_s in GRIDS_PER_S:
        if not np.array_equal(np.rint(head * per_s) / per_s, head):
            continue
        parts = np.rint(times * per_s)
        if parts[-1] < 2**53 and np.array_equal(parts / per_s, times):
            return parts.astype(np.int64), per_s
    return None

"""The unit in which instants are reckoned: whole ticks where all times are decimals, else milliseconds as doubles.

Rules at one instant (ends, then arrivals, then starts) need instants that are equal when they ought to be:
0.1 + 0.2 and 0.3 are two doubles. So where nothing is drawn and a common denominator of all times is small
enough, instants are integers, and every sum of them is exact.
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
"""A trace whose times are all decimals of three, six or nine digits is taken as exactly that."""

MOST_TICKS = 2**62
"""Instants beyond it would not fit in the arrays that hold them."""

Instants = NDArray[Any]
"""int64 ticks or float64 milliseconds."""


@dataclass(frozen=True, slots=True)
class TimeBase:
    """`ticks_per_ms` None: instants are milliseconds as doubles."""

    ticks_per_ms: int | None = None

    def from_ms(self, ms: Fraction) -> Any:
        """A length of time in the clock's unit."""
        if self.ticks_per_ms is None:
            return float(ms)
        ticks = ms * self.ticks_per_ms
        return ticks.numerator if ticks.denominator == 1 else float(ticks)

    def to_ms(self, spans: Instants) -> NDArray[np.float64]:
        """Lengths of time in milliseconds."""
        if self.ticks_per_ms is None:
            return np.asarray(spans, dtype=np.float64)
        return np.asarray(spans / self.ticks_per_ms, dtype=np.float64)


def as_fraction(number: float) -> Fraction:
    """The decimal that a number is written as: 0.1 is a tenth."""
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


def choose_time_base(spans_ms: Iterable[Fraction], per_ms: int, longest_ms: float) -> TimeBase:
    """Ticks in which all spans and 1 / `per_ms` are whole, where `longest_ms` fits; else doubles."""
    ticks = math.lcm(per_ms, *(span.denominator for span in spans_ms))
    return TimeBase(ticks if ticks * longest_ms < MOST_TICKS else None)


def to_decimal_ticks(times_s: Sequence[float]) -> tuple[NDArray[np.int64], int] | None:
    """Times as whole multiples of a decimal part of a second, and how many of it a second has; None: they are not."""
    times = np.asarray(times_s, dtype=np.float64)
    # The first of them spare a trace of a million drawn times the whole look.
    head = times[:100]
    for per_s in GRIDS_PER_S:
        if not np.array_equal(np.rint(head * per_s) / per_s, head):
            continue
        parts = np.rint(times * per_s)
        if parts[-1] < 2**53 and np.array_equal(parts / per_s, times):
            return parts.astype(np.int64), per_s
    return None

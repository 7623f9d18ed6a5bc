"""Times of engines as whole ticks: a power of ten of them is a millisecond, fine enough for every step line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.simulation.time_base import as_fraction, to_decimal_ticks
from torchsplit_core.values import StepLine

SAME_INSTANT_DIGITS = 9
"""Events less than 1e-9 ms apart are at one instant."""
LEAST_DIGITS = 12
"""Arrivals are rounded to 1e-12 ms or finer, which moves none out of its instant."""
MOST_DIGITS = 40
"""What a coefficient has beyond is cut off; no sum of steps shows it."""


StepTicks = tuple[tuple[int, int, int, int, int], ...]
"""Lines in ticks: base, prompt token, sequence, context token, and half a pair of tokens of attention."""


@dataclass(frozen=True, slots=True)
class TickScale:
    """`per_ms` ticks are a millisecond; events less than `same_instant` ticks apart are at one instant."""

    per_ms: int
    same_instant: int

    @property
    def per_s(self) -> int:
        return self.per_ms * 1000

    def line_ticks(self, lines: Sequence[StepLine]) -> StepTicks:
        """Exact but for digits beyond MOST_DIGITS, of lines with which the scale was made."""
        return tuple(
            (
                self._ticks(line.base_ms),
                self._ticks(line.prompt_token_ms),
                self._ticks(line.sequence_ms),
                self._ticks(line.context_token_ms),
                self._ticks(line.attention_ms) // 2,
            )
            for line in lines
        )

    def _ticks(self, ms: float) -> int:
        return int(as_fraction(ms) * self.per_ms)

    def from_seconds(self, times_s: NDArray[np.float64]) -> list[int]:
        """Exact for decimals of up to nine digits, else the double's own value rounded down to a tick."""
        decimals = to_decimal_ticks(times_s.tolist()) if len(times_s) else None
        if decimals is not None:
            parts, per_s = decimals
            each = self.per_s // per_s
            return [part * each for part in parts.tolist()]
        ratios = (time.as_integer_ratio() for time in times_s.tolist())
        return [numerator * self.per_s // denominator for numerator, denominator in ratios]

    def to_seconds(self, ticks: Sequence[int]) -> NDArray[np.float64]:
        """The nearest doubles."""
        per_s = self.per_s
        return np.array([tick / per_s for tick in ticks], dtype=np.float64)

    def to_ms(self, ticks: Iterable[int]) -> NDArray[np.float64]:
        """The nearest doubles."""
        per_ms = self.per_ms
        return np.array([tick / per_ms for tick in ticks], dtype=np.float64)

    def spans_ms(self, begins: Sequence[int], ends: Sequence[int]) -> NDArray[np.float64]:
        """The nearest doubles of the times between; 0 where an end comes first, which is at the same instant."""
        return self.to_ms(max(end - begin, 0) for begin, end in zip(begins, ends, strict=True))


def tick_scale(lines: Sequence[StepLine]) -> TickScale:
    """The coarsest scale in which every coefficient, and half of attention_ms, is whole, up to MOST_DIGITS."""
    digits = LEAST_DIGITS
    for line in lines:
        halved = as_fraction(line.attention_ms) / 2
        others = (line.base_ms, line.prompt_token_ms, line.sequence_ms, line.context_token_ms)
        for figure in (halved, *map(as_fraction, others)):
            while digits < MOST_DIGITS and 10**digits % figure.denominator:
                digits += 1
    return TickScale(10**digits, 10 ** (digits - SAME_INSTANT_DIGITS))

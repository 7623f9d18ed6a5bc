"""Times of engines as whole ticks: a power of ten of them is a millisecond, fine enough for every step line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchsplit_core.simulation.time_base import as_fraction
from torchsplit_core.values import StepLine

SAME_INSTANT_DIGITS = 9
"""Events less than 1e-9 ms apart are at one instant."""
LEAST_DIGITS = 12
"""Arrivals are rounded to 1e-12 ms or finer, which moves none out of its instant."""


@dataclass(frozen=True, slots=True)
class StepTicks:
    """The coefficients of step lines in ticks; `attention` is of half a pair of tokens."""

    lines: tuple[tuple[int, int, int, int, int], ...]

    def step(self, prompt_tokens: int, sequences: int, context: int, half_pairs: int) -> int:
        """The length of a step; `half_pairs` is twice the A of StepLine."""
        return max(
            base + prompt * prompt_tokens + sequence * sequences + token * context + pair * half_pairs
            for base, prompt, sequence, token, pair in self.lines
        )


@dataclass(frozen=True, slots=True)
class TickScale:
    """`per_ms` ticks are a millisecond; events less than `same_instant` ticks apart are at one instant."""

    per_ms: int
    same_instant: int

    def ticks(self, ms: float) -> int:
        """The nearest tick."""
        return round(as_fraction(ms) * self.per_ms)

    def line_ticks(self, lines: Sequence[StepLine]) -> StepTicks:
        """Exact, for lines with which the scale was made."""
        return StepTicks(
            tuple(
                (
                    self.ticks(line.base_ms),
                    self.ticks(line.prompt_token_ms),
                    self.ticks(line.sequence_ms),
                    self.ticks(line.context_token_ms),
                    self.ticks(line.attention_ms) // 2,
                )
                for line in lines
            )
        )


def tick_scale(lines: Sequence[StepLine]) -> TickScale:
    """The coarsest scale in which every coefficient, and half of attention_ms, is whole."""
    digits = LEAST_DIGITS
    for line in lines:
        for figure in (
            line.base_ms,
            line.prompt_token_ms,
            line.sequence_ms,
            line.context_token_ms,
            line.attention_ms / 2,
        ):
            denominator = as_fraction(figure).denominator
            while 10**digits % denominator:
                digits += 1
    return TickScale(10**digits, 10 ** (digits - SAME_INSTANT_DIGITS))

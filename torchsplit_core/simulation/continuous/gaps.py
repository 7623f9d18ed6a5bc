"""Times between neighbouring tokens of a request: kept as stretches of steps, since there may be millions of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.simulation.continuous.ticks import TickScale
from torchsplit_core.simulation.output_statistics import nearest_rank

ROUNDING = 4 * float(np.finfo(np.float64).eps)
"""Relative error of a length in doubles: of a product, a sum, a difference and a quotient."""


@dataclass(frozen=True, slots=True)
class TokenGaps:
    """Stretch i has `steps[i]` lengths: `first_ms[i]`, and each further one longer by `growth_ms[i]`.

    Each of them is the gap of `sequences[i]` requests. The stretches are in no order.
    """

    first_ms: NDArray[np.float64]
    growth_ms: NDArray[np.float64]
    steps: NDArray[np.int64]
    sequences: NDArray[np.int64]

    @property
    def count(self) -> int:
        """How many gaps there are."""
        return int(self.steps @ self.sequences)

    def sample(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Every length in milliseconds, and how many gaps have it."""
        places = np.arange(self.steps.sum()) - np.repeat(np.cumsum(self.steps) - self.steps, self.steps)
        lengths = np.repeat(self.first_ms, self.steps) + np.repeat(self.growth_ms, self.steps) * places
        return lengths, np.repeat(self.sequences, self.steps)

    def statistics(self, percentiles: dict[str, Fraction]) -> dict[str, float]:
        """mean, these nearest-rank percentiles and max, in milliseconds, of at least one gap."""
        longest = self.first_ms + self.growth_ms * (self.steps - 1)
        mean = float(self.sequences * self.steps @ (self.first_ms + longest)) / 2 / self.count
        ranks = {name: nearest_rank(share, self.count) for name, share in percentiles.items()}
        quantiles = {name: self._smallest(rank, float(longest.max())) for name, rank in ranks.items()}
        return {"mean": mean, **quantiles, "max": float(longest.max())}

    def _smallest(self, rank: int, most: float) -> float:
        """The rank-th smallest: the least bound that so many gaps do not exceed, found by bisection."""
        low, high = float(self.first_ms.min()), most
        if self._within(low) @ self.sequences >= rank:
            return low
        while low < (middle := (low + high) / 2) < high:
            low, high = (low, middle) if self._within(middle) @ self.sequences >= rank else (middle, high)
        within = self._within(high)
        return float((self.first_ms + self.growth_ms * (within - 1))[within > 0].max())

    def _within(self, bound: float) -> NDArray[np.int64]:
        """How many steps of each stretch are not longer than a bound, ms."""
        constant = self.growth_ms == 0
        growth = np.where(constant, 1.0, self.growth_ms)
        # A length that equals the bound is within it, however the division is rounded.
        above = bound * (1 + ROUNDING)
        steps = np.floor((above - self.first_ms) / growth).clip(-1, self.steps - 1).astype(np.int64) + 1
        return np.where(constant, np.where(self.first_ms <= above, self.steps, 0), steps)


def token_gaps(stretches: Sequence[tuple[int, int, int, int]], scale: TickScale) -> TokenGaps:
    """The gaps of (length, growth, steps, sequences), in ticks."""
    lengths, growths, steps, sequences = zip(*stretches, strict=True) if stretches else ((), (), (), ())
    return TokenGaps(
        scale.to_ms(lengths),
        scale.to_ms(growths),
        np.array(steps, dtype=np.int64),
        np.array(sequences, dtype=np.int64),
    )

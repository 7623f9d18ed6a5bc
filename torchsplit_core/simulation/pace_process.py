"""A server's random changes of speed in one replication: one factor for the whole run, one for each period."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

import numpy as np

from torchsplit_core.values.profile import Pace

PERIODS_PER_DRAW = 1000
"""Periods drawn at a time, as the run reaches them, since its length is not known in advance."""


class PaceProcess:
    """The factor, of mean 1 over time, on the time of a batch that begins at an instant, in ms from 0.

    Periods last an exponential time of mean `seconds` and each has its own factor, so the covariance of two instants
    falls by exp(-distance / seconds), as `profiling.pace` fits it. Factors are log-normal.
    """

    def __init__(self, spread: Pace, rng: np.random.Generator) -> None:
        self._spread, self._rng = spread, rng
        self.level = float(_factors(spread.drift_cv, 1, rng)[0])
        self._ends_ms: list[float] = []
        self._factors: list[float] = []

    def __call__(self, instant_ms: Any) -> float:
        """Instants may come in any order; the same instant always has the same factor."""
        if not self._spread.cv:
            return self.level
        while not self._ends_ms or self._ends_ms[-1] <= instant_ms:
            begin_ms = self._ends_ms[-1] if self._ends_ms else 0.0
            durations_ms = self._rng.exponential(1e3 * self._spread.seconds, PERIODS_PER_DRAW)
            self._ends_ms += (begin_ms + np.cumsum(durations_ms)).tolist()
            self._factors += _factors(self._spread.cv, PERIODS_PER_DRAW, self._rng).tolist()
        return self.level * self._factors[bisect_right(self._ends_ms, instant_ms)]


def _factors(cv: float, count: int, rng: np.random.Generator) -> Any:
    """Log-normal factors of mean 1 and standard deviation cv: σ² = ln(1 + cv²), μ = -σ² / 2."""
    sigma = math.sqrt(math.log1p(cv * cv))
    return rng.lognormal(-sigma * sigma / 2, sigma, count)

"""Figures of a run's steps as they are drawn: in equal blocks where the steps are many, and smoothed."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

MOST_POINTS = 500
"""Of a line: more steps are drawn as means of equal blocks of steps."""
RATE_POINTS = 100
"""Of a line of rates: those of single steps jump."""
HEAVIEST = 0.99
"""The most weight that smoothing gives to what came before."""


def block_means(values: Sequence[float], most: int = MOST_POINTS) -> list[float]:
    """Means of equal blocks, at most so many; the values themselves where they are few."""
    block = -(-len(values) // most)
    if block <= 1:
        return list(values)
    return [
        sum(values[start : start + block]) / len(values[start : start + block])
        for start in range(0, len(values), block)
    ]


def block_rates(amounts: Sequence[float], seconds: Sequence[float], most: int = MOST_POINTS) -> list[float]:
    """Amounts by second over the same blocks: of sums, since a mean of rates is not the rate of all."""
    block = max(1, -(-len(amounts) // most))
    return [
        sum(amounts[start : start + block]) / max(sum(seconds[start : start + block]), 1e-9)
        for start in range(0, len(amounts), block)
    ]


def exponential_average(values: Sequence[float], weight: float) -> list[float]:
    """The exponential moving average: each value counts 1 - `weight`, what came before `weight` (from 0 to HEAVIEST).

    The first values count as much as what is known before them allows, as TensorBoard does it (Kingma and Ba, 2015,
    section 3): the average does not begin at zero. What is not finite is passed over.
    """
    series = pd.Series(list(values), dtype="float64").replace([float("inf"), float("-inf")], float("nan"))
    averages: list[float] = series.ewm(alpha=1 - weight, adjust=True, ignore_na=True).mean().tolist()
    return averages


def cumulative_sum(values: Sequence[float]) -> list[float]:
    """The sum of all up to each."""
    sums: list[float] = pd.Series(list(values), dtype="float64").cumsum().tolist()
    return sums

"""Figures of a run's steps for a chart: averaged over blocks of steps, and smoothed."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

MOST_POINTS = 500
"""Points of a line; more steps are drawn as means of equal blocks."""
RATE_POINTS = 100
"""Points of a line of rates: the rates of single steps jump."""
HEAVIEST = 0.99
"""The largest weight of earlier values in smoothing."""


def block_means(values: Sequence[float], most: int = MOST_POINTS) -> list[float]:
    """The means of at most `most` equal blocks; the values themselves where there are no more."""
    block = -(-len(values) // most)
    if block <= 1:
        return list(values)
    blocks = (values[start : start + block] for start in range(0, len(values), block))
    return [sum(part) / len(part) for part in blocks]


def block_rates(amounts: Sequence[float], seconds: Sequence[float], most: int = MOST_POINTS) -> list[float]:
    """Amounts per second over the same blocks, from sums: a mean of rates is not the rate of all."""
    block = max(1, -(-len(amounts) // most))
    return [
        sum(amounts[start : start + block]) / max(sum(seconds[start : start + block]), 1e-9)
        for start in range(0, len(amounts), block)
    ]


def exponential_average(values: Sequence[float], weight: float) -> list[float]:
    """The exponential moving average: a value counts 1 - `weight`, the average before it `weight` (0 to HEAVIEST).

    As in TensorBoard the first averages are corrected for the missing past (Kingma and Ba, 2015, section 3), so that
    they do not begin at zero. Values that are not finite are skipped.
    """
    series = pd.Series(list(values), dtype="float64").replace([float("inf"), float("-inf")], float("nan"))
    averages: list[float] = series.ewm(alpha=1 - weight, adjust=True, ignore_na=True).mean().tolist()
    return averages


def cumulative_sum(values: Sequence[float]) -> list[float]:
    """The running sums."""
    sums: list[float] = pd.Series(list(values), dtype="float64").cumsum().tolist()
    return sums

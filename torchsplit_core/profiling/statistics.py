"""Percentiles of repeated runs, and how sure their median is. Needs nothing but the standard library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, comb

from torchsplit_core.values import InternalFault

CONFIDENCE = 0.90


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """Percentiles of the runs of one point, in ms, and an interval for the median."""

    runs: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    median_low_ms: float
    median_high_ms: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value at `share` (0 to 1) of an ordered, non-empty sequence, linear between neighbours."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def median_ranks(count: int) -> tuple[int, int]:
    """First and last rank (from 0) of the order statistics that bound the median with 90 % confidence.

    The distribution-free interval: the number of runs below the median is Binomial(count, 1/2). With
    fewer than five runs even the extremes hold less than that (75 % for three), and are returned.
    """
    tail, rank = 0.0, 0
    while rank < ceil(count / 2):
        tail += comb(count, rank) / 2**count
        if tail > (1 - CONFIDENCE) / 2:
            break
        rank += 1
    first = max(rank - 1, 0)
    return first, count - 1 - first


def summarise(runs_ms: Sequence[float]) -> RunStatistics:
    """The statistics of at least one run."""
    if not runs_ms:
        raise InternalFault("a point without runs cannot be summarised")
    ordered = sorted(runs_ms)
    low, high = median_ranks(len(ordered))
    return RunStatistics(
        runs=len(ordered),
        p50_ms=percentile(ordered, 0.5),
        p95_ms=percentile(ordered, 0.95),
        p99_ms=percentile(ordered, 0.99),
        median_low_ms=ordered[low],
        median_high_ms=ordered[high],
    )

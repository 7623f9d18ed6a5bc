"""Percentiles of repeated runs and their confidence intervals. Needs only the standard library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain
from math import exp, lgamma, log, log1p, sqrt
from statistics import NormalDist, fmean, median, stdev

from torchsplit_core.values import InternalFault, LatencyPercentiles, Percentile

CONFIDENCE = 0.90
LEAST_BLOCKS = 3
"""The spread of fewer blocks is meaningless."""


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """The runs of one point: percentiles, and the mean time of a run in ms with a two-sided interval."""

    latency: LatencyPercentiles
    mean_ms: float
    mean_low_ms: float
    mean_high_ms: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value at `share` (0 to 1) of an ordered, non-empty sequence, linear between neighbours."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


@cache
def percentile_ranks(count: int, share: float) -> tuple[int | None, int | None]:
    """Ranks (from 0) of the runs that bound the percentile `share` (above 0, below 1) with 90 % confidence.

    The distribution-free interval of order statistics: the number of runs below the percentile is Binomial(count,
    share), and each end is wrong in at most 5 % of cases. None if no run is far enough out: 5 runs bound a median, 59 a
    95th percentile from above.
    """
    tail = (1 - CONFIDENCE) / 2
    at_most = list(accumulate(_binomial(count, below, share) for below in range(count + 1)))
    low = max((rank for rank in range(count) if at_most[rank] <= tail), default=None)
    # The run of rank r is below the percentile if at least r + 1 runs are.
    high = min((rank for rank in range(count) if 1 - at_most[rank] <= tail), default=None)
    return low, high


def _binomial(count: int, hits: int, share: float) -> float:
    """Its probability, by logarithms: the coefficients of thousands of runs exceed the range of a float."""
    log_ways = lgamma(count + 1) - lgamma(hits + 1) - lgamma(count - hits + 1)
    return exp(log_ways + hits * log(share) + (count - hits) * log1p(-share))


def summarise(repeats_ms: Sequence[Sequence[float]]) -> RunStatistics:
    """The statistics of one or more blocks of one or more runs each.

    The mean is the median of the blocks' means: the time of a run in a loop around the model, in a usual block. A
    median of runs would be too low, since times have a slow tail. Its interval includes that of the runs' median by
    order statistics (the extremes below five runs), every block's mean, and the prediction interval of another block's:
    runs within a block share their disturbance.
    """
    ordered = sorted(chain.from_iterable(repeats_ms))
    if not ordered:
        raise InternalFault("a point without runs cannot be summarised")
    means = [fmean(runs) for runs in repeats_ms if runs]
    low, high = percentile_ranks(len(ordered), 0.5)
    bounds = [*means, *next_block_interval(means)]
    return RunStatistics(
        latency=LatencyPercentiles(
            runs=len(ordered),
            p50=_with_interval(ordered, 0.5),
            p95=_with_interval(ordered, 0.95),
            p99=_with_interval(ordered, 0.99),
        ),
        mean_ms=median(means),
        mean_low_ms=min(ordered[low or 0], *bounds),
        mean_high_ms=max(ordered[-1 if high is None else high], *bounds),
    )


def next_block_interval(means: Sequence[float]) -> tuple[float, ...]:
    """The 90 % prediction interval of another block's mean, by the spread of these; empty for fewer than three.

    For a log-normal by Student's t: exp(mean ± t · s · √(1 + 1/n)) of the logarithms.
    """
    if len(means) < LEAST_BLOCKS or min(means) <= 0:
        return ()
    logs = [log(mean) for mean in means]
    half = _student_t(len(logs) - 1) * stdev(logs) * sqrt(1 + 1 / len(logs))
    return exp(fmean(logs) - half), exp(fmean(logs) + half)


def _student_t(degrees_of_freedom: int) -> float:
    """The 95 % quantile of Student's t, to 1 % from two degrees of freedom on (Abramowitz and Stegun, 26.7.5)."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return (
        z
        + (z**3 + z) / (4 * degrees_of_freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees_of_freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees_of_freedom**3)
    )


def _with_interval(ordered: Sequence[float], share: float) -> Percentile:
    """Of few runs even the slowest is mostly below a 99th percentile: the interval always includes the value."""
    ranks = percentile_ranks(len(ordered), share)
    low, high = (None if rank is None else ordered[rank] for rank in ranks)
    value = percentile(ordered, share)
    return Percentile(value if low is None else max(value, low), low, high)

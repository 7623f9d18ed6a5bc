"""Statistics of one replication and of several: nearest-rank percentiles, means, Student's t intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.simulation.time_base import as_fraction

PERCENTILES = {"p50": Fraction(1, 2), "p95": Fraction(95, 100), "p99": Fraction(99, 100)}
TOKEN_PERCENTILES = {
    "p50": Fraction(1, 2), "p90": Fraction(90, 100), "p95": Fraction(95, 100), "p99": Fraction(99, 100),
}  # fmt: skip
"""Of the times of requests whose tokens come one after the other."""


def nearest_rank(share: Fraction, count: int) -> int:
    """The nearest rank, from 1: ⌈share · count⌉."""
    return max(1, math.ceil(share * count))


def percentile(values: NDArray[np.float64], percent: float) -> float:
    """The nearest-rank percentile (0 to 100) of values in any order."""
    place = nearest_rank(as_fraction(percent) / 100, len(values)) - 1
    return float(np.partition(values, place)[place])


def response_statistics(
    values: NDArray[np.float64], percentiles: Mapping[str, Fraction] = PERCENTILES
) -> dict[str, float]:
    """mean, these percentiles (p50, p95 and p99) and max."""
    places = {name: nearest_rank(share, len(values)) - 1 for name, share in percentiles.items()}
    ordered = np.partition(values, sorted(set(places.values())))
    quantiles = {name: float(ordered[place]) for name, place in places.items()}
    return {"mean": float(values.mean()), **quantiles, "max": float(values.max())}


def without_warmup(values: NDArray[np.float64], warmup_share: float) -> NDArray[np.float64]:
    """The values after the first ⌊share · n⌋."""
    return values[warmup_count(len(values), warmup_share) :]


def warmup_count(requests: int, warmup_share: float) -> int:
    """How many of so many requests are the warm-up: ⌊share · n⌋."""
    return math.floor(as_fraction(warmup_share) * requests)


def half_width(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of the mean of independent replications; None for a single one.

    t(0.975, n - 1) · s / √n: Law, Simulation Modeling and Analysis, 9.4.1.
    """
    if len(values) < 2:
        return None
    return _student_t(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def upper_end(values: Sequence[float]) -> float:
    """The upper end of the 95 % interval of the mean; the mean of one value."""
    return mean(values) + (half_width(values) or 0.0)


@cache
def _student_t(degrees: int) -> float:
    """The 97.5 % quantile of Student's t. SciPy has it too, but importing it takes as long as a small plan.

    P(|T| ≤ √ν · tan θ) in closed form: Abramowitz and Stegun, 26.7.3 and 26.7.4; θ is found by bisection.
    """
    odd = degrees % 2
    low, high = 0.0, math.pi / 2
    while low < (angle := (low + high) / 2) < high:
        sine, cosine = math.sin(angle), math.cos(angle)
        term, total = cosine if odd else 1.0, 0.0
        for power in range(1 + odd, degrees, 2):
            total += term
            term *= cosine**2 * power / (power + 1)
        inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
        low, high = (angle, high) if inside < 0.95 else (low, angle)
    return math.sqrt(degrees) * math.tan(angle)


def mean(values: Sequence[float]) -> float:
    """The mean of the replications; equal values give exactly that value."""
    return values[0] if min(values) == max(values) else math.fsum(values) / len(values)

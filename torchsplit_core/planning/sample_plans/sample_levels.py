"""Samples reduced to what decides which of them are held: by model the levels of throughput that can matter.

To hold `required` of n samples at most p = n − required may be missed, so every model needs at least its (p + 1)-th
largest entry, its base. Entries below it are raised to it; samples with the same entries then are one, and a sample
whose entries are all at most another's is held with it, which the levels say by themselves. With many levels the
entries of a model are cut into buckets. For bounds a sample then needs the least entry of its bucket, which no plan
that holds it has less of; for plans it needs the largest, which holds every sample of the bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rates = NDArray[np.float64]
Numbers = NDArray[np.int64]

MOST_LEVELS = 400
"""Levels of a model in one program; more are put into buckets. Chosen: programs of twice as many take seconds."""


@dataclass(frozen=True)
class SampleLevels:
    """`levels[m]` ascends from the base. Class k needs level `index[k, m]` of model m and stands for `weights[k]`
    samples; `class_of[i]` is that of sample i. `entries[i, m]`: requests/s, raised to the base.
    """

    required: int
    entries: Rates
    levels: tuple[Rates, ...]
    index: Numbers
    weights: Numbers
    class_of: Numbers

    @property
    def base(self) -> Rates:
        """Requests/s that every plan which holds enough samples gives, by model."""
        return np.array([levels[0] for levels in self.levels])

    @property
    def is_bucketed(self) -> bool:
        """Whether some level stands for several entries."""
        return any(
            bool((self.levels[m][self.index[self.class_of, m]] != self.entries[:, m]).any())
            for m in range(len(self.levels))
        )

    def minima_of(self, classes: NDArray[np.bool_]) -> Rates:
        """The requests/s that hold every sample of these classes, by model."""
        chosen = classes[self.class_of]
        return self.entries[chosen].max(axis=0) if chosen.any() else self.base


def base_rates(entries: Rates, required: int) -> Rates:
    """What every model gives at least if `required` samples are held: entries are (sample, model), requests/s."""
    if required <= 0:
        return np.zeros(entries.shape[1])
    least: Rates = np.partition(entries, required - 1, axis=0)[required - 1]
    return least


def sample_levels(
    entries: Rates,
    required: int,
    least: Sequence[float],
    most_levels: int = MOST_LEVELS,
    *,
    upward: bool = False,
) -> SampleLevels:
    """The levels for holding `required` of these samples, with at least `least` requests/s for each model.

    `upward`: a sample in a bucket needs its largest entry, not its least.
    """
    base = np.maximum(base_rates(entries, required), np.array(least))
    raised = np.maximum(entries, base)
    levels = tuple(_levels_of(raised[:, m], float(base[m]), most_levels) for m in range(raised.shape[1]))
    index = np.stack(
        [
            np.searchsorted(steps, raised[:, m], side="left")
            if upward
            else np.searchsorted(steps, raised[:, m], side="right") - 1
            for m, steps in enumerate(levels)
        ],
        axis=1,
    ).astype(np.int64)
    classes, class_of, weights = np.unique(index, axis=0, return_inverse=True, return_counts=True)
    return SampleLevels(
        required, raised, levels, classes, weights.astype(np.int64), class_of.reshape(-1).astype(np.int64)
    )


def _levels_of(entries: Rates, base: float, most: int) -> Rates:
    """The base and the entries above it; of too many, those at equal distances in rank, the largest all of them."""
    distinct = np.unique(np.append(entries, base))
    if len(distinct) <= most:
        return distinct
    # Entries lie far apart only in the upper tail, where a bucket would cost most.
    tail = most // 3
    body = np.linspace(0, len(distinct) - tail - 1, most - tail).round().astype(np.int64)
    chosen: Rates = distinct[np.union1d(body, np.arange(len(distinct) - tail, len(distinct)))]
    return chosen

"""The minimal GPU-kind multisets of a cover, if they are few."""

from __future__ import annotations

import numpy as np

from torchsplit_core.placement.search.large_segments.covers import ROUNDING, Covers
from torchsplit_core.placement.search.segment_table import Items

MOST_SETS = 1_000
"""Most multisets into which covers are expanded; the others keep a row over their GPUs, which is looser. Every pair of
sets is compared: in benchmarks/placement_constants.py 4,000 take 2.7 times as long on the one fleet with covers; 250
make no difference beyond the noise (a third)."""

_OPEN = 5
"""Factor for the unfinished sets while a cover is expanded. Chosen, not measured."""


def split_minimal_covers(covers: Covers, fleet: np.ndarray) -> tuple[Items, Covers]:
    """Items for the covers that are not even, and the remaining covers: even ones, and those with too many sets.

    fleet: (kinds,), the most GPUs of each kind. An item's `multiset` is its own index: no table has it.
    """
    even = covers.even()
    singles = covers.only(np.flatnonzero(even & (covers.least == 1)))
    stay, tables, figures, count = even.copy(), [], [], 0
    for index in np.flatnonzero(~even).tolist():
        # A GPU that holds these layers alone needs no other.
        alone = (singles.low <= covers.low[index]) & (singles.high >= covers.high[index])
        shares = np.where((singles.shares[alone] > 0).any(axis=0), 0.0, covers.shares[index])
        minimal = _enumerate_minimal_sets(
            shares, fleet, int(covers.least[index]), int(covers.most[index]), MOST_SETS - count
        )
        if minimal is None:
            stay[index] = True
            continue
        count += len(minimal)
        tables.append(minimal)
        figures.append(np.tile([covers.low[index], covers.high[index]], (len(minimal), 1)))
    width = covers.shares.shape[1]
    counts = np.concatenate([np.zeros((0, width), dtype=np.int64), *tables])
    low, high = np.concatenate([np.zeros((0, 2), dtype=np.int64), *figures]).T
    keep = _nondominated(counts, low, high)
    counts, low, high = counts[keep], low[keep], high[keep]
    return Items(np.arange(len(low)), counts, counts.sum(axis=1), low, high), covers.only(
        np.flatnonzero(stay)
    )


def _enumerate_minimal_sets(
    shares: np.ndarray, fleet: np.ndarray, least: int, most: int, limit: int
) -> np.ndarray | None:
    """(sets, kinds): the multisets whose shares sum to 1, but not without their smallest share.

    Kind by kind, the largest share first, so that each is generated once. None if there are more than `limit`, or if
    fewer GPUs than `least` have the shares.
    """
    kinds = np.flatnonzero((shares > 0) & (fleet > 0))
    kinds = kinds[np.argsort(-shares[kinds], kind="stable")]
    counts = np.zeros((1, len(shares)), dtype=np.int64)
    sums, sizes = np.zeros(1), np.zeros(1, dtype=np.int64)
    complete_sets = []
    for index, kind in enumerate(kinds.tolist()):
        missing = np.ceil((1 - ROUNDING - sums) / shares[kind]).astype(np.int64)
        room = np.minimum(fleet[kind], most - sizes)
        done = missing <= room
        full = counts[done]
        full[:, kind] = missing[done]
        complete_sets.append(full)
        if (sizes[done] + missing[done] < least).any():
            return None
        limit -= len(full)
        times = np.minimum(missing - 1, room) + 1
        if limit < 0 or times.sum() > _OPEN * MOST_SETS:
            return None
        origin = np.repeat(np.arange(len(times)), times)
        taken = np.arange(len(origin)) - np.repeat(np.cumsum(times) - times, times)
        counts = counts[origin]
        counts[:, kind] = taken
        sums, sizes = sums[origin] + taken * shares[kind], sizes[origin] + taken
        left = shares[kinds[index + 1]] if index + 1 < len(kinds) else 0.0
        able = sums + (most - sizes) * left >= 1 - ROUNDING
        counts, sums, sizes = counts[able], sums[able], sizes[able]
    return np.concatenate([np.zeros((0, len(shares)), dtype=np.int64), *complete_sets])


def _nondominated(counts: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """(sets,) those that contain no other set for at least the same layers; of equal ones the first."""
    better = (counts <= counts[:, None]).all(axis=2) & (low <= low[:, None]) & (high >= high[:, None])
    equal = better & better.T
    needless = (better & ~equal) | np.tril(equal, -1)
    keep: np.ndarray = np.logical_not(needless.any(axis=1))
    return keep

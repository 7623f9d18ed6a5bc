"""The multisets of kinds of a cover that no smaller one makes needless, where these are few."""

from __future__ import annotations

import numpy as np

from torchsplit_core.placement.search.covers import ROUNDING, Covers
from torchsplit_core.placement.search.table import Items

MOST_SETS = 1_000


def minimal_sets(covers: Covers, fleet: np.ndarray) -> tuple[Items, Covers]:
    """Items in place of the covers that are not even, and the covers that stay: even ones, and those of too many sets.

    fleet: (kinds,), no more GPUs of a kind are taken. An item's `multiset` is its own place: no table has it.
    """
    even = covers.even()
    singles = covers.only(np.flatnonzero(even & (covers.least == 1)))
    stay, tables, figures, count = even.copy(), [], [], 0
    for one in np.flatnonzero(~even).tolist():
        # A GPU that holds these layers alone needs no other beside it.
        alone = (singles.low <= covers.low[one]) & (singles.high >= covers.high[one])
        shares = np.where((singles.shares[alone] > 0).any(axis=0), 0.0, covers.shares[one])
        found = _sets(shares, fleet, int(covers.least[one]), int(covers.most[one]), MOST_SETS - count)
        if found is None:
            stay[one] = True
            continue
        count += len(found)
        tables.append(found)
        figures.append(np.tile([covers.low[one], covers.high[one]], (len(found), 1)))
    width = covers.shares.shape[1]
    counts = np.concatenate([np.zeros((0, width), dtype=np.int64), *tables])
    low, high = np.concatenate([np.zeros((0, 2), dtype=np.int64), *figures]).T
    keep = _needed(counts, low, high)
    counts, low, high = counts[keep], low[keep], high[keep]
    return Items(np.arange(len(low)), counts, counts.sum(axis=1), low, high), covers.only(
        np.flatnonzero(stay)
    )


def _sets(shares: np.ndarray, fleet: np.ndarray, least: int, most: int, limit: int) -> np.ndarray | None:
    """(sets, kinds): the multisets whose shares sum to 1, and without their smallest share do not.

    Built with the largest share first, so that each is met once. None where there are more than `limit`.
    """
    kinds = np.flatnonzero((shares > 0) & (fleet > 0))
    kinds = kinds[np.argsort(-shares[kinds], kind="stable")]
    open_ones = np.zeros((1, len(shares)), dtype=np.int64)
    last = np.zeros(1, dtype=np.int64)
    found = []
    total = 0
    for size in range(1, most + 1):
        longer, ends = [], []
        for place, kind in enumerate(kinds.tolist()):
            able = (last <= place) & (open_ones[:, kind] < fleet[kind])
            more = open_ones[able]
            more[:, kind] += 1
            longer.append(more)
            ends.append(np.full(len(more), place))
        if not longer:
            break
        grown, last = np.concatenate(longer), np.concatenate(ends)
        full = grown @ shares >= 1 - ROUNDING
        # What is enough with fewer GPUs than the cover allows goes on growing.
        done = full & (size >= least)
        found.append(grown[done])
        open_ones, last = grown[~done], last[~done]
        total += int(done.sum())
        if total + len(open_ones) > limit:
            return None
        if not len(open_ones):
            break
    return np.concatenate([np.zeros((0, len(shares)), dtype=np.int64), *found])


def _needed(counts: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """(sets,) those that hold no other set for at least the same layers."""
    keep = np.ones(len(low), dtype=bool)
    for one in range(len(low)):
        better = keep & (low <= low[one]) & (high >= high[one])
        better[better] = (counts[better] <= counts[one]).all(axis=1)
        better[one] = False
        keep[one] = not better.any()
    return keep

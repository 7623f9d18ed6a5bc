"""Throughputs of all segments, and what each multiset of kinds sustains at a threshold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.search.clock import SearchClock


@dataclass(frozen=True)
class SegmentTable:
    """multisets: kinds ascending, smallest first. counts: (multisets, kinds) how often each has a kind. values:
    (multisets, layers), column c - 1 the throughput of a segment of c layers. complete: no multiset is left out; an
    incomplete table refutes nothing."""

    multisets: tuple[tuple[int, ...], ...]
    counts: np.ndarray
    values: np.ndarray
    complete: bool = True


@dataclass(frozen=True)
class Items:
    """Possible segments at a threshold: (multiset, interval of layer counts it sustains), one a row.

    multiset: rows of the table. counts: (items, kinds). sizes: GPUs. low, high: first and last layer count.
    """

    multiset: np.ndarray
    counts: np.ndarray
    sizes: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def only(self, indices: np.ndarray) -> Items:
        """Only these items, in this order."""
        columns = (self.multiset, self.counts, self.sizes, self.low, self.high)
        return Items(*(column[indices] for column in columns))


def build_table(
    instance: ProblemInstance, clock: SearchClock, *, part: int | None = None
) -> SegmentTable | None:
    """Compute every throughput once; None if time ends first.

    part: a partial table with at most so many multisets, those of the fewest GPUs, as time allows; None without time
    for the first.
    """
    fleet = np.bincount(np.array(instance.kinds, dtype=np.int64))
    multisets: list[tuple[int, ...]] = []
    rows = []
    complete = True
    for multiset in _multisets(fleet, min(instance.max_gpus, len(instance.kinds))):
        if clock.over() or (part is not None and len(multisets) == part):
            complete = False
            break
        multisets.append(multiset)
        rows.append([instance.value(multiset, count) for count in range(1, instance.layers + 1)])
    if not multisets or not (complete or part is not None):
        return None
    counts = np.array([np.bincount(item, minlength=len(fleet)) for item in multisets], dtype=np.int64)
    values = np.array(rows, dtype=np.float64)
    return SegmentTable(
        tuple(multisets),
        counts.reshape(len(multisets), len(fleet)),
        values.reshape(len(multisets), instance.layers),
        complete,
    )


def _multisets(fleet: np.ndarray, largest: int) -> Iterator[tuple[int, ...]]:
    """Multisets of kinds in the fleet, smallest first."""
    present = np.flatnonzero(fleet).tolist()
    for size in range(1, largest + 1):
        for multiset in combinations_with_replacement(present, size):
            if all(multiset.count(kind) <= fleet[kind] for kind in set(multiset)):
                yield multiset


def count_multisets(instance: ProblemInstance) -> int:
    """How many multisets a complete table has."""
    ways = [1] + [0] * min(instance.max_gpus, len(instance.kinds))
    for available in np.bincount(np.array(instance.kinds, dtype=np.int64)).tolist():
        ways = [sum(ways[max(0, size - available) : size + 1]) for size in range(len(ways))]
    return sum(ways) - 1


def candidate_values(instance: ProblemInstance, table: SegmentTable) -> np.ndarray:
    """All possible values of the optimum, ascending and distinct: throughputs of segments and links above 0."""
    links = instance.links[~np.eye(len(instance.kinds), dtype=bool)]
    both = np.unique(np.concatenate([np.unique(table.values), np.unique(links)]))
    best: float = table.values.max(initial=0.0)
    return both[(both > 0) & (both <= best)]


def items_at(table: SegmentTable, threshold: float, most: int) -> Items:
    """The undominated segments of at most `most` GPUs at a threshold.

    An item is left out if another sustains all its layer counts on a part of its GPUs: removing GPUs from a set keeps
    every link it needs.
    """
    enough = np.zeros((len(table.multisets), table.values.shape[1] + 2), dtype=np.int8)
    enough[:, 1:-1] = table.values >= threshold
    steps = np.diff(enough, axis=1)
    multiset, low = np.nonzero(steps == 1)
    high = np.nonzero(steps == -1)[1]
    small = table.counts[multiset].sum(axis=1) <= most
    multiset, low, high = multiset[small], low[small], high[small]
    low, counts = low + 1, table.counts[multiset]
    keep = np.ones(len(multiset), dtype=bool)
    for index in range(len(multiset)):
        better = (low <= low[index]) & (high >= high[index]) & (counts <= counts[index]).all(axis=1)
        better[index] = False
        keep[index] = not better.any()
    multiset, low, high, counts = multiset[keep], low[keep], high[keep], counts[keep]
    return Items(multiset, counts, counts.sum(axis=1), low, high)

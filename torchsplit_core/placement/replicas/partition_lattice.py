"""How many GPUs of each class a pipeline may use: the vectors of these counts, and the best division of the fleet.

Vectors that differ only by an exchange of classes are one: their representative has descending counts within every
group of exchangeable classes. A vector can be exchanged into a part of another exactly if its representative is at most
the other's, entry by entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.symmetry_classes import SymmetryClasses

MOST_PAIRS = 6_000_000
"""(Vector, part of it) pairs in one pass over all divisions: some 50 ms each time."""

_ROUNDING = 1e-12
"""Relative: sums that differ by no more are equal up to order, and fewer pipelines are preferred."""


@dataclass(frozen=True)
class FleetPart:
    """The GPUs of one pipeline: a representative by its index, and its classes: entry p stands for classes[p]."""

    index: int
    classes: tuple[int, ...]


class PartitionLattice:
    """The representatives, and the parts into which each can be divided.

    vectors: (vectors, classes), representatives, the whole fleet last.
    """

    def __init__(self, classes: SymmetryClasses) -> None:
        self._group = np.array(classes.group)
        sizes = [len(members) for members in classes.members]
        shape = tuple(size + 1 for size in sizes)
        self._strides = np.cumprod([1, *shape[:0:-1]])[::-1].astype(np.int64)
        every = np.stack(np.unravel_index(np.arange(int(np.prod(shape))), shape), axis=1).astype(np.int64)
        representative_keys = self._representatives(every) @ self._strides
        indices, self._index_of = np.unique(representative_keys, return_inverse=True)
        self.vectors = every[indices]
        self._owners = np.zeros(0, dtype=np.int64)
        self._starts = np.zeros(0, dtype=np.int64)
        self._parts = np.zeros(0, dtype=np.int64)
        self._used = np.zeros(0, dtype=np.int64)
        self._rests = np.zeros(0, dtype=np.int64)

    def pairs(self) -> int:
        """Most pairs that `best_partition` examines."""
        return int((self.vectors + 1).prod(axis=1).sum())

    def below(self, vector: np.ndarray) -> np.ndarray:
        """Which representatives can be exchanged into a part of this one."""
        mask: np.ndarray = np.all(self.vectors <= vector, axis=1)
        return mask

    def above(self, vector: np.ndarray) -> np.ndarray:
        """Which representatives have this one as a part, after exchanges."""
        mask: np.ndarray = np.all(self.vectors >= vector, axis=1)
        return mask

    def index(self, vector: np.ndarray) -> int:
        """The index of the representative of any vector."""
        return int(self._index_of[int(vector @ self._strides)])

    def order(self, vector: np.ndarray) -> np.ndarray:
        """Classes such that `vector[order]` is the representative."""
        return np.lexsort((-vector, self._group))

    def list_parts(self, able: np.ndarray) -> None:
        """List for each representative its parts that can hold a pipeline (able: bool by index)."""
        strides = self._strides.tolist()
        owners, sizes, parts, used, rests = [], [], [], [], []
        for owner, (vector, flat) in enumerate(
            zip(self.vectors.tolist(), (self.vectors @ self._strides).tolist(), strict=True)
        ):
            taken = np.zeros(1, dtype=np.int64)
            for count, stride in zip(vector, strides, strict=True):
                if count:
                    taken = (taken[:, None] + np.arange(count + 1) * stride).ravel()
            part = self._index_of[taken]
            keep = able[part]
            if not keep.any():
                continue
            owners.append(owner)
            sizes.append(int(keep.sum()))
            parts.append(part[keep].astype(np.int32))
            used.append(taken[keep].astype(np.int32))
            rests.append(self._index_of[flat - taken[keep]].astype(np.int32))
        self._owners = np.array(owners, dtype=np.int64)
        self._starts = np.cumsum([0, *sizes])
        if owners:
            self._parts, self._used, self._rests = map(np.concatenate, (parts, used, rests))

    def best_partition(self, worth: np.ndarray, most: int) -> tuple[float, tuple[FleetPart, ...]]:
        """The division of the fleet into at most `most` parts with the largest sum of `worth` (by index)."""
        totals = self._totals(worth, most)
        return float(totals[-1][-1]), self._read_parts(worth, totals)

    def best_sums(self, worth: np.ndarray, most: int) -> np.ndarray:
        """The largest sum of `worth` with at most 0 to `most` parts."""
        best = [float(total[-1]) for total in self._totals(worth, most)]
        return np.array(best + best[-1:] * (most + 1 - len(best)))

    def _totals(self, worth: np.ndarray, most: int) -> list[np.ndarray]:
        """The largest sums by index, for at most 0, 1, … parts, until another part adds nothing."""
        totals = [np.zeros(len(self.vectors))]
        while len(totals) <= most and len(self._owners):
            sums = worth[self._parts] + totals[-1][self._rests]
            before = totals[-1][self._owners]
            best = np.maximum.reduceat(sums, self._starts[:-1])
            total = totals[-1].copy()
            # Another part must gain more than rounding: of equal sums, the fewest pipelines.
            total[self._owners] = np.where(best > before * (1 + _ROUNDING), best, before)
            if (total == totals[-1]).all():
                break
            totals.append(total)
        return totals

    def _read_parts(self, worth: np.ndarray, totals: list[np.ndarray]) -> tuple[FleetPart, ...]:
        """The division of the last total, read from the whole fleet downwards."""
        at, classes = len(self.vectors) - 1, np.arange(len(self._group))
        parts = []
        for before, total in zip(totals[-2::-1], totals[:0:-1], strict=True):
            if total[at] == before[at]:
                continue
            row = int(np.searchsorted(self._owners, at))
            inside = slice(int(self._starts[row]), int(self._starts[row + 1]))
            best = int(np.argmax(worth[self._parts[inside]] + before[self._rests[inside]])) + inside.start
            taken = (int(self._used[best]) // self._strides) % (self.vectors[-1] + 1)
            parts.append(FleetPart(int(self._parts[best]), tuple(classes[self.order(taken)].tolist())))
            rest = self.vectors[at] - taken
            classes = classes[self.order(rest)]
            at = int(self._rests[best])
        return tuple(parts)

    def _representatives(self, vectors: np.ndarray) -> np.ndarray:
        """Sort counts in descending order within each group of exchangeable classes; groups are runs of columns."""
        representatives = vectors.copy()
        for group in range(int(self._group[-1]) + 1):
            columns = np.flatnonzero(self._group == group)
            representatives[:, columns] = -np.sort(-vectors[:, columns], axis=1)
        return representatives

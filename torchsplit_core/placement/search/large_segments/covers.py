"""Feasible segments at a threshold, described by the batch shares of their GPUs instead of by multisets of kinds.

A cover stands for all multisets of `least` to `most` GPUs whose shares sum to 1 or more, and for the layer counts low …
high. Every segment that reaches the threshold is in one. The converse holds exactly if a kind's share is 1 / size
(equal parts), else nearly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance

ROUNDING = 1e-9
"""Shares that miss 1 by less are rounding errors."""


@dataclass(frozen=True)
class Covers:
    """shares: (covers, kinds), at most 1, 0 if excluded. least, most: GPUs. low, high: layer counts."""

    shares: np.ndarray
    least: np.ndarray
    most: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def only(self, indices: np.ndarray) -> Covers:
        """Only these covers, in this order."""
        columns = (self.shares, self.least, self.most, self.low, self.high)
        return Covers(*(column[indices] for column in columns))

    def even(self) -> np.ndarray:
        """(covers,) whether any `least` GPUs of the included kinds suffice."""
        parts = np.where(self.shares > 0, self.shares, 1.0)
        enough: np.ndarray = (parts * self.least[:, None] >= 1 - ROUNDING).all(axis=1)
        enough &= self.least == self.most
        return enough


def covers_at(instance: ProblemInstance, threshold: float) -> Covers:
    """The undominated covers of an instance with `shares`."""
    assert instance.shares is not None
    kinds = np.unique(np.array(instance.kinds, dtype=np.int64))
    groups = np.array(instance.groups or [0] * (int(kinds[-1]) + 1))
    sizes: list[list[int]] = []
    tables: list[np.ndarray] = []
    for size in range(1, min(instance.max_gpus, len(instance.kinds)) + 1):
        shares = np.minimum(instance.shares(threshold, size), 1.0)
        if tables and np.array_equal(shares, tables[-1]):
            sizes[-1][1] = size
        else:
            sizes.append([size, size])
            tables.append(shares)
    rows: list[np.ndarray] = []
    figures: list[tuple[int, int, int, int]] = []
    for (least, most), shares in zip(sizes, tables, strict=True):
        for group in np.unique(groups[kinds]).tolist():
            group_shares = np.zeros_like(shares)
            inside = kinds[groups[kinds] == group]
            group_shares[inside] = shares[inside]
            for column in np.unique(group_shares, axis=1).T:
                if column.max() * most < 1 - ROUNDING:
                    continue
                for low, high in _runs((group_shares >= column[:, None]).all(axis=0)):
                    rows.append(column)
                    figures.append((least, most, low, high))
    numbers = np.array(figures, dtype=np.int64).reshape(len(figures), 4)
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(tables[0]))
    return _without_dominated(Covers(table, *numbers.T))


def _runs(fine: np.ndarray) -> list[tuple[int, int]]:
    """First and last layer count of every run of counts that are fine; index 0 stands for one layer."""
    steps = np.diff(np.concatenate([[0], fine.astype(np.int8), [0]]))
    return list(
        zip((np.flatnonzero(steps == 1) + 1).tolist(), np.flatnonzero(steps == -1).tolist(), strict=True)
    )


def _without_dominated(covers: Covers) -> Covers:
    """Drop a cover if each of its segments contains one that another cover allows, for at least the same layers."""
    even = covers.even()
    keep = np.ones(len(covers.low), dtype=bool)
    for index in range(len(keep)):
        better = (covers.shares >= covers.shares[index]).all(axis=1) & keep
        better &= (covers.low <= covers.low[index]) & (covers.high >= covers.high[index])
        # A larger segment contains a smaller one, but only with equal parts does any such part suffice.
        alike = (covers.least <= covers.least[index]) & (covers.most >= covers.most[index])
        better &= alike | (even & (covers.most <= covers.least[index]))
        better[index] = False
        keep[index] = not better.any()
    return covers.only(np.flatnonzero(keep))

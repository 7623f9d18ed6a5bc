"""The fleet as vectors: slices by pool, layouts as columns, GPUs by group.

A pool is one profile of one group of equal GPUs. Prices are per slice of a pool; at them a GPU is worth its dearest
layout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.solver.highs import INF, csc_from_entries, load_program, run

Vector = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class FleetCapacity:
    """`slices[pool, column]`: slices of the pool on a GPU with the column's layout.

    Several GPUs that are taken as one count as one GPU of a group of their own: `taken_by_group[i, g]` of what they are
    count against `at_most[i]`, beside single GPUs.
    """

    pools: tuple[tuple[int, str], ...]
    columns: tuple[tuple[int, int], ...]
    slices: Counts
    gpus: Counts
    group_of: Counts
    max_slices: Counts
    taken_by_group: Counts
    at_most: Counts

    def worth(self, prices: Vector, costs: Vector | None = None) -> float:
        """The value of the whole fleet at these prices, an upper bound of the slices of any plan.

        `costs`: of a GPU by layout column, which its value loses; a GPU of no value is not used.
        """
        value = self.values(prices) - (0.0 if costs is None else costs)
        return fleet_worth(self.dearest(value), self.gpus, self.taken_by_group, self.at_most)

    def values(self, prices: Vector) -> Vector:
        """What the slices of each layout column are worth at these prices."""
        pool, column, counts = self._entries
        worth = np.bincount(column, weights=prices[pool] * counts, minlength=len(self.columns))
        return worth.astype(np.float64, copy=False)

    @cached_property
    def _entries(self) -> tuple[Counts, Counts, Vector]:
        """Pool, column and count of `slices` where there are any: few, where columns are many."""
        pool, column = np.nonzero(self.slices)
        return pool, column, self.slices[pool, column].astype(np.float64)

    def dearest(self, value: Vector) -> Vector:
        """By group the highest value of a layout column; 0 where none has any."""
        dearest = np.zeros(len(self.gpus))
        np.maximum.at(dearest, self.group_of, value)
        return dearest

    def has_room(self, used: Counts, layouts: Counts) -> bool:
        """Whether the fleet has GPUs for these counts by layout column, and they have these slices by pool."""
        by_group = np.bincount(self.group_of, weights=layouts, minlength=len(self.gpus))
        return bool(
            (used <= self.slices @ layouts).all()
            and (by_group <= self.gpus).all()
            and (self.taken @ layouts <= self.at_most).all()
        )

    def restricted(self, columns: Counts) -> FleetCapacity:
        """The same with some layout columns alone."""
        return replace(
            self,
            columns=tuple(self.columns[column] for column in columns.tolist()),
            slices=self.slices[:, columns],
            group_of=self.group_of[columns],
        )

    @cached_property
    def taken(self) -> Counts:
        """`taken_by_group` by column: all layouts of a group take the same."""
        return self.taken_by_group[:, self.group_of]


def fleet_worth(dearest: Vector, gpus: Counts, taken: Counts, at_most: Counts) -> float:
    """An upper bound of what GPUs are worth together, each group's at most `dearest`, under limits by group.

    Without limits Σ GPUs · dearest; else a linear program of few rows and columns. Its bound is arithmetic from its
    duals: what they leave of a GPU's worth is added for every GPU of its group.
    """
    if not len(at_most) or not dearest.any():
        return float(gpus @ dearest)
    rows = np.concatenate([np.eye(len(gpus), dtype=np.int64), taken])
    most = np.concatenate([gpus, at_most]).astype(np.float64)
    unit = float(dearest.max())
    row, column = np.nonzero(rows)
    highs = load_program(
        "worth of a fleet with groups of GPUs",
        csc_from_entries(rows[row, column].astype(np.float64), row, column, rows.shape),
        -dearest / unit,
        columns=(np.zeros(len(dearest)), np.full(len(dearest), INF)),
        rows=(np.full(len(most), -INF), most),
    )
    duals = np.zeros(len(most))
    if run(highs) == "optimal":
        duals = np.maximum(-np.array(highs.getSolution().row_dual), 0.0) * unit
    left = np.maximum(dearest - duals @ rows, 0.0)
    return float(duals @ most + left @ gpus)


def limits_by_group(problem: Problem) -> tuple[Counts, Counts]:
    """The problem's limits: GPUs taken by (limit, group), and the most of each limit."""
    taken = np.zeros((len(problem.limits), len(problem.groups)), dtype=np.int64)
    for row, limit in enumerate(problem.limits):
        for g, count in limit.takes:
            taken[row, g] = count
    return taken, np.array([limit.most for limit in problem.limits], dtype=np.int64)


def fleet_capacity(problem: Problem) -> FleetCapacity:
    """The capacity of a problem whose equal GPUs are counted together."""
    columns = [(g, number) for g, group in enumerate(problem.groups) for number in range(len(group.layouts))]
    pools = list(
        dict.fromkeys(
            (g, name)
            for g, number in columns
            for name in sorted(problem.groups[g].layouts[number].usable_counts)
        )
    )
    slices = np.zeros((len(pools), len(columns)), dtype=np.int64)
    row_of = {pool: row for row, pool in enumerate(pools)}
    for column, (g, number) in enumerate(columns):
        for name, count in problem.groups[g].layouts[number].usable_counts.items():
            slices[row_of[g, name], column] = count
    gpus = np.array([len(group.gpu_ids) for group in problem.groups], dtype=np.int64)
    group_of = np.array([g for g, _ in columns], dtype=np.int64)
    most = np.array([gpus[g] * slices[row].max() for row, (g, _) in enumerate(pools)], dtype=np.int64)
    by_group, at_most = limits_by_group(problem)
    return FleetCapacity(tuple(pools), tuple(columns), slices, gpus, group_of, most, by_group, at_most)

"""The fleet as vectors: slices by pool, layouts as columns, GPUs by group.

A pool is one profile of one group of equal GPUs. Prices are per slice of a pool; at them a GPU is worth its dearest
layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.problem.build import Problem

Vector = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class FleetCapacity:
    """`slices[pool, column]`: slices of the pool on a GPU with the column's layout."""

    pools: tuple[tuple[int, str], ...]
    columns: tuple[tuple[int, int], ...]
    slices: Counts
    gpus: Counts
    group_of: Counts
    max_slices: Counts

    def worth(self, prices: Vector, costs: Vector | None = None) -> float:
        """The value of the whole fleet at these prices, an upper bound of the slices of any plan.

        `costs`: of a GPU by layout column, which its value loses; a GPU of no value is not used.
        """
        value = prices @ self.slices - (0.0 if costs is None else costs)
        dearest = np.zeros(len(self.gpus))
        np.maximum.at(dearest, self.group_of, value)
        return float(self.gpus @ dearest)


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
    return FleetCapacity(tuple(pools), tuple(columns), slices, gpus, group_of, most)

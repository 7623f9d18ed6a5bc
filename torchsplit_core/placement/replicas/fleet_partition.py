"""The proven best set of pipelines if the classes of GPUs are few, by searching only what is needed.

Every vector of GPUs has a lower and an upper bound of its best single pipeline. The best division by the upper bounds
bounds the sum; that by the lower ones is a set of pipelines. The inexact parts of the former are searched, which
tightens the bounds of other vectors too, until both sums meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance, SearchResult, Segments
from torchsplit_core.placement.model.symmetry_classes import SymmetryClasses
from torchsplit_core.placement.replicas.partition_lattice import PartitionLattice
from torchsplit_core.placement.replicas.pipelines import (
    EQUAL,
    PipelineSetResult,
    best_single,
    sub_instance,
    sum_and_order,
)
from torchsplit_core.placement.replicas.upper_bounds import upper_bounds
from torchsplit_core.placement.search.clock import LEAST_TRY_S, TRY_PART, SearchClock
from torchsplit_core.placement.search.segment_table import SegmentTable

Tell = Callable[[float, float], None]


@dataclass(frozen=True)
class _ClassPipeline:
    """A pipeline by classes: (layer count, position of each GPU's class) for each segment.

    Positions are those of the representative with this pipeline's counts.
    """

    steps: tuple[tuple[int, tuple[int, ...]], ...]


class FleetPartitioner:
    """Lower and upper bounds, and the pipelines of the lower ones, by the index of a vector in the lattice."""

    def __init__(
        self,
        instance: ProblemInstance,
        table: SegmentTable,
        classes: SymmetryClasses,
        lattice: PartitionLattice,
        clock: SearchClock,
    ) -> None:
        self._instance, self._classes, self._lattice, self._clock = instance, classes, lattice, clock
        self._table = table
        size = len(lattice.vectors)
        self._lower, self._upper = np.zeros(size), np.full(size, np.inf)
        self._plan_of = np.full(size, -1)
        self._plans: list[_ClassPipeline] = []
        self._tries = np.zeros(size, dtype=np.int64)

    def initialize(self, single: SearchResult) -> None:
        """Compute the first upper bounds. `single`: the result for the best pipeline on the whole fleet."""
        lattice = self._lattice
        self._upper = upper_bounds(
            self._instance, self._table, self._classes, lattice.vectors, single.bound, self._clock
        )
        self._upper[0] = 0.0
        self._update_bounds(len(lattice.vectors) - 1, range(len(self._instance.kinds)), single)
        lattice.list_parts(self._upper > 0)

    def run(self, most: int, single: SearchResult, tell: Tell) -> PipelineSetResult:
        """At most `most` pipelines of the largest sum; `single` as in `initialize`."""
        self.initialize(single)
        while True:
            value, pipelines = self.best_known(most)
            bound, unknown = self.unresolved_parts(most)
            tell(value, bound)
            proven = value >= bound * (1 - EQUAL) or not unknown
            if proven or self._clock.over():
                value, pipelines = sum_and_order(self._instance, pipelines)
                bound = value if proven else max(value, bound)
                return PipelineSetResult(value, bound, proven, pipelines, dict(self._clock.counts))
            self.resolve(unknown)

    def best_known(self, most: int) -> tuple[float, tuple[Segments, ...]]:
        """The sum and the pipelines of the best division by the lower bounds."""
        value, shares = self._lattice.best_partition(self._lower, most)
        free = [list(members) for members in self._classes.members]
        pipelines = [
            tuple(
                (
                    count,
                    tuple(sorted(free[share.classes[class_position]].pop(0) for class_position in classes)),
                )
                for count, classes in self._plans[int(self._plan_of[share.index])].steps
            )
            for share in shares
        ]
        return value, tuple(pipelines)

    def unresolved_parts(self, most: int, prices: np.ndarray | None = None) -> tuple[float, list[int]]:
        """The sum of the best division by the upper bounds, and its parts that are not exact, largest first.

        prices: of a GPU of each kind, subtracted from a part's value.
        """
        self._clock.count("divisions")
        bound, shares = self._lattice.best_partition(self._net_values(prices), most)
        indices = sorted({share.index for share in shares}, reverse=True)
        return bound, [index for index in indices if self._lower[index] < self._upper[index]]

    def bound_sums(self, most: int, prices: np.ndarray) -> np.ndarray:
        """The sums of `unresolved_parts` for 0 to `most` pipelines."""
        return self._lattice.best_sums(self._net_values(prices), most)

    def known_sums(self, most: int) -> np.ndarray:
        """The sums of `best_known` for 0 to `most` pipelines."""
        return self._lattice.best_sums(self._lower, most)

    def resolve(self, unknown: list[int]) -> None:
        """Search the parts that are not exact."""
        for index in unknown:
            if self._lower[index] < self._upper[index] and not self._clock.over():
                self._search_part(index)

    def _net_values(self, prices: np.ndarray | None) -> np.ndarray:
        if prices is None:
            return self._upper
        worth: np.ndarray = self._upper - self._lattice.vectors @ prices[list(self._classes.kinds)]
        return worth

    def _search_part(self, index: int) -> None:
        """Search the best pipeline within a vector, for a part of the time that grows with each try."""
        vector = self._lattice.vectors[index]
        gpus = [
            gpu
            for count, members in zip(vector, self._classes.members, strict=True)
            for gpu in members[:count]
        ]
        gpus.sort()
        part_s = max(LEAST_TRY_S, self._clock.limit_s * TRY_PART) * 4.0 ** float(self._tries[index])
        self._tries[index] += 1
        self._clock.count("searches")
        result = best_single(sub_instance(self._instance, gpus), self._clock.part(part_s).left_s())
        self._update_bounds(index, gpus, result)

    def _update_bounds(self, index: int, gpus: range | list[int], result: SearchResult) -> None:
        lattice = self._lattice
        below = lattice.below(lattice.vectors[index])
        self._upper[below] = np.minimum(self._upper[below], result.bound)
        if not result.segments:
            return
        class_of = {
            gpu: number_of_class
            for number_of_class, members in enumerate(self._classes.members)
            for gpu in members
        }
        steps = [
            (count, tuple(class_of[gpus[gpu_index]] for gpu_index in chosen))
            for count, chosen in result.segments
        ]
        used = np.zeros(len(self._classes.members), dtype=np.int64)
        np.add.at(used, [class_index for _, chosen in steps for class_index in chosen], 1)
        order = lattice.order(used)
        position = {int(class_index): number for number, class_index in enumerate(order)}
        raised = lattice.above(used[order]) & (self._lower < result.value)
        self._lower[raised] = result.value
        self._plan_of[raised] = len(self._plans)
        self._plans.append(
            _ClassPipeline(
                tuple(
                    (count, tuple(position[class_index] for class_index in chosen)) for count, chosen in steps
                )
            )
        )

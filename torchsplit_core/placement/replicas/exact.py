"""The best set of pipelines, proven, where the classes of GPUs are few: what is not needed is never searched.

For every vector of GPUs a lower and an upper bound of the best single pipeline within it are known. The best division
by the upper bounds bounds the sum, that by the lower ones is a set of pipelines. The parts of the former that are not
exactly known are searched, which tightens the bounds of other vectors too, until both sums meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.instance import Found, Instance, Segments
from torchsplit_core.placement.model.symmetry_classes import SymmetryClasses
from torchsplit_core.placement.replicas.division_lattice import DivisionLattice
from torchsplit_core.placement.replicas.pipelines import EQUAL, Pipelines, best_single, in_order, part_of
from torchsplit_core.placement.replicas.upper_bounds import upper_bounds
from torchsplit_core.placement.search.clock import LEAST_TRY_S, TRY_PART, Clock
from torchsplit_core.placement.search.table import Table

Tell = Callable[[float, float], None]


@dataclass(frozen=True)
class _Plan:
    """A pipeline by classes: (layer count, position of each GPU's class) for each segment.

    Positions are those of a representative, whose counts this pipeline's are.
    """

    steps: tuple[tuple[int, tuple[int, ...]], ...]


class Divider:
    """Lower and upper bounds, and the pipelines behind the lower ones, by the number of a vector in the lattice."""

    def __init__(
        self,
        instance: Instance,
        table: Table,
        classes: SymmetryClasses,
        lattice: DivisionLattice,
        clock: Clock,
    ) -> None:
        self._instance, self._classes, self._lattice, self._clock = instance, classes, lattice, clock
        self._table = table
        size = len(lattice.vectors)
        self._lower, self._upper = np.zeros(size), np.full(size, np.inf)
        self._plan_of = np.full(size, -1)
        self._plans: list[_Plan] = []
        self._tries = np.zeros(size, dtype=np.int64)

    def begin(self, whole: Found) -> None:
        """Make the first upper bounds. `whole`: what is known of the best pipeline on the whole fleet."""
        lattice = self._lattice
        self._upper = upper_bounds(
            self._instance, self._table, self._classes, lattice.vectors, whole.bound, self._clock
        )
        self._upper[0] = 0.0
        self._learn(len(lattice.vectors) - 1, range(len(self._instance.kinds)), whole)
        lattice.prepare(self._upper > 0)

    def run(self, most: int, whole: Found, tell: Tell) -> Pipelines:
        """At most `most` pipelines of the largest sum; `whole` as in `begin`."""
        self.begin(whole)
        while True:
            value, pipelines = self.best(most)
            bound, unknown = self.wanted(most)
            tell(value, bound)
            proven = value >= bound * (1 - EQUAL) or not unknown
            if proven or self._clock.over():
                value, pipelines = in_order(self._instance, pipelines)
                bound = value if proven else max(value, bound)
                return Pipelines(value, bound, proven, pipelines, dict(self._clock.counts))
            self.learn(unknown)

    def best(self, most: int) -> tuple[float, tuple[Segments, ...]]:
        """The best division by the lower bounds: its sum and its pipelines."""
        value, shares = self._lattice.divide(self._lower, most)
        free = [list(members) for members in self._classes.members]
        pipelines = [
            tuple(
                (count, tuple(sorted(free[share.classes[one]].pop(0) for one in classes)))
                for count, classes in self._plans[int(self._plan_of[share.index])].steps
            )
            for share in shares
        ]
        return value, tuple(pipelines)

    def wanted(self, most: int, prices: np.ndarray | None = None) -> tuple[float, list[int]]:
        """The best division by the upper bounds: its sum, and which of its parts are not exactly known, largest first.

        prices: of a GPU of each kind, which a part then has to pay.
        """
        self._clock.count("divisions")
        bound, shares = self._lattice.divide(self._priced(prices), most)
        indices = sorted({share.index for share in shares}, reverse=True)
        return bound, [index for index in indices if self._lower[index] < self._upper[index]]

    def sums(self, most: int, prices: np.ndarray) -> np.ndarray:
        """What `wanted` has for 0 to `most` pipelines."""
        return self._lattice.sums(self._priced(prices), most)

    def known_sums(self, most: int) -> np.ndarray:
        """What `best` has for 0 to `most` pipelines."""
        return self._lattice.sums(self._lower, most)

    def learn(self, unknown: list[int]) -> None:
        """Search the parts that are not exactly known."""
        for index in unknown:
            if self._lower[index] < self._upper[index] and not self._clock.over():
                self._search(index)

    def _priced(self, prices: np.ndarray | None) -> np.ndarray:
        if prices is None:
            return self._upper
        worth: np.ndarray = self._upper - self._lattice.vectors @ prices[list(self._classes.kinds)]
        return worth

    def _search(self, index: int) -> None:
        """The best pipeline within a vector, in a part of the time that grows with each try."""
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
        found = best_single(part_of(self._instance, gpus), self._clock.part(part_s).left_s())
        self._learn(index, gpus, found)

    def _learn(self, index: int, gpus: range | list[int], found: Found) -> None:
        lattice = self._lattice
        below = lattice.below(lattice.vectors[index])
        self._upper[below] = np.minimum(self._upper[below], found.bound)
        if not found.segments:
            return
        class_of = {gpu: one for one, members in enumerate(self._classes.members) for gpu in members}
        steps = [(count, tuple(class_of[gpus[one]] for one in chosen)) for count, chosen in found.segments]
        used = np.zeros(len(self._classes.members), dtype=np.int64)
        np.add.at(used, [one for _, chosen in steps for one in chosen], 1)
        order = lattice.order(used)
        position = {int(one): number for number, one in enumerate(order)}
        raised = lattice.above(used[order]) & (self._lower < found.value)
        self._lower[raised] = found.value
        self._plan_of[raised] = len(self._plans)
        self._plans.append(
            _Plan(tuple((count, tuple(position[one] for one in chosen)) for count, chosen in steps))
        )

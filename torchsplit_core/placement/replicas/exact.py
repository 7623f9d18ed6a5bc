"""The best set of pipelines, proven, where the classes of GPUs are few: what is not needed is never searched.

For every vector of GPUs a floor and a ceiling of the best single pipeline within it are known. The best division by
the ceilings bounds the sum, that by the floors is a set of pipelines. The parts of the former that are not exactly
known are searched, which lowers ceilings and raises floors of other vectors too, until both sums meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.instance import Found, Instance
from torchsplit_core.placement.replicas.ceilings import ceilings
from torchsplit_core.placement.replicas.lattice import Lattice
from torchsplit_core.placement.replicas.pipelines import EQUAL, Pipelines, best_single, in_order, part_of
from torchsplit_core.placement.replicas.twins import Twins
from torchsplit_core.placement.search.clock import LEAST_TRY_S, TRY_PART, Clock
from torchsplit_core.placement.search.segments import Segments
from torchsplit_core.placement.search.table import Table

Tell = Callable[[float, float], None]


@dataclass(frozen=True)
class _Plan:
    """A pipeline by classes: (layer count, position of each GPU's class) for each segment.

    Positions are those of a representative, whose counts this pipeline's are.
    """

    steps: tuple[tuple[int, tuple[int, ...]], ...]


class Divider:
    """Floors, ceilings and the pipelines behind the floors, by place in the lattice."""

    def __init__(
        self, instance: Instance, table: Table, twins: Twins, lattice: Lattice, clock: Clock
    ) -> None:
        self._instance, self._twins, self._lattice, self._clock = instance, twins, lattice, clock
        self._table = table
        size = len(lattice.vectors)
        self._floor, self._ceiling = np.zeros(size), np.full(size, np.inf)
        self._plan_of = np.full(size, -1)
        self._plans: list[_Plan] = []
        self._tries = np.zeros(size, dtype=np.int64)

    def begin(self, whole: Found) -> None:
        """Make the first ceilings. `whole`: what is known of the best pipeline on the whole fleet."""
        lattice = self._lattice
        self._ceiling = ceilings(
            self._instance, self._table, self._twins, lattice.vectors, whole.bound, self._clock
        )
        self._ceiling[0] = 0.0
        self._learn(len(lattice.vectors) - 1, range(len(self._instance.kinds)), whole)
        lattice.prepare(self._ceiling > 0)

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
        """The best division by the floors: its sum and its pipelines."""
        value, shares = self._lattice.divide(self._floor, most)
        free = [list(members) for members in self._twins.members]
        pipelines = [
            tuple(
                (count, tuple(sorted(free[share.classes[one]].pop(0) for one in classes)))
                for count, classes in self._plans[int(self._plan_of[share.place])].steps
            )
            for share in shares
        ]
        return value, tuple(pipelines)

    def wanted(self, most: int, prices: np.ndarray | None = None) -> tuple[float, list[int]]:
        """The best division by the ceilings: its sum, and which of its parts are not exactly known, largest first.

        prices: of a GPU of each kind, which a part then has to pay.
        """
        self._clock.count("divisions")
        bound, shares = self._lattice.divide(self._priced(prices), most)
        places = sorted({share.place for share in shares}, reverse=True)
        return bound, [place for place in places if self._floor[place] < self._ceiling[place]]

    def sums(self, most: int, prices: np.ndarray) -> np.ndarray:
        """What `wanted` has for 0 to `most` pipelines."""
        return self._lattice.sums(self._priced(prices), most)

    def floors(self, most: int) -> np.ndarray:
        """What `best` has for 0 to `most` pipelines."""
        return self._lattice.sums(self._floor, most)

    def learn(self, unknown: list[int]) -> None:
        """Search the parts that are not exactly known."""
        for place in unknown:
            if self._floor[place] < self._ceiling[place] and not self._clock.over():
                self._search(place)

    def _priced(self, prices: np.ndarray | None) -> np.ndarray:
        if prices is None:
            return self._ceiling
        worth: np.ndarray = self._ceiling - self._lattice.vectors @ prices[list(self._twins.kinds)]
        return worth

    def _search(self, place: int) -> None:
        """The best pipeline within a vector, in a part of the time that grows with each try."""
        vector = self._lattice.vectors[place]
        gpus = [
            gpu for count, members in zip(vector, self._twins.members, strict=True) for gpu in members[:count]
        ]
        gpus.sort()
        part_s = max(LEAST_TRY_S, self._clock.limit_s * TRY_PART) * 4.0 ** float(self._tries[place])
        self._tries[place] += 1
        self._clock.count("searches")
        found = best_single(part_of(self._instance, gpus), self._clock.part(part_s).left_s())
        self._learn(place, gpus, found)

    def _learn(self, place: int, gpus: range | list[int], found: Found) -> None:
        lattice = self._lattice
        below = lattice.below(lattice.vectors[place])
        self._ceiling[below] = np.minimum(self._ceiling[below], found.bound)
        if not found.segments:
            return
        class_of = {gpu: one for one, members in enumerate(self._twins.members) for gpu in members}
        steps = [(count, tuple(class_of[gpus[one]] for one in chosen)) for count, chosen in found.segments]
        used = np.zeros(len(self._twins.members), dtype=np.int64)
        np.add.at(used, [one for _, chosen in steps for one in chosen], 1)
        order = lattice.order(used)
        position = {int(one): number for number, one in enumerate(order)}
        raised = lattice.above(used[order]) & (self._floor < found.value)
        self._floor[raised] = found.value
        self._plan_of[raised] = len(self._plans)
        self._plans.append(
            _Plan(tuple((count, tuple(position[one] for one in chosen)) for count, chosen in steps))
        )

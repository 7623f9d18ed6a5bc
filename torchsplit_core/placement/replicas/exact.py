"""The best set of pipelines, proven, where the classes of GPUs are few: what is not needed is never searched.

For every vector of GPUs a floor and a ceiling of the best single pipeline within it are known. The best division by
the ceilings bounds the sum, that by the floors is a set of pipelines. The parts of the former that are not exactly
known are searched, which lowers ceilings and raises floors of other vectors too, until both sums meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.instance import Found, Instance
from torchsplit_core.placement.replicas.ceilings import ceilings
from torchsplit_core.placement.replicas.lattice import Lattice, Share
from torchsplit_core.placement.replicas.pipelines import EQUAL, Pipelines, best_single, in_order, part_of
from torchsplit_core.placement.replicas.twins import Twins
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.segments import Segments
from torchsplit_core.placement.search.table import Table

_PART, _LEAST_PART_S = 0.05, 0.5
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

    def run(self, most: int, whole: Found, tell: Tell) -> Pipelines:
        """At most `most` pipelines. `whole`: what is known of the best one on the whole fleet."""
        lattice = self._lattice
        self._ceiling = ceilings(
            self._instance, self._table, self._twins, lattice.vectors, whole.bound, self._clock
        )
        self._ceiling[0] = 0.0
        self._learn(len(lattice.vectors) - 1, range(len(self._instance.kinds)), whole)
        lattice.prepare(self._ceiling > 0)
        while True:
            value, chosen = lattice.divide(self._floor, most)
            bound, wanted = lattice.divide(self._ceiling, most)
            tell(value, bound)
            self._clock.count("divisions")
            places = {share.place for share in wanted}
            unknown = sorted(place for place in places if self._floor[place] < self._ceiling[place])
            proven = value >= bound * (1 - EQUAL) or not unknown
            if proven or self._clock.over():
                return self._found(chosen, max(value, bound), proven)
            for place in unknown[::-1]:
                if self._floor[place] < self._ceiling[place]:
                    self._search(place)

    def _search(self, place: int) -> None:
        """The best pipeline within a vector, in a part of the time that grows with each try."""
        vector = self._lattice.vectors[place]
        gpus = [
            gpu for count, members in zip(vector, self._twins.members, strict=True) for gpu in members[:count]
        ]
        gpus.sort()
        part_s = max(_LEAST_PART_S, self._clock.limit_s * _PART) * 4.0 ** float(self._tries[place])
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

    def _found(self, chosen: tuple[Share, ...], bound: float, proven: bool) -> Pipelines:
        free = [list(members) for members in self._twins.members]
        pipelines: list[Segments] = []
        for share in chosen:
            steps = self._plans[int(self._plan_of[share.place])].steps
            pipelines.append(
                tuple(
                    (count, tuple(sorted(free[share.classes[one]].pop(0) for one in classes)))
                    for count, classes in steps
                )
            )
        value, ordered = in_order(self._instance, pipelines)
        return Pipelines(value, value if proven else bound, proven, ordered, dict(self._clock.counts))

"""Large fleets: pipelines taken off at falling thresholds, then some of them made anew, while time is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from torchsplit_core.placement.instance import Instance
from torchsplit_core.placement.replicas.capacity import capacity
from torchsplit_core.placement.replicas.exact import Divider
from torchsplit_core.placement.replicas.lattice import Lattice
from torchsplit_core.placement.replicas.peel import Peeler
from torchsplit_core.placement.replicas.pipelines import EQUAL, back, best_single, in_order, part_of, rows_of
from torchsplit_core.placement.replicas.twins import twins
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.segments import Segments, worth
from torchsplit_core.placement.search.table import Table

_STEPS = 24
_LOWEST = 0.05
_SMALL_VECTORS, _SMALL_PAIRS = 3_000, 100_000
_PART_S = 1.0
_ANEW = (1, 2, 2, 3, 4)
_LEFT = 96
"""Unused GPUs that pipelines made anew may draw on, those of the fastest links first."""

Several = tuple[float, tuple[Segments, ...]]


def thresholds(wanted: Sequence[float], best: float) -> list[float]:
    """Those that the bound has, and a falling series, from the highest value down."""
    series = np.geomspace(best, best * _LOWEST, _STEPS).tolist()
    return sorted({*wanted, *series}, reverse=True)


def construct(
    instance: Instance, table: Table, wanted: Sequence[float], best: float, most: int, clock: Clock,
    tell: Callable[[Several], None],
) -> Several:  # fmt: skip
    """The best of peeling from each threshold downwards; `wanted` are the bound's, `best` the highest value."""
    found: Several = (0.0, ())
    levels = thresholds(wanted, best)
    peeler = Peeler(instance, table, clock)
    for first in range(len(levels)):
        if clock.over() or levels[first] * most <= found[0]:
            break
        new = in_order(instance, peeler.peel(levels[first:], most))
        if new[0] > found[0]:
            found = new
            tell(found)
    return found


class Improver:
    """Makes a few pipelines anew on their own GPUs and unused ones; keeps what has a larger sum."""

    def __init__(self, instance: Instance, table: Table, most: int, clock: Clock) -> None:
        self._instance, self._table, self._most, self._clock = instance, table, most, clock
        self._draw = np.random.default_rng(0)

    def step(self, found: Several) -> Several:
        """One try; what was given where it is no better."""
        pipelines = found[1]
        chosen = self._choose(pipelines)
        kept = [one for place, one in enumerate(pipelines) if place not in chosen]
        own = [gpu for place in chosen for _, gpus in pipelines[place] for gpu in gpus]
        used = {gpu for one in pipelines for _, gpus in one for gpu in gpus}
        left = np.array([gpu for gpu in range(len(self._instance.kinds)) if gpu not in used], dtype=np.int64)
        if own and len(left) > _LEFT:
            near = self._instance.links[own][:, left].mean(axis=0)
            left = left[np.argsort(-near, kind="stable")[:_LEFT]]
        gpus = sorted([*own, *left.tolist()])
        if not gpus:
            return found
        self._clock.count("made_anew")
        new = self._solve(
            part_of(self._instance, gpus), self._most - len(kept), [pipelines[one] for one in chosen]
        )
        better = in_order(self._instance, [*kept, *(back(one, gpus) for one in new)])
        return better if better[0] > found[0] * (1 + EQUAL) else found

    def _choose(self, pipelines: tuple[Segments, ...]) -> list[int]:
        """One pipeline at random and others that its GPUs have fast links to, or any."""
        count = min(len(pipelines), int(self._draw.choice(_ANEW)))
        if not count:
            return []
        first = int(self._draw.integers(len(pipelines)))
        others = [place for place in range(len(pipelines)) if place != first]
        self._draw.shuffle(others)
        if self._draw.random() < 0.5:
            own = [gpu for _, gpus in pipelines[first] for gpu in gpus]
            joined = self._instance.links[own].mean(axis=0)
            others.sort(
                key=lambda place: (
                    -float(np.mean([joined[gpus].mean() for _, gpus in _lists(pipelines[place])]))
                )
            )
        return [first, *others[: count - 1]]

    def _solve(self, part: Instance, most: int, known: list[Segments]) -> tuple[Segments, ...]:
        clock = self._clock.part(_PART_S)
        table = rows_of(self._table, part)
        classes = twins(part, _SMALL_VECTORS)
        if classes is not None:
            lattice = Lattice(classes)
            if lattice.pairs() <= _SMALL_PAIRS:
                whole = best_single(part, clock.left_s() / 2)
                return Divider(part, table, classes, lattice, clock).run(most, whole, _silent).pipelines
        best = float(table.values.max(initial=0.0))
        wanted = capacity(part, table, most, best, clock).thresholds
        wanted = (*wanted, *(worth(self._instance, one) for one in known))
        return construct(part, table, wanted, best, most, clock, _silent_several)[1]


def _lists(segments: Segments) -> list[tuple[int, list[int]]]:
    return [(count, list(gpus)) for count, gpus in segments]


def _silent(value: float, bound: float) -> None:
    pass


def _silent_several(found: Several) -> None:
    pass

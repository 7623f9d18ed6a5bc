"""Large fleets: pipelines taken off at falling thresholds, then some of them made anew, while time is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from torchsplit_core.placement.model.instance import Instance, Segments
from torchsplit_core.placement.model.symmetry_classes import symmetry_classes
from torchsplit_core.placement.replicas.capacity import Capacity, capacity
from torchsplit_core.placement.replicas.division_lattice import DivisionLattice
from torchsplit_core.placement.replicas.exact import Divider
from torchsplit_core.placement.replicas.greedy_removal import GreedyRemoval
from torchsplit_core.placement.replicas.pipelines import EQUAL, back, best_single, in_order, part_of, rows_of
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.segments import worth
from torchsplit_core.placement.search.table import Table

_STEPS, _LOWEST = 16, 0.08
"""Thresholds for a whole fleet, down to this share of the best. Chosen, not measured."""

_NEAR, _HIGHER, _LOWER = 4, 1.5, 0.7
"""Thresholds for pipelines made anew, from so many times the best of them down to so many times the least. Chosen, not
measured."""

_SMALL_VECTORS, _SMALL_PAIRS = 3_000, 100_000
"""The largest lattice by which pipelines are made anew exactly: about 1 ms for each look at all its pairs
(division_lattice.py). Chosen, not measured."""

_FIRST = 0.6
"""Share of the time for the next best pipeline, while others are to follow. Chosen, not measured."""

_TRY_S = 0.5
"""Seconds for making pipelines anew once. Chosen, not measured."""

_ANEW = (1, 2, 2, 3)
"""How many pipelines are made anew together: drawn from these, so most often two. Chosen, not measured."""

_LEFT = 64
"""Unused GPUs that pipelines made anew may draw on, those of the fastest links first. Chosen, not measured."""

Several = tuple[float, tuple[Segments, ...]]
"""A sum and its pipelines, the fastest first."""
Tell = Callable[[Several], None]


def falling(wanted: Iterable[float], highest: float, lowest: float, steps: int) -> list[float]:
    """Thresholds of a greedy removal: those wanted up to the highest, and a falling series, from the highest down."""
    series = np.geomspace(highest, lowest, steps).tolist()
    return sorted({*series, *(one for one in wanted if one <= highest)}, reverse=True)


def from_the_best(limit: Capacity, best: float) -> list[float]:
    """Thresholds for a whole fleet whose best single pipeline has this value at most."""
    return falling(limit.thresholds, best, _LOWEST * best, _STEPS)


def construct(
    instance: Instance,
    table: Table,
    prices: np.ndarray,
    thresholds: Sequence[float],
    most: int,
    clock: Clock,
    tell: Tell,
) -> Several:
    """The best of greedy removals from each of the falling thresholds down, by prices and by the number of GPUs."""
    found: Several = (0.0, ())
    removals = [GreedyRemoval(instance, table, prices, clock)]
    if len(set(prices.tolist())) > 1:
        removals.append(GreedyRemoval(instance, table, np.zeros_like(prices), clock))
    for first in _spread(len(thresholds)):
        for removal in removals:
            if clock.over():
                return found
            if thresholds[first] * most <= found[0]:
                continue
            new = in_order(instance, removal.remove(thresholds[first:], most))
            if new[0] > found[0]:
                found = new
                tell(found)
    return found


def one_after_the_other(instance: Instance, first: Segments, most: int, clock: Clock, tell: Tell) -> Several:
    """The best pipeline of the fleet, then of what it leaves, and so on: it needs no table of all segments."""
    pipelines = [first] if first else []
    found = in_order(instance, pipelines)
    while len(pipelines) < most and not clock.over():
        taken = {gpu for one in pipelines for _, gpus in one for gpu in gpus}
        left = [gpu for gpu in range(len(instance.kinds)) if gpu not in taken]
        seconds = clock.left_s() * (_FIRST if len(pipelines) + 1 < most else 1.0)
        new = best_single(part_of(instance, left), seconds).segments if left else ()
        if not new:
            break
        pipelines.append(back(new, left))
        found = in_order(instance, pipelines)
        tell(found)
    return found


def _spread(count: int) -> list[int]:
    """0 to count - 1, those first that lie far from the ones before: every other one of ever finer steps."""
    order: dict[int, None] = {}
    step = 1 << max(count - 1, 0).bit_length()
    while step:
        order.update(dict.fromkeys(range(step // 2, count, step)))
        step //= 2
    return [*order, *(one for one in range(count) if one not in order)]


class Improver:
    """Makes a few pipelines anew on their own GPUs and unused ones; keeps what has a larger sum."""

    def __init__(self, instance: Instance, table: Table, most: int, best: float, clock: Clock) -> None:
        """best: no single pipeline has a higher value."""
        self._instance, self._table, self._most, self._clock = instance, table, most, clock
        self._best = best
        self._draw = np.random.default_rng(0)

    def step(self, found: Several) -> Several:
        """One try; what was given where it is no better."""
        pipelines = found[1]
        chosen = self._choose(pipelines)
        kept = [one for index, one in enumerate(pipelines) if index not in chosen]
        own = [gpu for index in chosen for _, gpus in pipelines[index] for gpu in gpus]
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
        others = [index for index in range(len(pipelines)) if index != first]
        self._draw.shuffle(others)
        if self._draw.random() < 0.5:
            own = [gpu for _, gpus in pipelines[first] for gpu in gpus]
            joined = self._instance.links[own].mean(axis=0)
            others.sort(
                key=lambda index: (
                    -float(np.mean([joined[gpus].mean() for _, gpus in _lists(pipelines[index])]))
                )
            )
        return [first, *others[: count - 1]]

    def _solve(self, part: Instance, most: int, known: list[Segments]) -> tuple[Segments, ...]:
        clock = self._clock.part(_TRY_S)
        table = rows_of(self._table, part)
        classes = symmetry_classes(part, _SMALL_VECTORS)
        if classes is not None:
            lattice = DivisionLattice(classes)
            if lattice.pairs() <= _SMALL_PAIRS:
                whole = best_single(part, clock.left_s() / 2)
                return Divider(part, table, classes, lattice, clock).run(most, whole, _silent).pipelines
        best = self._best
        if table.complete:
            best = min(best, float(table.values.max(initial=0.0)))
        limit = capacity(part, table, most, best, clock)
        worths = [worth(self._instance, one) for one in known] or [best]
        highest = min(best, _HIGHER * max(worths))
        levels = falling([*limit.thresholds, *worths], highest, _LOWER * min(worths), _NEAR)
        return construct(part, table, limit.prices, levels, most, clock, _silent_several)[1]


def _lists(segments: Segments) -> list[tuple[int, list[int]]]:
    return [(count, list(gpus)) for count, gpus in segments]


def _silent(value: float, bound: float) -> None:
    pass


def _silent_several(found: Several) -> None:
    pass

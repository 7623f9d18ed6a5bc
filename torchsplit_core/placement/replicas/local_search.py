"""Large fleets: greedy removal at descending thresholds, then rebuilding some pipelines while time is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance, Segments
from torchsplit_core.placement.model.symmetry_classes import symmetry_classes
from torchsplit_core.placement.replicas.capacity_bound import CapacityBound, capacity_bound
from torchsplit_core.placement.replicas.fleet_partition import FleetPartitioner
from torchsplit_core.placement.replicas.greedy_removal import GreedyRemoval
from torchsplit_core.placement.replicas.partition_lattice import PartitionLattice
from torchsplit_core.placement.replicas.pipelines import (
    EQUAL,
    best_single,
    restrict_table,
    sub_instance,
    sum_and_order,
    to_fleet_indices,
)
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.layer_assignment import pipeline_throughput
from torchsplit_core.placement.search.segment_table import SegmentTable

_STEPS, _LOWEST = 16, 0.08
"""Thresholds for a whole fleet, down to this share of the best. Chosen, not measured."""

_NEAR, _HIGHER, _LOWER = 4, 1.5, 0.7
"""Thresholds for rebuilt pipelines: how many, and their range in multiples of the best and the least of them. Chosen,
not measured."""

_SMALL_VECTORS, _SMALL_PAIRS = 3_000, 100_000
"""The largest lattice for exact rebuilding: about 1 ms for each pass over all its pairs (partition_lattice.py). Chosen,
not measured."""

_FIRST = 0.6
"""Share of the time for the next best pipeline, while others follow. Chosen, not measured."""

_TRY_S = 0.5
"""Seconds for rebuilding pipelines once. Chosen, not measured."""

_ANEW = (1, 2, 2, 3)
"""How many pipelines are rebuilt together: drawn from these, so mostly two. Chosen, not measured."""

_LEFT = 64
"""Unused GPUs for rebuilt pipelines, those with the fastest links first. Chosen, not measured."""

PipelineSet = tuple[float, tuple[Segments, ...]]
"""A sum and its pipelines, the fastest first."""
Tell = Callable[[PipelineSet], None]


def decreasing_thresholds(
    preferred: Iterable[float], highest: float, lowest: float, steps: int
) -> list[float]:
    """Thresholds of a greedy removal: the preferred ones up to the highest, and a series, in descending order."""
    series = np.geomspace(highest, lowest, steps).tolist()
    return sorted({*series, *(threshold for threshold in preferred if threshold <= highest)}, reverse=True)


def fleet_thresholds(limit: CapacityBound, best: float) -> list[float]:
    """Thresholds for a whole fleet whose best single pipeline has at most this value."""
    return decreasing_thresholds(limit.thresholds, best, _LOWEST * best, _STEPS)


def greedy_construction(
    instance: ProblemInstance,
    table: SegmentTable,
    prices: np.ndarray,
    thresholds: Sequence[float],
    most: int,
    clock: SearchClock,
    tell: Tell,
) -> PipelineSet:
    """The best of greedy removals from each of the descending thresholds, by prices and by the number of GPUs."""
    best_set: PipelineSet = (0.0, ())
    removals = [GreedyRemoval(instance, table, prices, clock)]
    if len(set(prices.tolist())) > 1:
        removals.append(GreedyRemoval(instance, table, np.zeros_like(prices), clock))
    for first in _coarse_to_fine(len(thresholds)):
        for removal in removals:
            if clock.over():
                return best_set
            if thresholds[first] * most <= best_set[0]:
                continue
            new = sum_and_order(instance, removal.remove(thresholds[first:], most))
            if new[0] > best_set[0]:
                best_set = new
                tell(best_set)
    return best_set


def successive_best(
    instance: ProblemInstance, first: Sequence[Segments], most: int, clock: SearchClock, tell: Tell
) -> PipelineSet:
    """The `first` pipelines, the best of the rest of the fleet, and so on: it needs no table of all segments."""
    pipelines = list(first)
    pipeline_set = sum_and_order(instance, pipelines)
    while len(pipelines) < most and not clock.over():
        taken = {gpu for pipeline in pipelines for _, gpus in pipeline for gpu in gpus}
        left = [gpu for gpu in range(len(instance.kinds)) if gpu not in taken]
        seconds = clock.left_s() * (_FIRST if len(pipelines) + 1 < most else 1.0)
        new = best_single(sub_instance(instance, left), seconds).segments if left else ()
        if not new:
            break
        pipelines.append(to_fleet_indices(new, left))
        pipeline_set = sum_and_order(instance, pipelines)
        tell(pipeline_set)
    return pipeline_set


def _coarse_to_fine(count: int) -> list[int]:
    """0 to count - 1 from coarse to fine: every second one of ever finer steps."""
    order: dict[int, None] = {}
    step = 1 << max(count - 1, 0).bit_length()
    while step:
        order.update(dict.fromkeys(range(step // 2, count, step)))
        step //= 2
    return [*order, *(index for index in range(count) if index not in order)]


class LargeNeighbourhoodSearch:
    """Rebuilds a few pipelines on their own GPUs and unused ones; keeps a larger sum."""

    def __init__(
        self, instance: ProblemInstance, table: SegmentTable, most: int, best: float, clock: SearchClock
    ) -> None:
        """best: no single pipeline has a higher value."""
        self._instance, self._table, self._most, self._clock = instance, table, most, clock
        self._best = best
        self._rng = np.random.default_rng(0)

    def step(self, incumbent: PipelineSet) -> PipelineSet:
        """One try; returns `incumbent` if it is no better."""
        pipelines = incumbent[1]
        chosen = self._choose_neighbourhood(pipelines)
        unchanged = [pipeline for index, pipeline in enumerate(pipelines) if index not in chosen]
        released_gpus = [gpu for index in chosen for _, gpus in pipelines[index] for gpu in gpus]
        used = {gpu for pipeline in pipelines for _, gpus in pipeline for gpu in gpus}
        left = np.array([gpu for gpu in range(len(self._instance.kinds)) if gpu not in used], dtype=np.int64)
        if released_gpus and len(left) > _LEFT:
            near = self._instance.links[released_gpus][:, left].mean(axis=0)
            left = left[np.argsort(-near, kind="stable")[:_LEFT]]
        gpus = sorted([*released_gpus, *left.tolist()])
        if not gpus:
            return incumbent
        self._clock.count("made_anew")
        new = self._rebuild(
            sub_instance(self._instance, gpus),
            self._most - len(unchanged),
            [pipelines[number] for number in chosen],
        )
        better = sum_and_order(
            self._instance, [*unchanged, *(to_fleet_indices(pipeline, gpus) for pipeline in new)]
        )
        return better if better[0] > incumbent[0] * (1 + EQUAL) else incumbent

    def _choose_neighbourhood(self, pipelines: tuple[Segments, ...]) -> list[int]:
        """One random pipeline, and others to which its GPUs have fast links, or any."""
        count = min(len(pipelines), int(self._rng.choice(_ANEW)))
        if not count:
            return []
        first = int(self._rng.integers(len(pipelines)))
        others = [index for index in range(len(pipelines)) if index != first]
        self._rng.shuffle(others)
        if self._rng.random() < 0.5:
            pipeline_gpus = [gpu for _, gpus in pipelines[first] for gpu in gpus]
            joined = self._instance.links[pipeline_gpus].mean(axis=0)
            others.sort(
                key=lambda index: -float(np.mean([joined[list(gpus)].mean() for _, gpus in pipelines[index]]))
            )
        return [first, *others[: count - 1]]

    def _rebuild(self, part: ProblemInstance, most: int, known: list[Segments]) -> tuple[Segments, ...]:
        clock = self._clock.part(_TRY_S)
        table = restrict_table(self._table, part)
        classes = symmetry_classes(part, _SMALL_VECTORS)
        if classes is not None:
            lattice = PartitionLattice(classes)
            if lattice.pairs() <= _SMALL_PAIRS:
                whole = best_single(part, clock.left_s() / 2)
                return (
                    FleetPartitioner(part, table, classes, lattice, clock)
                    .run(most, whole, _ignore_progress)
                    .pipelines
                )
        best = self._best
        if table.complete:
            best = min(best, float(table.values.max(initial=0.0)))
        limit = capacity_bound(part, table, most, best, clock)
        worths = [pipeline_throughput(self._instance, pipeline) for pipeline in known] or [best]
        highest = min(best, _HIGHER * max(worths))
        levels = decreasing_thresholds([*limit.thresholds, *worths], highest, _LOWER * min(worths), _NEAR)
        return greedy_construction(part, table, limit.prices, levels, most, clock, _ignore_pipeline_set)[1]


def _ignore_progress(value: float, bound: float) -> None:
    pass


def _ignore_pipeline_set(pipeline_set: PipelineSet) -> None:
    pass

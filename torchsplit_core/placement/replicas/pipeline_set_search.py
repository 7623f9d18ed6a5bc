"""The largest sum of throughputs of several pipelines: exact if the classes of GPUs are few, else with a bound."""

from __future__ import annotations

import math
from collections.abc import Callable

from torchsplit_core.placement.latency.in_flight import best_pipeline
from torchsplit_core.placement.model.instance import ProblemInstance, SearchResult, Segments
from torchsplit_core.placement.model.symmetry_classes import MOST_VECTORS, symmetry_classes
from torchsplit_core.placement.replicas.capacity_bound import CapacityBound, capacity_bound
from torchsplit_core.placement.replicas.fast_links import FastLinkComponents, find_link_level
from torchsplit_core.placement.replicas.fleet_partition import FleetPartitioner
from torchsplit_core.placement.replicas.greedy_removal import GreedyRemoval
from torchsplit_core.placement.replicas.joint_program import ThresholdGraphs
from torchsplit_core.placement.replicas.local_search import (
    LargeNeighbourhoodSearch,
    PipelineSet,
    fleet_thresholds,
    greedy_construction,
    successive_best,
)
from torchsplit_core.placement.replicas.partition_lattice import MOST_PAIRS, PartitionLattice
from torchsplit_core.placement.replicas.pipelines import EQUAL, PipelineSetResult, sum_and_order
from torchsplit_core.placement.replicas.threshold_vectors import ThresholdVectors, most_pipelines
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.segment_table import SegmentTable, build_table, count_multisets

_SINGLE = 0.2
"""Share of the time for the best single pipeline, with which every bound begins. Chosen, not measured."""

_TABLE, _MOST_MULTISETS, _SOME_MULTISETS = 0.2, 20_000, 1_000
"""Share of the rest for a table, up to how many multisets of kinds a whole one is tried, and the size of a partial one.
Chosen, not measured."""

_FAST_LINKS = 0.3
"""Share of the rest for components of faster links, if the fleet has any. Chosen, not measured."""

_GREEDY, _FEW = 0.7, 6
"""Share of the rest for one best pipeline after the other, if the best leaves room for so few more, or segments are too
many for a table. Chosen, not measured."""

_VECTORS, _PACKINGS, _ANNEALED = 0.8, 0.15, 0.5
"""Share of the rest for vectors of thresholds, if the fleet holds few pipelines; of that for packings, and of what is
left for annealing. Chosen, not measured."""

_COMPLETE_S = 1.0
"""Seconds for further pipelines beside some that were found. Chosen, not measured."""

_CONSTRUCT = 0.5
"""Share of the rest for greedy removal on the whole fleet; then pipelines are rebuilt. Chosen, not measured."""

_PAIRS_A_SECOND = 400_000
"""Pairs of a lattice per second of the limit: listing and examining them then takes about half the time."""

Tell = Callable[[float, float], None]


def search_pipelines(
    instance: ProblemInstance,
    most: int,
    *,
    time_limit_s: float,
    progress: Tell,
    warm_start: SearchResult | None = None,
    lattice_pairs: int = MOST_PAIRS,
) -> PipelineSetResult:
    """At most `most` disjoint pipelines of the largest sum, with its bound.

    progress: called with (value, bound), which only improve. warm_start: a pipeline of a similar instance, tried first.
    lattice_pairs: the size up to which all divisions of the fleet are examined (partition_lattice.py).
    """
    clock = SearchClock.start(time_limit_s)
    most = min(most, len(instance.kinds))
    tell = _monotone_progress(progress)

    def tell_single(value: float, bound: float) -> None:
        tell(value, most * bound)

    single = best_pipeline(
        instance, time_limit_s=_SINGLE * time_limit_s, progress=tell_single, warm_start=warm_start
    )
    if not single.segments and single.proven:
        return PipelineSetResult(0.0, 0.0, True, (), dict(clock.counts))
    table = _table(instance, clock) if most > 1 else None
    if table is None or not (table.complete or math.isfinite(single.bound)):
        proven = single.proven and most == 1
        pipelines = (single.segments,) if single.segments else ()
        return PipelineSetResult(single.value, most * single.bound, proven, pipelines, dict(clock.counts))
    classes = symmetry_classes(instance, MOST_VECTORS)
    lattice = PartitionLattice(classes) if classes is not None else None
    affordable = min(lattice_pairs, _PAIRS_A_SECOND * clock.left_s())
    if classes is not None and lattice is not None and lattice.pairs() <= affordable:
        return FleetPartitioner(instance, table, classes, lattice, clock).run(most, single, tell)
    return _search_large_fleet(instance, table, most, single, clock, tell)


def _table(instance: ProblemInstance, clock: SearchClock) -> SegmentTable | None:
    """Every segment's throughput; if too many, those of the fewest GPUs; None without time for any."""
    table = None
    if count_multisets(instance) <= _MOST_MULTISETS:
        table = build_table(instance, clock.part(_TABLE * clock.left_s()))
    return table or build_table(instance, clock.part(_TABLE * clock.left_s()), part=_SOME_MULTISETS)


def _search_large_fleet(
    instance: ProblemInstance,
    table: SegmentTable,
    most: int,
    single: SearchResult,
    clock: SearchClock,
    tell: Tell,
) -> PipelineSetResult:
    """Large fleets: the bound by prices, and the best set of pipelines within the time."""
    best = single.bound
    if table.complete:
        best = min(best, float(table.values.max(initial=0.0)))
    if best <= 0:
        return PipelineSetResult(0.0, 0.0, True, (), dict(clock.counts))
    limit = capacity_bound(instance, table, most, best, clock)
    bound = limit.bound
    best_set = sum_and_order(instance, [single.segments] if single.segments else [])

    def offer(new: PipelineSet) -> None:
        nonlocal best_set
        best_set = max(best_set, new, key=lambda candidate: candidate[0])
        tell(best_set[0], bound)

    offer(best_set)
    level = find_link_level(instance, table, best) if table.complete else None
    if level is not None:
        part = clock.part(_FAST_LINKS * clock.left_s())
        fast = FastLinkComponents(instance, table, level, most, best, part)
        while True:
            low, unknown = fast.bound()
            bound = min(bound, low)
            offer(sum_and_order(instance, fast.best_known()))
            if part.over() or not unknown or best_set[0] >= bound * (1 - EQUAL):
                break
            for divider, indices in unknown:
                divider.resolve(indices)
        offer(_complete_components(instance, table, fast.best_known(), limit, best, most, clock))
    singles = (single.segments,) if single.segments else ()
    graphs = ThresholdGraphs(instance, table, clock) if table.complete else None
    count = most_pipelines(graphs, most) if graphs is not None else None
    if graphs is not None and count is not None:
        vectors = ThresholdVectors(graphs, best, count)
        part = clock.part(_VECTORS * clock.left_s())
        offer(successive_best(instance, singles, count, part.part(_COMPLETE_S * count), offer))
        vectors.refute_by_packings(best_set[0], part.part(_PACKINGS * part.left_s()))
        for pipelines in vectors.anneal(best_set[0], part.part(_ANNEALED * part.left_s())):
            bound = min(bound, vectors.bound())
            offer(sum_and_order(instance, pipelines))
        while True:
            bound = min(bound, vectors.bound())
            offer(best_set)
            if part.over() or vectors.stuck or best_set[0] >= bound * (1 - EQUAL):
                break
            for pipelines in vectors.step(best_set[0], part):
                offer(successive_best(instance, pipelines, count, part.part(_COMPLETE_S), offer))
    gpus = sum(len(chosen) for _, chosen in single.segments)
    if best_set[0] < bound * (1 - EQUAL) and (
        not table.complete or (count is None and len(instance.kinds) <= _FEW * gpus)
    ):
        part = clock.part(_GREEDY * clock.left_s())
        offer(successive_best(instance, singles, most, part, offer))
    part = clock.part(_CONSTRUCT * clock.left_s())
    offer(
        greedy_construction(instance, table, limit.prices, fleet_thresholds(limit, best), most, part, offer)
    )
    improver = LargeNeighbourhoodSearch(instance, table, most, best, clock)
    while best_set[0] < bound * (1 - EQUAL) and not clock.over():
        better = improver.step(best_set)
        if better[0] > best_set[0]:
            offer(better)
    proven = best_set[0] >= bound * (1 - EQUAL)
    bound = best_set[0] if proven else bound
    return PipelineSetResult(best_set[0], bound, proven, best_set[1], dict(clock.counts))


def _complete_components(
    instance: ProblemInstance,
    table: SegmentTable,
    inside: tuple[Segments, ...],
    limit: CapacityBound,
    best: float,
    most: int,
    clock: SearchClock,
) -> PipelineSet:
    """Pipelines within components of faster links, and others on the remaining GPUs."""
    taken = [gpu for pipeline in inside for _, gpus in pipeline for gpu in gpus]
    removal = GreedyRemoval(instance, table, limit.prices, clock)
    rest = removal.remove(fleet_thresholds(limit, best), most - len(inside), taken)
    return sum_and_order(instance, [*inside, *rest])


def _monotone_progress(progress: Tell) -> Tell:
    """Progress whose value never falls and whose bound never rises."""
    value, bound = 0.0, float("inf")

    def tell(new: float, limit: float) -> None:
        nonlocal value, bound
        if new > value or limit < bound:
            value, bound = max(value, new), min(bound, limit)
            progress(value, bound)

    return tell

"""The largest sum of throughputs of several pipelines: exact where the classes of GPUs are few, else with a bound."""

from __future__ import annotations

import math
from collections.abc import Callable

from torchsplit_core.placement.latency.in_flight import best_pipeline
from torchsplit_core.placement.model.instance import Found, Instance, Segments
from torchsplit_core.placement.model.symmetry_classes import MOST_VECTORS, symmetry_classes
from torchsplit_core.placement.replicas.capacity import Capacity, capacity
from torchsplit_core.placement.replicas.division_lattice import MOST_PAIRS, DivisionLattice
from torchsplit_core.placement.replicas.exact import Divider
from torchsplit_core.placement.replicas.fast_links import FastLinkComponents, level_of
from torchsplit_core.placement.replicas.greedy_removal import GreedyRemoval
from torchsplit_core.placement.replicas.improve import (
    Improver,
    Several,
    construct,
    from_the_best,
    one_after_the_other,
)
from torchsplit_core.placement.replicas.pipelines import EQUAL, Pipelines, in_order
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.table import Table, build_table, count_multisets

_SINGLE = 0.2
"""Share of the time for the best single pipeline, which every bound begins with. Chosen, not measured."""

_TABLE, _MOST_MULTISETS, _SOME_MULTISETS = 0.2, 20_000, 1_000
"""Share of what is left for a table, and up to how many multisets of kinds it is tried whole, else a part of it.
Chosen, not measured."""

_FAST_LINKS = 0.3
"""Share of what is left for components of faster links, where the fleet has such. Chosen, not measured."""

_GREEDY, _FEW = 0.7, 6
"""Share of what is left for one best pipeline after the other, where the best leaves room for few more, or segments are
too many for a table. Chosen, not measured."""

_CONSTRUCT = 0.5
"""Share of what is left then for greedy removal on the whole fleet; the rest is for making pipelines anew. Chosen, not
measured."""

_PAIRS_A_SECOND = 400_000
"""Of a lattice that is looked at whole: listing them and looking at them then take about half the time."""

Tell = Callable[[float, float], None]


def search_pipelines(
    instance: Instance,
    most: int,
    *,
    time_limit_s: float,
    progress: Tell,
    warm_start: Found | None = None,
    lattice_pairs: int = MOST_PAIRS,
) -> Pipelines:
    """At most `most` disjoint pipelines of the largest sum, with its bound.

    progress: called with (value, bound), of which each only improves. warm_start: a pipeline of a similar instance,
    tried first. lattice_pairs: the effort up to which the fleet's divisions are looked at as a whole
    (division_lattice.py).
    """
    clock = Clock.start(time_limit_s)
    most = min(most, len(instance.kinds))
    tell = _only_improving(progress)

    def tell_single(value: float, bound: float) -> None:
        tell(value, most * bound)

    whole = best_pipeline(
        instance, time_limit_s=_SINGLE * time_limit_s, progress=tell_single, warm_start=warm_start
    )
    if not whole.segments and whole.proven:
        return Pipelines(0.0, 0.0, True, (), dict(clock.counts))
    table = _table(instance, clock) if most > 1 else None
    if table is None or not (table.complete or math.isfinite(whole.bound)):
        proven = whole.proven and most == 1
        pipelines = (whole.segments,) if whole.segments else ()
        return Pipelines(whole.value, most * whole.bound, proven, pipelines, dict(clock.counts))
    classes = symmetry_classes(instance, MOST_VECTORS)
    lattice = DivisionLattice(classes) if classes is not None else None
    affordable = min(lattice_pairs, _PAIRS_A_SECOND * clock.left_s())
    if classes is not None and lattice is not None and lattice.pairs() <= affordable:
        return Divider(instance, table, classes, lattice, clock).run(most, whole, tell)
    return _approach(instance, table, most, whole, clock, tell)


def _table(instance: Instance, clock: Clock) -> Table | None:
    """Every segment's worth; where that are too many those of the fewest GPUs; None without time for any."""
    table = None
    if count_multisets(instance) <= _MOST_MULTISETS:
        table = build_table(instance, clock.part(_TABLE * clock.left_s()))
    return table or build_table(instance, clock.part(_TABLE * clock.left_s()), part=_SOME_MULTISETS)


def _approach(
    instance: Instance, table: Table, most: int, whole: Found, clock: Clock, tell: Tell
) -> Pipelines:
    """Large fleets: the bound by prices, and the best set of pipelines that the time allows."""
    best = whole.bound
    if table.complete:
        best = min(best, float(table.values.max(initial=0.0)))
    if best <= 0:
        return Pipelines(0.0, 0.0, True, (), dict(clock.counts))
    limit = capacity(instance, table, most, best, clock)
    bound = limit.bound
    found = in_order(instance, [whole.segments] if whole.segments else [])

    def say(new: Several) -> None:
        nonlocal found
        found = max(found, new, key=lambda one: one[0])
        tell(found[0], bound)

    say(found)
    level = level_of(instance, table, best) if table.complete else None
    if level is not None:
        part = clock.part(_FAST_LINKS * clock.left_s())
        fast = FastLinkComponents(instance, table, level, most, best, part)
        while True:
            low, unknown = fast.bound()
            bound = min(bound, low)
            say(in_order(instance, fast.best()))
            if part.over() or not unknown or found[0] >= bound * (1 - EQUAL):
                break
            for divider, indices in unknown:
                divider.learn(indices)
        say(_with_the_rest(instance, table, fast.best(), limit, best, most, clock))
    gpus = sum(len(chosen) for _, chosen in whole.segments)
    if found[0] < bound * (1 - EQUAL) and (not table.complete or len(instance.kinds) <= _FEW * gpus):
        part = clock.part(_GREEDY * clock.left_s())
        say(one_after_the_other(instance, whole.segments, most, part, say))
    part = clock.part(_CONSTRUCT * clock.left_s())
    say(construct(instance, table, limit.prices, from_the_best(limit, best), most, part, say))
    improver = Improver(instance, table, most, best, clock)
    while found[0] < bound * (1 - EQUAL) and not clock.over():
        better = improver.step(found)
        if better[0] > found[0]:
            say(better)
    proven = found[0] >= bound * (1 - EQUAL)
    bound = found[0] if proven else bound
    return Pipelines(found[0], bound, proven, found[1], dict(clock.counts))


def _with_the_rest(
    instance: Instance,
    table: Table,
    inside: tuple[Segments, ...],
    limit: Capacity,
    best: float,
    most: int,
    clock: Clock,
) -> Several:
    """Pipelines within components of faster links, and others on the GPUs that these leave."""
    taken = [gpu for one in inside for _, gpus in one for gpu in gpus]
    removal = GreedyRemoval(instance, table, limit.prices, clock)
    rest = removal.remove(from_the_best(limit, best), most - len(inside), taken)
    return in_order(instance, [*inside, *rest])


def _only_improving(progress: Tell) -> Tell:
    """Progress whose value never falls and whose bound never rises."""
    value, bound = 0.0, float("inf")

    def tell(new: float, limit: float) -> None:
        nonlocal value, bound
        if new > value or limit < bound:
            value, bound = max(value, new), min(bound, limit)
            progress(value, bound)

    return tell

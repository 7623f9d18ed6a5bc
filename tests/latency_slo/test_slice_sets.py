"""Least sets of slices against every set, parts of slices, and plans of sets that a longer simulation refuses."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from tests.latency_slo.test_slo_planner import model, request
from torchsplit_core import workflow
from torchsplit_core.latency_slo import slice_sets
from torchsplit_core.latency_slo.slice_sets import Part, SliceSet, SliceSets, SliceSetSearch
from torchsplit_core.latency_slo.slo_planner import verify_with_slo
from torchsplit_core.values import SolverOptions, tenants_on

LATER = 1e12
"""A time (time.perf_counter) that no test reaches."""


def sets_by_rates(seed: int, parts: bool = False) -> tuple[SliceSets, list[tuple[int, ...]]]:
    """Of a model whose slices carry rates that add up, one of its two ways lacks a pool; and each set that keeps it."""
    draw = random.Random(seed)
    pools, most, need = 4, tuple(draw.randint(1, 4) for _ in range(4)), draw.randint(5, 60)
    rates = [[draw.randint(1, 9) for _ in range(pools)] for _ in range(2)]
    ways = [tuple(range(pools)), (pools, pools + 1, -1, pools + 2)]

    def rate(item: SliceSet) -> float:
        mine = rates[ways.index(item.way)]
        part = 0.0 if item.part is None else item.part.share * mine[item.part.pool]
        return sum(count * each for count, each in zip(item.counts, mine, strict=True)) + part

    def keeps(counts: tuple[int, ...]) -> bool:
        items = [
            SliceSet(counts, way)
            for way in ways
            if not any(c and w < 0 for c, w in zip(counts, way, strict=True))
        ]
        return any(rate(item) >= need for item in items)

    shares = [Part(pool, share, 0) for share in (0.25, 0.5) for pool in range(pools)] if parts else []
    sets = SliceSets(ways, lambda item: rate(item) >= need, range(pools), most, shares)
    every = [counts for counts in product(*(range(count + 1) for count in most)) if keeps(counts)]
    return sets, every


def least(every: list[tuple[int, ...]]) -> set[tuple[int, ...]]:
    return {
        counts
        for counts in every
        if not any(
            other != counts and all(a <= b for a, b in zip(other, counts, strict=True)) for other in every
        )
    }


def test_the_least_sets_are_those_of_every_set():
    sizes = set()
    for seed in range(60):
        sets, every = sets_by_rates(seed)
        sets.enumerate(LATER)
        assert sets.complete
        assert set(sets.whole) == least(every), seed
        sizes.add(len(sets.whole))
    assert min(sizes) == 0 and max(sizes) > 6


def test_a_set_that_is_rejected_gives_way_to_those_above_it():
    for seed in range(20):
        sets, every = sets_by_rates(seed)
        sets.enumerate(LATER)
        if sets.whole:
            refused = max(sets.whole)
            sets.reject(sets.whole[refused])
            sets.enumerate(LATER)
            left = [counts for counts in every if any(a > b for a, b in zip(counts, refused, strict=True))]
            assert set(sets.whole) == least(left), seed


def test_a_part_stands_for_one_slice_of_a_least_set_and_no_smaller_one_does():
    seen = Counter[float]()
    for seed in range(40):
        sets, _ = sets_by_rates(seed, parts=True)
        sets.enumerate(LATER)
        for item in sets.divided:
            assert item.part is not None and sets.keeps(item)
            seen[item.part.share] += 1
            whole = list(item.counts)
            whole[item.part.pool] += 1
            assert tuple(whole) in sets.whole
            assert item.part.share == 0.25 or not sets.keeps(
                replace(item, part=replace(item.part, share=0.25))
            )
    assert min(seen[0.25], seen[0.5]) > 10


def test_without_time_the_sets_are_not_said_to_be_complete():
    sets, every = sets_by_rates(3)
    sets.enumerate(time.perf_counter() - 1.0)
    assert every and not sets.complete


@pytest.mark.slow
def test_plans_of_sets_that_only_seemed_to_hold_are_replaced(monkeypatch: pytest.MonkeyPatch):
    """Every set with the capacity is taken for one that holds, so the first plans fail."""
    asked = replace(request(model("a", 150.0, 60.0), model("b", 60.0, 40.0)), solver=SolverOptions(60.0))
    fewest = workflow.plan(asked).objective.value

    def optimistic(spec, stage, running):
        return sum(point.throughput_rps * count * share for point, count, share in running) > spec.demand_rps

    monkeypatch.setattr(slice_sets, "keeps_limit", optimistic)
    outcome = workflow.plan(asked)
    verify_with_slo(asked, outcome)
    assert outcome.objective.value == fewest


@pytest.mark.repeated
@pytest.mark.slow
def test_small_models_share_slices_where_that_takes_fewer_gpus():
    """Eight models that each keep a slice busy for a tenth of the time: on two GPUs whole, on one as parts."""
    models = [model(f"m{number}", 10.0, 400.0) for number in range(8)]
    whole = replace(request(*models), solver=SolverOptions(60.0))
    shared = replace(whole, sharing="fractional")
    search = SliceSetSearch.of(shared)
    assert search is not None
    search.enumerate(LATER)
    gpus = search.cheapest(float("inf"), 60.0)
    assert gpus is not None and sum(gpu.used for gpu in gpus) == 1
    assert {tenant.share for _, _, tenant in tenants_on(gpus)} <= {0.25, 0.5, 1.0}
    outcomes = [workflow.plan(asked) for asked in (whole, shared)]
    assert [outcome.objective.value for outcome in outcomes] == [2.0, 1.0]
    verify_with_slo(shared, outcomes[1])


def test_memory_and_tenants_limit_the_parts():
    models = [model(f"m{number}", 10.0, 400.0) for number in range(8)]
    shared = replace(request(*models), sharing="fractional")
    large = [
        replace(
            spec,
            variants=(
                replace(
                    spec.variants[0],
                    stages=(
                        replace(
                            spec.variants[0].stages[0],
                            points=tuple(
                                replace(point, memory_gib=4.0) for point in spec.variants[0].stages[0].points
                            ),
                        ),
                    ),
                ),
            ),
        )
        for spec in models
    ]
    for asked, shares in (
        (shared, {0.25, 0.5}),
        (replace(shared, max_tenants_per_slice=3), {0.5}),
        (replace(shared, max_tenants_per_slice=1), set()),
        # 4 GiB are more than half of 1g.6gb, and a quarter of 4g.24gb has room for them.
        (replace(shared, models=tuple(large)), {0.25, 0.5}),
    ):
        search = SliceSetSearch.of(asked)
        assert search is not None
        parts = [part for sets in search.models if sets is not None for part in sets.parts]
        assert {part.share for part in parts} == shares
        for part in parts:
            point = search.problem.choices[part.choice].point
            size = {"1g.6gb": 6.0, "2g.12gb": 12.0, "4g.24gb": 24.0}[point.profile]
            assert (point.memory_gib or 0.0) <= part.share * size

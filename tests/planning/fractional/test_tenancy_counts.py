"""Counted tenancies: their bound against every plan, and plans as their start."""

import random
from dataclasses import replace

import pytest

from benchmarks.fleet_instances import Family, fleet_instance
from tests.support.planning.shared_oracle import best_shared
from tests.support.planning.shared_requests import small
from tests.support.seeds import repeated
from torchsplit_core.planning import plan
from torchsplit_core.planning.fractional.relaxation import aggregate_shares
from torchsplit_core.planning.fractional.tenancy_counts import (
    count_tenancies,
    counts_of,
    dual_feasible,
    longest_latencies,
)
from torchsplit_core.planning.problem.build import build_problem


@pytest.mark.slow
@repeated("seed", range(60), kept=10)
def test_no_plan_is_above_the_bound(seed):
    request = small(seed, "max_min")
    best, problem = best_shared(request), build_problem(request)
    shares = aggregate_shares(problem, float("inf"))
    if best is None or shares is None:
        return
    counts = count_tenancies(problem, shares.bound, 20.0)
    assert counts is None or counts.status == "optimal"
    if counts is not None:
        assert best[0] <= counts.bound * (1 + 1e-6)
        assert counts.bound <= shares.bound * (1 + 1e-6)


@repeated("sharing", ["exclusive", "fractional"])
@pytest.mark.parametrize("kind", ["max_min", "min_gpus"])
def test_a_plan_is_a_start_that_is_not_lost(kind, sharing):
    family = Family(kind=kind, sharing="fractional", limits=True, minima=0.1)
    request = fleet_instance(4, 4, seed=5, family=family, seconds=2.0)
    problem, known = build_problem(request), plan(replace(request, sharing=sharing))
    start = counts_of(problem, known.gpus)
    assert start is not None and known.objective.value is not None
    tenants = sum(len(item.tenants) for gpu in known.gpus for item in gpu.slices)
    assert sum(start.tenancies.values()) == tenants
    assert sum(start.layouts.values()) == sum(any(s.tenants for s in gpu.slices) for gpu in known.gpus)
    longest = longest_latencies(problem, start.tenancies)
    assert longest.keys() == {case for case, item in enumerate(problem.cases) if item.has_latency_levels}
    scale = known.objective.value * 1.5
    counts = count_tenancies(problem, scale, 1.0, longest, start)
    assert counts is not None
    if kind == "max_min":
        assert counts.value >= known.objective.value * (1 - 1e-6)
    else:
        assert counts.value <= known.objective.value * (1 + 1e-6)


def test_parts_that_fit_into_a_slice_fit_by_every_function():
    rng = random.Random(7)
    for _ in range(2000):
        cuts = sorted(rng.random() for _ in range(rng.randint(1, 6)))
        parts = [end - begin for begin, end in zip([0.0, *cuts], cuts, strict=False)]
        for k in range(1, 6):
            assert sum(dual_feasible(k, part) for part in parts) <= 1 + 1e-9
    assert [dual_feasible(1, part) for part in (0.4, 0.5, 0.6)] == [0.0, 0.5, 1.0]


@repeated(("models", "gpus"), [(4, 4), (6, 8)])
def test_without_known_memory_shared_slices_are_planned_as_whole_ones(models, gpus):
    request = fleet_instance(
        models, gpus, seed=1, family=Family(sharing="fractional", memory=False), seconds=20.0
    )
    shared, whole = plan(request), plan(replace(request, sharing="exclusive"))
    assert shared.status == whole.status == "optimal"
    assert shared.objective.sorted_normalised == whole.objective.sorted_normalised
    assert shared.objective.bound == whole.objective.bound

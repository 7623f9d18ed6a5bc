"""A bound of the least cost with shared slices, against every plan of small requests."""

import math
import time
from dataclasses import replace

import pytest

from benchmarks.fleet_instances import Family, fleet_instance
from tests.support.planning.requests import on_a30, simple
from tests.support.planning.shared_oracle import best_shared
from tests.support.planning.shared_requests import crowded
from tests.support.seeds import repeated
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.fractional.model_patterns.cost_bounds import bound_cost
from torchsplit_core.planning.fractional.model_patterns.level_bounds import positive_rates
from torchsplit_core.planning.fractional.model_patterns.level_program import ModelPatterns
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.objective import unit_rps
from torchsplit_core.values import FleetEntry, Objective, PlanRequest


def bound_of(request: PlanRequest, most: float = math.inf) -> float:
    """The bound of a request, with all the time there is."""
    problem = build_problem(request)
    rates = positive_rates(problem, 0.0)
    bound = bound_cost(ModelPatterns(problem), rates, most, time.perf_counter() + 60.0)
    assert bound is not None
    return bound


def at_level(request: PlanRequest, level: float, gpus: int) -> PlanRequest:
    """The request with minima of this level, on so many GPUs, of which the fewest are asked."""
    models = tuple(replace(spec, min_throughput_rps=level * unit_rps(spec)) for spec in request.models)
    fleet = (replace(request.gpus[0], count=gpus),)
    return replace(request, gpus=fleet, models=models, objective=Objective("min_gpus"))


@pytest.mark.slow
@repeated("seeds", [(3, 5, 19, 21), (4, *range(11, 19), 20, 22, 23, 24, 27)])
def test_no_plan_is_cheaper_than_the_bound(seeds: tuple[int, ...]):
    tight = asked = 0
    for seed in seeds:
        request = crowded(seed)
        levels = [best_shared(replace(request, gpus=(replace(request.gpus[0], count=n),))) for n in (1, 2)]
        for gpus, best in zip((1, 2), levels, strict=True):
            if best is None or best[0] <= 0:
                continue
            # So many GPUs reach it: the bound is no more; one more is asked where they do not.
            assert bound_of(at_level(request, best[0] * (1 - 1e-6), 3)) <= gpus
            asked += 1
            tight += bound_of(at_level(request, best[0] * 1.01, 3)) > gpus
    assert tight > asked / 3


def test_gpus_of_two_costs():
    """A dear GPU holds both, the cheap ones one each, and one cheap GPU is not enough."""
    models = [simple(name, {"4g.24gb": 10.0}, demand_rps=10.0, min_throughput_rps=8.0) for name in ("a", "b")]
    request = on_a30(*models, objective=Objective("min_gpus"), sharing="fractional")
    fleet = (FleetEntry("A30-24GB", cost=5.0), FleetEntry("A30-24GB", count=2, cost=2.0))
    request = replace(request, gpus=fleet)
    assert bound_of(request) == pytest.approx(4.0)
    # Nothing above a known plan is looked at.
    assert bound_of(request, most=3.0) == pytest.approx(3.0)
    outcome = plan(request, reasons=False)
    assert outcome.status == "optimal" and outcome.objective.value == pytest.approx(4.0)


def test_a_model_without_an_option_and_too_many_gpus_are_left_open():
    request = fleet_instance(3, 3, seed=1, family=Family(kind="min_gpus", sharing="fractional", minima=0.1))
    problem = build_problem(request)
    patterns = ModelPatterns(problem)
    assert bound_cost(patterns, {99: 1.0}, math.inf, time.perf_counter() + 5.0) is None
    many = build_problem(replace(request, gpus=tuple(replace(e, count=400) for e in request.gpus)))
    rates = positive_rates(many, 0.0)
    assert bound_cost(ModelPatterns(many), rates, math.inf, time.perf_counter() + 5.0) is None


@pytest.mark.slow
@repeated("seed", [1, 2, 3, 4, 5], kept=1)
def test_the_cheapest_shared_plan_under_limits_is_proven(seed):
    """Divisible GPUs bound it too low."""
    family = Family(sharing="fractional", kind="min_gpus", costs=True, minima=0.3, limits=True)
    request = fleet_instance(6, 4, seed=seed, family=family, seconds=120.0)
    outcome = plan(request, reasons=False)
    assert not list(violations(request, outcome))
    assert outcome.status == "optimal"

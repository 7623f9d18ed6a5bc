"""The cheapest GPUs by patterns, against every plan of tiny fleets."""

import time
from dataclasses import replace

import pytest

from benchmarks.fleet_instances import Family, fleet_instance
from tests.support.planning.oracle import best_plan
from tests.support.planning.pattern_search import searching
from tests.support.planning.requests import random_request
from tests.support.seeds import repeated
from torchsplit_core.planning import plan
from torchsplit_core.planning.patterns import least_cost, solve_patterns
from torchsplit_core.planning.patterns.capacity import fleet_capacity
from torchsplit_core.planning.patterns.least_cost import cheapest_plan
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.values import Objective, ignore_progress


@pytest.mark.slow
@repeated("seed", range(100), kept=12)
def test_the_least_cost_is_that_of_every_plan(seed):
    request = random_request(seed, "min_gpus")
    request = replace(request, colocations=(), objective=Objective("min_gpus"))
    best = best_plan(request)
    problem = build_problem(request)
    solution = solve_patterns(problem, time.perf_counter() + 60.0, ignore_progress)
    if solution is None:
        assert not fleet_capacity(problem).pools
        return
    if best is None:
        assert solution.status == "infeasible"
        return
    assert solution.status == "optimal" and solution.proven == 1
    assert solution.bounds[0] == pytest.approx(-best[0][0], rel=1e-6)


def test_the_bound_holds_and_the_plan_stands_however_little_time_there_is():
    request = fleet_instance(6, 12, seed=2, family=Family(kind="min_gpus", minima=1.0, costs=True))
    proven = plan(request)
    assert proven.status == "optimal" and proven.objective.value is not None
    costs = [group.cost for group in build_problem(request).groups]
    for seconds in (0.0, 0.05, 0.3):
        search = searching(request)
        assert search is not None
        short = cheapest_plan(search, costs, time.perf_counter() + seconds)
        assert short.bound <= proven.objective.value * (1 + 1e-9)
        assert short.plan is None or short.cost >= proven.objective.value * (1 - 1e-9)


def test_costs_have_a_common_step_or_none():
    assert least_cost.cost_step([1.0, 2.5, 4.0]) == 0.5
    assert least_cost.cost_step([1.0, 1.0]) == 1.0
    assert least_cost.cost_step([1.0, 1 / 3]) == 0.0
    assert least_cost._round_up(10.000000000001, 0.5) == 10.0
    assert least_cost._round_up(10.01, 0.5) == 10.5

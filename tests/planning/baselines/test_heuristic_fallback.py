"""With co-locations a search that finds little in its time leaves a plan by a rule, with the search's bound."""

import time
from dataclasses import replace

import pytest

from tests.support.planning.requests import simple
from torchsplit_core.evaluation.mixes import case_request
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.baselines.heuristic_fallback import better_heuristic
from torchsplit_core.values import Colocation, FleetEntry, Objective, PlanRequest, SolverOptions
from torchsplit_core.values.evaluation.outcome import CaseKey


def _pair() -> PlanRequest:
    models = tuple(simple(name, {"2g.12gb": 10.0}) for name in "ab")
    return PlanRequest(
        (FleetEntry("A30-24GB", count=2),), models, colocations=(Colocation(("a", "b"), "hard"),),
        objective=Objective("max_min"), solver=SolverOptions(20.0),
    )  # fmt: skip


@pytest.mark.parametrize("sharing", ["exclusive", "fractional"])
def test_the_large_case_of_the_evaluation_has_a_plan_however_short_its_search(sharing):
    request = case_request(CaseKey("S3", "stock", sharing, "hard", "equal", "planner"), 0.05)
    outcome = plan(request)
    assert outcome.status == "feasible" and outcome.objective.value
    assert outcome.objective.value > 0.9
    assert not list(violations(request, outcome))


def test_a_rule_beats_no_plan_and_a_worse_one_and_takes_the_bound():
    request = _pair()
    known = plan(request)
    assert known.status == "optimal" and known.objective.value == pytest.approx(20.0)
    soon = time.perf_counter() + 20
    assert better_heuristic(request, known, 20.0, soon) is None
    alone = better_heuristic(request, None, 25.0, soon)
    assert alone is not None and alone.objective.bound == 25.0
    assert alone.objective.gap == pytest.approx(0.2) and alone.objective.value == pytest.approx(20.0)
    worse = replace(known, objective=replace(known.objective, value=10.0, sorted_normalised=(10.0, 10.0)))
    better = better_heuristic(request, worse, None, soon)
    assert better is not None and better.objective.bound is None


def test_no_rule_keeps_a_minimum_that_nothing_meets():
    request = _pair()
    models = tuple(replace(model, min_throughput_rps=30.0) for model in request.models)
    assert better_heuristic(replace(request, models=models), None, None, time.perf_counter() + 20) is None

"""Contents GPU by GPU that keep hard co-locations: against every plan of small requests, and where they are used."""

import math
import random
import time
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.fleet_instances import Family, fleet_instance
from tests.support.planning.requests import on_a30, simple
from tests.support.planning.shared_oracle import best_shared
from tests.support.planning.shared_requests import crowded
from tests.support.seeds import repeated
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.fractional import plan as fractional_plan
from torchsplit_core.planning.fractional.colocated_contents import covers, improve_colocated
from torchsplit_core.planning.outcome.assignment import build_planned_gpus
from torchsplit_core.planning.outcome.figures import unproven_outcome
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import Colocation, Objective, PlanOutcome, PlanRequest, PlanStatistics


def improved(request: PlanRequest, known: PlanOutcome | None, bound: float) -> PlanOutcome | None:
    """The plan by contents from the known one on, if any, checked; None without a better one."""
    problem = build_problem(request, per_gpu=True)
    assert covers(problem)
    gpus, level = (), 0.0
    if known is not None:
        assert known.objective.value is not None
        gpus, level = known.gpus, known.objective.value
    assignment = improve_colocated(problem, gpus, level, bound, math.inf)
    if assignment is None:
        return None
    gpus = build_planned_gpus(request, assignment)
    outcome = unproven_outcome(request, gpus, PlanStatistics(0.0, 0.0, 0.0, "none"))
    assert not list(violations(request, replace(outcome, request_sha256=request_hash(request))))
    return outcome


@pytest.mark.slow
@repeated(
    "seeds",
    [(3, 5), (0, 2, 19, 21, 24, 27), (7, 8, 22, 25, 26, 28, 29, 30, 32, 38, 42, 45, 49, 53, 54, 59)],
)
def test_contents_reach_the_best_plan_that_keeps_a_pair_and_none_above_it(seeds: tuple[int, ...]):
    """Two GPUs, two or three models, of which two must stand together; whole slices are not the best everywhere."""
    reached = better = 0
    for seed in seeds:
        single = crowded(seed)
        pair = Colocation((single.models[0].name, single.models[1].name))
        request = replace(single, gpus=(replace(single.gpus[0], count=2),), colocations=(pair,))
        whole = plan(replace(request, sharing="exclusive"), reasons=False)
        best = best_shared(request)
        assert best is not None and whole.objective.value
        outcome = improved(request, whole, 10 * best[0])
        level = whole.objective.value if outcome is None else outcome.objective.value
        assert level is not None and level <= best[0] * (1 + 1e-6)
        better += outcome is not None
        # A model without a limit has at least a hundredth of its slice.
        reached += level >= best[0] * (1 - 0.02)
        assert plan(request, reasons=False).objective.value == pytest.approx(best[0], rel=1e-3)
    assert better >= len(seeds) / 2
    assert reached >= len(seeds) - 1


def test_a_model_that_is_there_for_another_keeps_a_share():
    """The small one needs next to nothing of a second GPU, where it only follows the large one."""
    large = simple("large", {"4g.24gb": 10.0}, demand_rps=10.0)
    small = simple("small", {"4g.24gb": 1e6}, demand_rps=10.0)
    request = on_a30(
        large, small, count=2, colocations=(Colocation(("large", "small")),), objective=Objective("max_min"),
        sharing="fractional",
    )  # fmt: skip
    start = plan(replace(request, gpus=(replace(request.gpus[0], count=1),)), reasons=False)
    outcome = improved(request, start, 10.0)
    assert outcome is not None and outcome.objective.value == pytest.approx(2.0, rel=0.03)
    shares = [
        {tenant.model: tenant.share for item in gpu.slices for tenant in item.tenants} for gpu in outcome.gpus
    ]
    assert len(shares) == 2 and all(item["small"] >= 0.01 * (1 - 1e-6) for item in shares)


def outlasting(seed: int) -> PlanRequest:
    """Two or three models on two GPUs, any of which may be lost; in half of the requests with limits."""
    rng = random.Random(f"outlasting{seed}")
    limit = rng.choice([None, 25.0])
    models = [
        simple(
            name, {"2g.12gb": float(rng.randint(8, 20)), "4g.24gb": float(rng.randint(21, 36))}, demand_rps=10.0,
            min_throughput_rps=rng.choice([2.0, 3.5] if name == "a" else [None, 2.0, 3.5]), max_latency_ms=limit,
        )
        for name in "abc"[: rng.choice([2, 3, 3])]
    ]  # fmt: skip
    layouts = rng.choice([(("2g.12gb",) * 2,), (("2g.12gb",) * 2, ("4g.24gb",))])
    return on_a30(
        *models, count=2, layouts=layouts, sharing="fractional", objective=Objective("leximin", survives=1)
    )


@repeated("seeds", [(0, 7, 9), (2, 5, 6, *range(10, 50))])
def test_contents_reach_the_best_plan_that_survives(seeds):
    better = reached = planned = 0
    for seed in seeds:
        request = outlasting(seed)
        best = best_shared(request)
        whole = plan(replace(request, sharing="exclusive"), reasons=False)
        if best is None or not whole.objective.value:
            continue
        outcome = improved(request, whole, 10 * best[0])
        level = whole.objective.value if outcome is None else outcome.objective.value
        assert level is not None and level <= best[0] * (1 + 1e-6), seed
        planned += 1
        better += outcome is not None
        reached += level >= best[0] * (1 - 1e-3)
        assert plan(request, reasons=False).objective.value == pytest.approx(best[0], rel=1e-3), seed
    assert better >= planned * 0.8 and planned >= 3
    assert reached >= planned * 0.9


def crowd(count: int, rps: float, **more: Any) -> PlanRequest:
    """So many models on two A30s, of which each must keep `rps` of the 10 of a slice without either; in two pairs."""
    models = [
        simple(f"m{number}", {"1g.6gb": 10.0}, demand_rps=10.0, min_throughput_rps=rps)
        for number in range(count)
    ]
    return on_a30(
        *models, count=2, layouts=(("1g.6gb",) * 4,), sharing="fractional",
        objective=Objective("leximin", survives=1), colocations=(Colocation(("m0", "m1")), Colocation(("m2", "m3"))),
        **more,
    )  # fmt: skip


def test_a_first_plan_is_found_where_whole_slices_have_none():
    """Five models on four slices of each GPU, all of them on both: 8 slices of 10 requests/s for 5 models are 16."""
    request = crowd(5, 7.0)
    assert plan(replace(request, sharing="exclusive"), reasons=False).status == "infeasible"
    outcome = improved(request, None, 10.0)
    assert outcome is not None and outcome.objective.value == pytest.approx(1.6, rel=1e-3)


def test_a_first_plan_is_sought_until_time_is_up():
    problem = build_problem(crowd(5, 8.5), per_gpu=True)
    assert improve_colocated(problem, (), 0.0, 10.0, time.perf_counter() + 0.5) is None


@repeated("seeds", [(0, 7), (5, 6, 9, *range(10, 30))])
def test_contents_from_nothing_reach_the_best_plan_that_survives(seeds):
    reached = planned = 0
    for seed in seeds:
        request = outlasting(seed)
        best = best_shared(request)
        if best is None or not any(spec.min_throughput_rps for spec in request.models):
            continue
        outcome = improved(request, None, 10 * best[0])
        assert outcome is not None and outcome.objective.value is not None, seed
        assert outcome.objective.value <= best[0] * (1 + 1e-6), seed
        planned += 1
        reached += outcome.objective.value >= best[0] * (1 - 1e-3)
    assert planned >= 2 and reached >= planned * 0.9


@pytest.mark.slow
@pytest.mark.repeated
def test_a_limited_plan_that_survives_is_one_of_contents(monkeypatch: pytest.MonkeyPatch):
    """Also where whole slices have none that survives, and the plan without a loss is made to."""
    monkeypatch.setattr(fractional_plan, "MAX_PROVEN_TENANCIES", 0)
    family = Family(sharing="fractional", survives=True, minima=0.2, limits=True)
    request = fleet_instance(6, 4, seed=1, family=family, seconds=20.0)
    outcome = plan(request, reasons=False)
    assert not list(violations(request, outcome))
    details = outcome.statistics.details
    assert outcome.objective.value == pytest.approx(
        max(float(details[name]) for name in ("contents_value", "exclusive_value") if name in details),
        rel=1e-3,
    )


@pytest.mark.slow
@pytest.mark.repeated
def test_a_plan_too_large_for_the_exact_program_is_one_of_contents(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fractional_plan, "MAX_EXACT_TENANCIES", 0)
    request = fleet_instance(6, 4, seed=1, family=Family(sharing="fractional", pairs=2), seconds=10.0)
    outcome = plan(request, reasons=False)
    assert not list(violations(request, outcome))
    details = outcome.statistics.details
    assert float(details["contents_value"]) > float(details["exclusive_value"]) * 1.01
    assert outcome.objective.value == pytest.approx(float(details["contents_value"]), rel=1e-3)


def test_what_contents_do_not_count_is_left_to_others():
    family = Family(sharing="fractional", pairs=1)
    few = fleet_instance(4, 2, seed=1, family=family)
    assert covers(build_problem(few))
    assert not covers(build_problem(replace(few, colocations=())))
    assert not covers(build_problem(replace(few, objective=Objective("weighted_sum"))))
    assert not covers(build_problem(fleet_instance(4, 17, seed=1, family=family)))
    models = tuple(replace(spec, min_throughput_rps=1.0) for spec in few.models)
    survives = replace(few, models=models, objective=Objective("leximin", survives=1))
    assert covers(build_problem(survives)) and covers(build_problem(replace(survives, colocations=())))
    tiers = tuple(replace(spec, tier=number) for number, spec in enumerate(few.models))
    assert not covers(build_problem(replace(few, models=tiers)))


def test_a_search_without_time_leaves_the_plan_as_it_is():
    request = fleet_instance(4, 2, seed=1, family=Family(sharing="fractional", pairs=1))
    whole = plan(replace(request, sharing="exclusive"), reasons=False)
    assert whole.objective.value is not None
    problem = build_problem(request, per_gpu=True)
    assert (
        improve_colocated(problem, whole.gpus, whole.objective.value, math.inf, time.perf_counter() - 1.0)
        is None
    )

"""Hard co-locations restored on the layouts of a plan without them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from benchmarks.fleet_instances import Family, fleet_instance
from tests.support.planning.requests import A30, on_a30, simple
from tests.support.seeds import repeated
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.exclusive.plan import plan_exclusive
from torchsplit_core.planning.formulation.leximin import LevelsResult
from torchsplit_core.planning.fractional import plan as fractional_plan
from torchsplit_core.planning.fractional.added_tenants.owners import as_fractional
from torchsplit_core.planning.fractional.added_tenants.slice_classes import add_tenants
from torchsplit_core.planning.fractional.colocated_shares import restore_colocations, share_whole_slices
from torchsplit_core.planning.outcome.assignment import build_planned_gpus
from torchsplit_core.planning.outcome.build import build_planned_models
from torchsplit_core.planning.outcome.figures import unproven_outcome
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import first_bound
from torchsplit_core.planning.timing import Stopwatch
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    Objective,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    SolverOptions,
)

pytestmark = pytest.mark.slow


def restored(request: PlanRequest) -> tuple[PlanOutcome, PlanOutcome | None]:
    """The plan without co-locations, and the one made of it; checked."""
    free_request = replace(request, colocations=())
    free = plan(free_request, reasons=False)
    shares = restore_colocations(
        build_problem(request), build_problem(free_request), free, time.perf_counter() + 120.0, Stopwatch()
    )
    if shares is None:
        return free, None
    gpus = build_planned_gpus(request, shares.assignment)
    outcome = unproven_outcome(request, gpus, PlanStatistics(0.0, 0.0, 0.0, "none"))
    assert not list(violations(request, replace(outcome, request_sha256=request_hash(request))))
    return free, outcome


def following() -> PlanRequest:
    """A large model that takes two GPUs, and a small one that needs a sixth of a slice and must be beside it."""
    large = simple("large", {"4g.24gb": 10.0, "2g.12gb": 4.0}, demand_rps=10.0, max_latency_ms=400.0)
    small = simple("small", {"4g.24gb": 600.0, "2g.12gb": 240.0}, demand_rps=10.0, max_latency_ms=400.0)
    return on_a30(
        large, small, count=2, colocations=(Colocation(("large", "small")),), objective=Objective("leximin"),
        sharing="fractional", solver=SolverOptions(60.0),
    )  # fmt: skip


def test_a_small_model_follows_the_large_one_to_its_gpus():
    request = following()
    free, outcome = restored(request)
    assert outcome is not None
    members = [
        {tenant.model for item in gpu.slices for tenant in item.tenants} for gpu in outcome.gpus if gpu.used
    ]
    assert members == [{"large", "small"}] * 2
    exact = plan(request)
    assert outcome.objective.value == pytest.approx(exact.objective.value, rel=1e-3)
    assert outcome.objective.value <= free.objective.value * (1 + 1e-6)


def test_whole_slices_are_shared_by_the_models_of_their_gpus():
    """The large model gets most of what the small one has of a slice of its own; nothing changes where models are."""
    request = replace(following(), solver=SolverOptions(60.0))
    whole = plan(replace(request, sharing="exclusive"), reasons=False)
    shares = share_whole_slices(build_problem(request), whole.gpus, time.perf_counter() + 120.0, Stopwatch())
    assert shares is not None
    gpus = build_planned_gpus(request, shares.assignment)
    outcome = unproven_outcome(request, gpus, PlanStatistics(0.0, 0.0, 0.0, "none"))
    assert not list(violations(request, replace(outcome, request_sha256=request_hash(request))))
    assert outcome.objective.value >= whole.objective.value * 1.5
    for before, after in zip(whole.gpus, gpus, strict=True):
        models = {tenant.model for item in before.slices for tenant in item.tenants}
        assert {tenant.model for item in after.slices for tenant in item.tenants} <= models


def test_no_plan_where_the_layouts_leave_no_room_for_the_pair():
    """One whole slice a GPU, and a model that takes all of it."""
    models = [simple(f"m{number}", {"4g.24gb": 10.0}, memory_gib=14.0) for number in range(2)]
    request = on_a30(
        *models, count=2, colocations=(Colocation(("m0", "m1")),), objective=Objective("max_min"),
        sharing="fractional", solver=SolverOptions(60.0),
    )  # fmt: skip
    free, outcome = restored(request)
    assert free.objective.value == pytest.approx(10.0)
    assert outcome is None or outcome.objective.value == 0.0
    assert plan(replace(request, gpus=(FleetEntry(A30),))).objective.value == 0.0


def test_plans_too_large_for_the_exact_program_begin_with_it(monkeypatch: pytest.MonkeyPatch):
    """Where the program of all tenants and contents are out of reach, the plan is no worse than the restored one."""
    monkeypatch.setattr(fractional_plan, "MAX_EXACT_TENANCIES", 0)
    monkeypatch.setattr(fractional_plan, "covers", lambda problem: False)
    request = following()
    _, outcome = restored(request)
    planned = plan(request, reasons=False)
    details = planned.statistics.details
    assert outcome is not None
    assert details["colocated_value"] == pytest.approx(outcome.objective.value)
    assert planned.objective.value >= outcome.objective.value * (1 - 1e-6)
    assert not list(violations(request, planned))


def test_a_bound_without_co_locations_counts_where_pooled_shares_have_none_in_time(
    monkeypatch: pytest.MonkeyPatch,
):
    for limit in ("MAX_EXACT_TENANCIES", "MAX_PROVEN_TENANCIES"):
        monkeypatch.setattr(fractional_plan, limit, 0)
    monkeypatch.setattr(fractional_plan, "solve_objective", lambda *args, **options: LevelsResult())
    request = following()
    free = plan(replace(request, colocations=()), reasons=False)
    planned = plan(request, reasons=False)
    assert free.objective.value is not None and planned.objective.value is not None
    assert not list(violations(request, planned))
    assert planned.objective.bound == pytest.approx(first_bound(free.objective), rel=1e-5)
    assert planned.objective.bound >= planned.objective.value


@repeated("seed", [1, 2, 3], kept=0)
def test_second_tenants_of_many_gpus_keep_co_locations(seed: int):
    """Whole slices with four pairs, shared beside: better, and every member stays where its pair is."""
    family = Family(sharing="fractional", pairs=4)
    request = fleet_instance(16, 64, seed=seed, family=family)
    problem = build_problem(request)
    whole = plan_exclusive(
        build_problem(replace(request, sharing="exclusive")),
        time.perf_counter() + 2.0,
        lambda part, text: None,
    )
    assert whole.assignment is not None
    assignment = as_fractional(problem, whole.assignment)
    assert assignment is not None
    before = min(model.normalised for model in build_planned_models(problem, assignment))
    shared = add_tenants(problem, assignment, range(len(problem.cases)), time.perf_counter() + 60.0)
    assert shared is not None
    gpus = build_planned_gpus(request, shared)
    outcome = unproven_outcome(request, gpus, PlanStatistics(0.0, 0.0, 0.0, "none"))
    assert not list(violations(request, replace(outcome, request_sha256=request_hash(request))))
    members = {name for pair in request.colocations for name in pair.models}
    beside = {
        tenant.model
        for gpu in gpus
        for item in gpu.slices
        if len(item.tenants) > 1
        for tenant in item.tenants
    }
    assert beside & members and beside - members
    assert outcome.objective.value is not None and outcome.objective.value > before * (1 - 1e-9)


def test_a_short_limit_has_a_plan_of_many_gpus_with_its_bound():
    request = fleet_instance(16, 64, seed=1, family=Family(sharing="fractional", pairs=4), seconds=0.1)
    outcome = plan(request, reasons=False)
    assert outcome.status == "feasible" and not list(violations(request, outcome))
    # The pooled shares without co-locations.
    assert outcome.objective.gap is not None and outcome.objective.gap < 0.25


@repeated("pairs", [0, 2], kept=0)
def test_plans_on_the_way_rise(pairs: int):
    """Whole slices are plans on the way, too; a search that holds models back reports none of its own levels."""
    request = fleet_instance(12, 40, seed=2, family=Family(sharing="fractional", pairs=pairs), seconds=3.0)
    stood: list[float] = []

    def take(outcome: PlanOutcome) -> None:
        assert outcome.objective.value is not None
        stood.append(outcome.objective.value)

    outcome = plan(request, reasons=False, on_plan=take)
    assert stood and stood == sorted(stood)
    assert outcome.objective.value is not None and outcome.objective.value >= stood[-1] * (1 - 1e-9)

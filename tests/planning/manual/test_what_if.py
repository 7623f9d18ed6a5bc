"""A plan after an edit: the short search's, or the plan before where that holds and is better."""

from dataclasses import replace

import pytest

from tests.support.planning.requests import A30, published
from torchsplit_core.planning import plan
from torchsplit_core.planning.manual import what_if
from torchsplit_core.planning.manual.evaluate import evaluate, from_plan
from torchsplit_core.planning.manual.what_if import plan_with_starts
from torchsplit_core.planning.outcome.build import no_plan
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.verification.outcome import violations
from torchsplit_core.values import FleetEntry, InputFault, Objective, PlanOutcome, PlanRequest, PlanStatistics

NOTHING = PlanStatistics(0.0, 0.0, 0.0, "none")


def weighted(request: PlanRequest, factor: float) -> PlanRequest:
    """The request with another weight of its first model."""
    first, *rest = request.models
    return replace(request, models=(replace(first, weight=first.weight * factor), *rest))


def searching(monkeypatch: pytest.MonkeyPatch, found: PlanOutcome) -> None:
    """A short search that comes back with this."""
    monkeypatch.setattr(what_if, "plan", lambda request, reasons: found)


def layouts(outcome: PlanOutcome) -> dict[str, list[str]]:
    return {gpu.id: [item.profile for item in gpu.slices] for gpu in outcome.gpus if gpu.used}


@pytest.mark.parametrize("kind", ["leximin", "max_min", "weighted_sum", "min_gpus"])
def test_a_search_that_found_nothing_leaves_the_plan_before(monkeypatch, kind):
    request = published(objective=Objective(kind))  # type: ignore[arg-type]
    first, *rest = request.models
    # Something is owed, whatever the objective.
    request = replace(request, models=(replace(first, min_throughput_rps=1.0), *rest))
    before, edited = plan(request), weighted(request, 1.1)
    searching(monkeypatch, no_plan(edited, "timeout", NOTHING))
    outcome = plan_with_starts(edited, (before,), 0.1)
    assert outcome.status == "feasible" and layouts(outcome) == layouts(before)
    assert outcome.request_sha256 == request_hash(edited) and not list(violations(edited, outcome))


def poor(request: PlanRequest, before: PlanOutcome, bound: float) -> PlanOutcome:
    """The plan before without the tenants of one slice, as a search might have found it."""
    gpus = list(from_plan(before))
    gpus[0] = replace(gpus[0], slices=(replace(gpus[0].slices[0], tenants=()), *gpus[0].slices[1:]))
    found = evaluate(request, gpus).outcome
    assert found is not None
    return replace(found, objective=replace(found.objective, bound=bound, gap=0.5))


@pytest.mark.parametrize("kind", ["leximin", "weighted_sum"])
def test_a_worse_plan_gives_way_to_the_one_before_which_takes_its_bound(monkeypatch, kind):
    request = published(objective=Objective(kind))  # type: ignore[arg-type]
    before, edited = plan(request), weighted(request, 1.01)
    best = plan(edited).objective.value
    assert best is not None
    searching(monkeypatch, poor(edited, before, 2 * best))
    outcome = plan_with_starts(edited, (before,), 0.1)
    assert layouts(outcome) == layouts(before) and outcome.objective.bound == 2 * best
    assert not list(violations(edited, outcome))
    near = poor(edited, before, 2 * best)
    searching(monkeypatch, replace(near, objective=replace(near.objective, gap=0.005)))
    assert plan_with_starts(edited, (before,), 0.1).models == near.models


def test_a_plan_that_counts_no_waiting_proves_nothing_where_responses_are_limited():
    request = published()
    assert plan_with_starts(request, (), 5.0).status == "optimal"
    models = tuple(replace(model, max_response_ms=1e6) for model in request.models)
    assert plan_with_starts(replace(request, models=models), (), 5.0).status == "feasible"


def test_a_better_plan_of_the_search_stays(monkeypatch):
    request = published()
    before, edited = plan(request), weighted(request, 3.0)
    best = replace(plan(edited), status="feasible")
    best = replace(best, objective=replace(best.objective, bound=100.0, gap=0.5, proven_levels=0))
    searching(monkeypatch, best)
    assert plan_with_starts(edited, (before,), 0.1).models == best.models


def test_gpus_that_are_gone_and_demands_that_break_are_respected(monkeypatch):
    request = published()
    before = plan(request)
    fewer = replace(request, gpus=(FleetEntry(A30, count=1),))
    searching(monkeypatch, no_plan(fewer, "timeout", NOTHING))
    outcome = plan_with_starts(fewer, (before,), 0.1)
    assert outcome.status == "feasible" and not list(violations(fewer, outcome))
    assert layouts(outcome) == {"gpu0": layouts(before)["gpu0"]}
    first, *rest = request.models
    hard = replace(request, models=(replace(first, min_throughput_rps=1e6), *rest))
    searching(monkeypatch, no_plan(hard, "timeout", NOTHING))
    assert plan_with_starts(hard, (before,), 0.1).status == "timeout"
    with pytest.raises(InputFault):
        monkeypatch.undo()
        plan_with_starts(replace(request, gpus=(FleetEntry("none"),)), (before,), 0.1)

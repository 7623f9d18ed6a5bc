"""Known plans: equal questions share an answer, similar ones a start, and nothing unsound is ever handed out."""

import random
from dataclasses import replace

import pytest

from tests.support.planning.requests import A30, LAYOUTS, random_request
from tests.support.seeds import repeated
from torchsplit_core.jobs.job_kinds import RequestParameters, SweepParameters
from torchsplit_core.jobs.plan import explain_job, plan_job
from torchsplit_core.jobs.sweep import sweep_job
from torchsplit_core.planning import plan
from torchsplit_core.planning.explanation.applied_change import apply_effect
from torchsplit_core.planning.infeasibility.notes import NO_RELAXATION
from torchsplit_core.planning.manual import what_if
from torchsplit_core.planning.manual.what_if import better_start, plan_with_starts
from torchsplit_core.planning.outcome.build import no_plan
from torchsplit_core.planning.request import equivalence
from torchsplit_core.planning.request.equivalence import equivalence_hash
from torchsplit_core.planning.verification.outcome import violations
from torchsplit_core.values import (
    FleetEntry,
    Objective,
    PlanModel,
    PlanRequest,
    PlanStatistics,
    Point,
    Stage,
    Variant,
)
from torchsplit_core.workspace.plan_cache import cache
from torchsplit_core.workspace.plan_cache.cache import PlanCache
from torchsplit_core.workspace.plan_cache.warm_start_ranking import PlanSummary, rank_warm_starts
from torchsplit_core.workspace.store import Store, Workspace

NOTHING = PlanStatistics(0.0, 0.0, 0.0, "none")


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    return Store(tmp_path).create("w")


def model(name: str, small: float, whole: float, **more: float) -> PlanModel:
    points = (Point(A30, "1g.6gb", 1, small, 10.0), Point(A30, "4g.24gb", 1, whole, 5.0))
    return PlanModel(name, (Variant("whole", (Stage("whole", points),)),), demand_rps=10.0, **more)  # type: ignore[arg-type]


def request(*entries: FleetEntry) -> PlanRequest:
    return PlanRequest(
        entries or (FleetEntry(A30, count=2),), (model("a", 10.0, 35.0), model("b", 4.0, 30.0))
    )


def test_equal_questions_share_an_answer_under_the_ids_of_each(workspace):
    known, asked = PlanCache(workspace), request()
    outcome = plan(asked)
    known.store(asked, outcome)
    same = replace(
        request(FleetEntry(A30, "left"), FleetEntry(A30, "right")),
        solver=replace(asked.solver, time_limit_s=7.0),
    )
    answer = known.lookup(same)
    assert answer is not None and [gpu.id for gpu in answer.gpus] == ["left", "right"]
    assert not list(violations(same, answer)) and answer.objective == outcome.objective
    assert equivalence_hash(same) == equivalence_hash(asked)
    for other in (
        request(FleetEntry(A30, count=3)),
        request(FleetEntry(A30), FleetEntry(A30, layouts=LAYOUTS[:1])),
        request(FleetEntry(A30), FleetEntry(A30, node="n1")),
        replace(asked, models=(replace(asked.models[0], demand_rps=11.0), asked.models[1])),
        replace(asked, sharing="fractional"),
        replace(asked, solver=replace(asked.solver, plan_at="low")),
    ):
        assert equivalence_hash(other) != equivalence_hash(asked) and known.lookup(other) is None


def test_the_order_of_a_mixed_fleet_is_no_part_of_the_question(workspace):
    known = PlanCache(workspace)
    only = FleetEntry(A30, layouts=LAYOUTS[:1])
    asked, turned = request(only, FleetEntry(A30), only), request(FleetEntry(A30), replace(only, count=2))
    known.store(asked, plan(asked))
    answer = known.lookup(turned)
    assert answer is not None and not list(violations(turned, answer))
    assert answer.objective.value == pytest.approx(plan(turned).objective.value)


def test_a_worse_answer_never_replaces_a_better_one(workspace):
    known, asked = PlanCache(workspace), request()
    best = plan(asked)
    known.store(asked, best)
    # That of one GPU, the other idle.
    worse = better_start(asked, no_plan(asked, "timeout", NOTHING), plan(request(FleetEntry(A30))))
    assert worse.status == "feasible"
    known.store(asked, no_plan(asked, "timeout", NOTHING))
    known.store(asked, worse)
    answer = known.lookup(asked)
    assert answer is not None and answer.status == "optimal" and answer.objective == best.objective


def test_an_infeasible_answer_keeps_its_best_reasons(workspace):
    known = PlanCache(workspace)
    asked = replace(request(), models=(model("a", 10.0, 35.0, min_throughput_rps=1e4),))
    settled = plan(asked)
    known.store(asked, plan_with_starts(asked, (), 1.0))
    first = known.lookup(asked)
    assert first is not None and NO_RELAXATION in first.warnings
    for outcome in (settled, plan_with_starts(asked, (), 1.0)):
        known.store(asked, outcome)
        answer = known.lookup(asked)
        assert answer is not None and answer.least_relaxation == settled.least_relaxation
        assert answer.warnings == settled.warnings


@repeated("seed", range(12), kept=4)
def test_what_is_handed_out_is_sound_and_starts_never_make_an_edit_worse(workspace, seed):
    rng = random.Random(seed)
    known, asked = (
        PlanCache(workspace),
        random_request(seed, rng.choice(["leximin", "weighted_sum", "min_gpus"])),
    )
    known.store(asked, plan(asked))
    first, *rest = asked.models
    edited = replace(
        asked, models=(replace(first, demand_rps=first.demand_rps * rng.choice([0.5, 1.3, 3.0])), *rest)
    )
    answer = known.lookup(asked)
    assert answer is None or not list(violations(asked, answer))
    alone = plan_with_starts(edited, (), 5.0)
    begun = plan_with_starts(edited, known.warm_starts(edited), 5.0)
    assert not list(violations(edited, begun)) and begun.status == alone.status
    if alone.objective.value is not None:
        assert begun.objective.value == pytest.approx(alone.objective.value)


def test_a_plan_on_some_layouts_is_a_start_for_all(workspace, monkeypatch):
    known = PlanCache(workspace)
    some, every = request(FleetEntry(A30, layouts=LAYOUTS[:3], count=2)), request()
    best = plan(some)
    known.store(some, best)
    (start,) = known.warm_starts(every)
    nothing = no_plan(every, "timeout", NOTHING)
    monkeypatch.setattr(what_if, "plan", lambda asked, reasons: nothing)
    begun = plan_with_starts(every, (start,), 0.1)
    assert begun.objective.value == pytest.approx(best.objective.value) and not list(violations(every, begun))


def test_the_most_promising_start_comes_first(workspace):
    known, asked = PlanCache(workspace), request()
    for count in (1, 2, 5):
        fleet = request(FleetEntry(A30, count=count))
        known.store(fleet, plan(fleet))
    three = request(FleetEntry(A30, count=3))
    used = [sum(gpu.used for gpu in start.gpus) for start in known.warm_starts(three)]
    assert used == [2, 1, 5]  # as they stand, the better first; then what has too many GPUs
    assert known.warm_starts(replace(asked, models=asked.models[:1])) == ()


def test_a_start_that_breaks_a_limit_comes_after_those_that_keep_it() -> None:
    asked = replace(request(), models=(model("a", 10.0, 35.0, max_latency_ms=10.0),))
    plans = {
        name: PlanSummary({A30: 1}, {"a": rate}, {"a": latency_ms})
        for name, rate, latency_ms in (
            ("fast and late", 90.0, 10.5),
            ("at the limit", 50.0, 10.0),
            ("unknown", 40.0, None),
            ("early", 30.0, 5.0),
        )
    }
    assert rank_warm_starts(asked, plans) == ["at the limit", "unknown", "early", "fast and late"]


def test_the_oldest_go(workspace, monkeypatch):
    monkeypatch.setattr(cache, "MOST_PLANS", 2)
    known = PlanCache(workspace)
    requests = [request(FleetEntry(A30, count=count)) for count in (1, 2, 3)]
    for asked in requests:
        known.store(asked, plan(asked))
    assert [known.lookup(asked) is not None for asked in requests] == [False, True, True]


def test_plans_an_explanation_and_a_sweep_came_upon_are_known(workspace):
    asked = replace(request(), objective=Objective("max_min"))
    workspace.put("plan_request", "r", asked)
    plan_job(workspace, RequestParameters("r"), lambda *_: None)
    explain_job(workspace, RequestParameters("r"), lambda *_: None)
    known, explained = PlanCache(workspace), workspace.get("plan", "r")
    more = next(c for c in explained.explanation.changes if c.what == "gpu" and c.new > c.old)
    larger = apply_effect(asked, more)
    assert larger is not None
    answer = known.lookup(larger)
    assert answer is not None and answer.status == "optimal"
    assert answer.objective.value == pytest.approx(more.value_after)
    sweep_job(workspace, SweepParameters("r", "gpus", A30, (1.0, 4.0)), lambda *_: None)
    for count in (1, 4):
        answer = known.lookup(replace(asked, gpus=(FleetEntry(A30, count=count),)))
        assert answer is not None and answer.status == "optimal"


def test_a_search_takes_over_what_is_known(workspace, monkeypatch):
    asked = request()
    PlanCache(workspace).store(asked, plan(asked))
    workspace.put("plan_request", "r", asked)
    monkeypatch.setattr(
        "torchsplit_core.workflow.plan", lambda *_, **__: pytest.fail("it was searched for again")
    )
    assert plan_job(workspace, RequestParameters("r"), lambda *_: None)["status"] == "optimal"
    assert workspace.get("plan", "r").objective == plan(asked).objective


def test_what_another_catalogue_proved_is_not_known(workspace, monkeypatch):
    known, asked = PlanCache(workspace), request()
    known.store(asked, plan(asked))
    assert known.lookup(asked) is not None
    monkeypatch.setattr(equivalence, "_catalogue_hash", lambda: "another")
    assert known.lookup(asked) is None

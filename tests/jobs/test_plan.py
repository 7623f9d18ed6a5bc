"""Plan jobs: what stands while a search goes on; and of requests with limits of the response time: simulated plans,
progress, and reasons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.planning.edits import with_model
from tests.support.planning.requests import on_a30
from torchsplit_core import workflow
from torchsplit_core.jobs.job_kinds import RequestParameters
from torchsplit_core.jobs.plan import plan_job
from torchsplit_core.latency_slo.incumbent import is_settled, update_incumbent
from torchsplit_core.latency_slo.slo_planner import verify_with_slo
from torchsplit_core.planning import plan
from torchsplit_core.planning.infeasibility.notes import SMALLER
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.verification.outcome import violations
from torchsplit_core.values import (
    GammaArrivals,
    Objective,
    PlanModel,
    PlannedGpu,
    PlanOutcome,
    PlanRequest,
    Point,
    SolverOptions,
    Stage,
    Variant,
)
from torchsplit_core.workspace.store import Store, Workspace

A30 = "A30-24GB"


def request(limit_ms: float) -> PlanRequest:
    points = tuple(
        Point(A30, profile, 1, 1000 / time_ms, time_ms)
        for profile, time_ms in (("1g.6gb", 20.0), ("4g.24gb", 5.0))
    )
    whole = Variant("whole", (Stage("whole", points),))
    model = PlanModel(
        "a", (whole,), demand_rps=30.0, max_response_ms=limit_ms, arrivals=GammaArrivals(30.0, 1.5)
    )
    return on_a30(model, count=2, objective=Objective("min_gpus"), solver=SolverOptions(20.0))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Store(tmp_path).create("w")


@pytest.mark.slow
def test_a_plan_job_simulates_before_it_stores(workspace):
    asked = request(60.0)
    workspace.put("plan_request", "r", asked)
    said: list[tuple[float, str]] = []
    found = plan_job(workspace, RequestParameters("r"), lambda share, text: said.append((share, text)))
    assert found == {"plan": "r", "status": "optimal"}
    kept = workspace.get("plan", "r")
    assert kept.request_sha256 == request_hash(asked)
    verify_with_slo(asked, kept)
    (model,) = kept.models
    assert model.response_ms is not None and 5.0 < model.response_ms.p95 <= 60.0
    assert [share for share, _ in said] == sorted(share for share, _ in said)
    assert any("simulating" in text for _, text in said)


def test_a_limit_that_nothing_keeps_is_stored_with_its_reason(workspace):
    workspace.put("plan_request", "r", request(4.0))
    assert plan_job(workspace, RequestParameters("r"), lambda *_: None)["status"] == "infeasible"
    (conflict,) = workspace.get("plan", "r").conflicts
    assert [demand.demand for demand in conflict.demands] == [
        "max_response_ms"
    ] and "5 ms" in conflict.message


def plain(count: int = 2, minimum: float | None = None) -> PlanRequest:
    """Two models without limits of their responses."""
    first = request(60.0).models[0]
    models = tuple(
        replace(first, name=name, max_response_ms=None, arrivals=None, min_throughput_rps=minimum)
        for name in ("a", "b")
    )
    return on_a30(*models, count=count, solver=SolverOptions(20.0))


class Searched(Exception):
    """A search that was begun and cancelled."""


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[PlanRequest]:
    """The requests that are searched for; each search is cancelled at once."""
    found: list[PlanRequest] = []

    def cancelled(asked: PlanRequest, **_: object) -> PlanOutcome:
        found.append(asked)
        raise Searched

    monkeypatch.setattr(workflow, "plan", cancelled)
    return found


def open_plan(asked: PlanRequest) -> PlanOutcome:
    best = plan(asked)
    goal = replace(best.objective, bound=(best.objective.value or 0.0) * 2, gap=0.5, proven_levels=0)
    return replace(best, status="feasible", objective=goal)


def test_a_proven_plan_is_not_searched_for_again(workspace, searches):
    asked = plain()
    workspace.put("plan_request", "r", asked)
    workspace.put("plan", "r", plan(asked))
    assert plan_job(workspace, RequestParameters("r"), lambda *_: None)["status"] == "optimal"
    assert not searches


def test_a_cancelled_search_leaves_the_plan_that_stands(workspace, searches):
    asked = plain()
    standing = open_plan(asked)
    workspace.put("plan_request", "r", asked)
    workspace.put("plan", "r", standing)
    with pytest.raises(Searched):
        plan_job(workspace, RequestParameters("r"), lambda *_: None)
    # Without a first look, which would be a worse plan.
    assert searches == [asked] and workspace.get("plan", "r") == standing


def test_a_worse_plan_of_a_longer_search_leaves_its_bound_alone(workspace, monkeypatch):
    asked = plain()
    standing = open_plan(asked)
    one = plan(plain(1))
    bound = 1.5 * (standing.objective.value or 0.0)
    worse = replace(
        one,
        request_sha256=request_hash(asked),
        status="feasible",
        gpus=(*one.gpus, PlannedGpu("gpu1", A30, False)),
        objective=replace(one.objective, bound=bound, gap=0.9, proven_levels=0),
    )
    workspace.put("plan_request", "r", asked)
    workspace.put("plan", "r", standing)
    monkeypatch.setattr(workflow, "plan", lambda asked, **_: worse)
    plan_job(workspace, RequestParameters("r"), lambda *_: None)
    kept = workspace.get("plan", "r")
    assert kept.gpus == standing.gpus and kept.objective.bound == pytest.approx(bound)
    assert kept.objective.gap == pytest.approx(1 / 3)
    assert update_incumbent(asked, standing, plan(asked)).status == "optimal"


def test_reasons_that_are_not_settled_are_searched_on(workspace, monkeypatch):
    asked = plain(minimum=1e6)
    settled = plan(asked)
    assert settled.status == "infeasible" and is_settled(asked, settled)
    hasty = replace(settled, warnings=(SMALLER,), least_relaxation=settled.least_relaxation[:1])
    answers = [settled]
    monkeypatch.setattr(workflow, "plan", lambda asked, **_: answers.pop(0))
    workspace.put("plan_request", "r", asked)
    workspace.put("plan", "r", hasty)
    plan_job(workspace, RequestParameters("r"), lambda *_: None)
    assert not answers and workspace.get("plan", "r").least_relaxation == settled.least_relaxation


def plan_job_steps(workspace: Workspace, asked: PlanRequest, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What a plan job of this request says, and each plan that stands as soon as the planner has handed it out."""
    steps: list[object] = []
    search = workflow.plan

    def watched(asked: PlanRequest, **options: Any) -> PlanOutcome:
        def show(handed: PlanOutcome) -> None:
            on_plan(handed)
            steps.append(workspace.get("plan", "r"))

        on_plan = options.pop("on_plan")
        return search(asked, on_plan=show, **options)

    monkeypatch.setattr(workflow, "plan", watched)
    workspace.put("plan_request", "r", asked)
    plan_job(workspace, RequestParameters("r"), lambda share, text: steps.append(text))
    return steps


def test_the_first_plan_stands_while_its_proof_is_searched_for(workspace, monkeypatch):
    asked = plain()
    steps = plan_job_steps(workspace, asked, monkeypatch)
    said = steps.index("a first plan is shown; proving that none is better")
    first = steps[said + 1]
    assert steps[0] == "looking for a first plan" and isinstance(first, PlanOutcome)
    assert first.status == "feasible" and not list(violations(asked, first))
    assert any(isinstance(step, str) for step in steps[said + 2 :])
    assert workspace.get("plan", "r").status == "optimal"


def test_that_there_is_no_plan_stands_while_its_reasons_are_searched_for(workspace, monkeypatch):
    asked = plain(minimum=1e6)
    steps = plan_job_steps(workspace, asked, monkeypatch)
    first = steps[steps.index("searching on") + 1]
    assert isinstance(first, PlanOutcome)
    assert first.status == "infeasible" and not first.conflicts and not is_settled(asked, first)
    assert is_settled(asked, workspace.get("plan", "r"))


def test_a_plan_that_was_not_simulated_is_open_where_responses_are_limited():
    asked = request(60.0)
    free = plan(replace(asked, models=(replace(asked.models[0], max_response_ms=None),)))
    assert free.status == "optimal" and not is_settled(asked, free)
    assert update_incumbent(asked, free, replace(free, status="feasible")).status == "feasible"


def test_a_better_plan_that_stands_takes_over_the_levels_that_are_proven():
    asked = plain(2)
    asked = with_model(asked, 1, demand_rps=17.0)
    best = plan(asked)
    levels = best.objective.sorted_normalised
    assert best.status == "optimal" and levels[0] < levels[1]
    standing = replace(
        best, status="feasible", objective=replace(best.objective, proven_levels=0, bound=9.0, gap=0.5)
    )
    # Another search proved the first level and gave less at the second.
    models = tuple(
        replace(one, normalised=0.9 * one.normalised, throughput_rps=0.9 * one.throughput_rps)
        if one.normalised == levels[1]
        else one
        for one in best.models
    )
    goal = replace(
        best.objective,
        proven_levels=1,
        bound=2 * levels[1],
        gap=0.5,
        sorted_normalised=(levels[0], 0.9 * levels[1]),
    )
    kept = update_incumbent(asked, standing, replace(best, status="feasible", models=models, objective=goal))
    assert kept.gpus == standing.gpus and kept.objective.proven_levels == 1
    assert kept.objective.bound == pytest.approx(2 * levels[1]) and kept.objective.gap == pytest.approx(0.5)
    assert not list(violations(asked, kept))

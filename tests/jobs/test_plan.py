"""Plan jobs of requests with limits of the response time: simulated plans, progress, and reasons."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsplit_core.jobs.names import RequestParameters
from torchsplit_core.jobs.plan import plan_job
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.responding.plan import verify_responding
from torchsplit_core.values import (
    FleetEntry,
    GammaArrivals,
    Objective,
    PlanModel,
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
    return PlanRequest(
        (FleetEntry(A30, count=2),), (model,), objective=Objective("min_gpus"), solver=SolverOptions(20.0)
    )


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Store(tmp_path).create("w")


@pytest.mark.slow
def test_a_plan_job_simulates_before_it_stores(workspace: Workspace) -> None:
    asked = request(60.0)
    workspace.put("plan_request", "r", asked)
    said: list[tuple[float, str]] = []
    found = plan_job(workspace, RequestParameters("r"), lambda share, text: said.append((share, text)))
    assert found == {"plan": "r", "status": "optimal"}
    plan = workspace.get("plan", "r")
    assert plan.request_sha256 == request_hash(asked)
    verify_responding(asked, plan)
    (model,) = plan.models
    assert model.response_ms is not None and 5.0 < model.response_ms.p95 <= 60.0
    assert [share for share, _ in said] == sorted(share for share, _ in said)
    assert any("simulating" in text for _, text in said)


def test_a_limit_that_nothing_keeps_is_stored_with_its_reason(workspace: Workspace) -> None:
    workspace.put("plan_request", "r", request(4.0))
    assert plan_job(workspace, RequestParameters("r"), lambda *_: None)["status"] == "infeasible"
    (conflict,) = workspace.get("plan", "r").conflicts
    assert [demand.demand for demand in conflict.demands] == [
        "max_response_ms"
    ] and "5 ms" in conflict.message

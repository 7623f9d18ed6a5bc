"""No point of a sweep over touched GPUs is worse than a stricter one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planning.test_limited_change import tenant, two_gpus
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.outcome.build import no_plan
from torchsplit_core.planning.sweep import workers
from torchsplit_core.planning.sweep.points import SweepRequest, sweep_requests
from torchsplit_core.planning.sweep.stricter_limit import stricter_plans
from torchsplit_core.values import PlanOutcome, PlanStatistics, StateInstance
from torchsplit_core.workflow.sweeps import sweep

REQUEST = two_gpus(None, StateInstance("1g.6gb", 2, None, (tenant("a"),)))
WHAT = SweepRequest("touched_gpus", "", (0.0, 1.0, 2.0))
REQUESTS = dict(sweep_requests(REQUEST, WHAT))


@pytest.fixture(scope="module")
def solved() -> dict[float, PlanOutcome]:
    return {value: plan(asked) for value, asked in REQUESTS.items()}


def worse(outcomes: dict[float, PlanOutcome], status: str) -> PlanOutcome:
    """What a search at limit 2 may end with: the plan of limit 0, or none."""
    if status == "timeout":
        return no_plan(REQUESTS[2.0], "timeout", PlanStatistics(0.0, 0.0, 0.0, "none"))
    first = outcomes[0.0]
    objective = replace(first.objective, bound=40.0, gap=1.0, proven_levels=0)
    return replace(first, request_sha256=outcomes[2.0].request_sha256, status="feasible", objective=objective)


@pytest.mark.parametrize("status", ["timeout", "feasible"])
def test_a_worse_or_missing_plan_gives_way_to_that_of_the_stricter_limit(status, solved):
    outcomes = solved | {2.0: worse(solved, status)}
    better = stricter_plans(REQUESTS, outcomes)
    assert set(better) == {2.0}
    taken = better[2.0]
    assert taken.objective.value == solved[1.0].objective.value and taken.status == "feasible"
    assert taken.touched_gpus == solved[1.0].touched_gpus == 1
    assert taken.objective.bound == (40.0 if status == "feasible" else None)
    assert not list(violations(REQUESTS[2.0], taken))
    assert stricter_plans(REQUESTS, outcomes | better) == {}


def test_proven_points_stay(solved):
    assert stricter_plans(REQUESTS, solved) == {}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_in_whatever_order_points_end_the_curve_never_falls(order, solved, monkeypatch):
    outcomes = solved | {2.0: worse(solved, "feasible")}

    def plan_all(requests, limit_s, on_outcome):
        by_hash = {outcome.request_sha256: outcome for outcome in outcomes.values()}
        positions = {request.objective.max_touched_gpus: at for at, request in enumerate(requests)}
        for limit in order:
            on_outcome(positions[limit], outcomes[float(limit)])
        assert len(by_hash) == 3

    monkeypatch.setattr(workers, "plan_all", plan_all)
    stored = {}
    points = sweep(REQUEST, WHAT, on_plan=lambda value, outcome, _: stored.update({value: outcome}))
    assert [point.objective for point in points] == [0.0, 10.0, 10.0]
    assert [stored[value].objective.value for value in WHAT.values] == [0.0, 10.0, 10.0]
    assert all(point.better_at is None for point in points)

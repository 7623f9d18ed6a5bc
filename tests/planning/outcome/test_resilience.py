"""What the loss of a GPU costs, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.planning.requests import A30, on_a30, simple
from tests.support.seeds import repeated
from torchsplit_core.planning import plan
from torchsplit_core.planning.outcome.resilience import failure_losses, survives_failure, worst_failure
from torchsplit_core.values import (
    WHOLE_GPU,
    FleetEntry,
    Objective,
    PlanModel,
    PlanRequest,
    Point,
    Stage,
    Variant,
)

ONE = (("4g.24gb",),)


def test_the_models_that_then_miss_something_are_named_with_what_is_left():
    bert = simple("bert", {"4g.24gb": 10.0}, min_throughput_rps=15.0, demand_rps=25.0)
    request = on_a30(bert, count=2, layouts=ONE)
    outcome = plan(request)
    found = failure_losses(request, outcome.gpus)
    assert [loss.gpu for loss in found] == ["gpu0", "gpu1"]
    (model,) = found[0].models
    assert (model.before_rps, model.left_rps) == (20.0, 10.0)
    assert (model.below_least_rps, model.below_demand_rps) == (5.0, 15.0)
    assert worst_failure(found) == found[0] and found[0].broken_minima == 1
    asked = replace(request, objective=Objective(survives=1))
    assert not survives_failure(asked, outcome.gpus) and survives_failure(request, outcome.gpus)


def test_a_stage_that_is_gone_leaves_nothing():
    points = [(Point(A30, "4g.24gb", 1, rate, 5.0),) for rate in (10.0, 30.0)]
    stages = tuple(Stage(name, mine) for name, mine in zip(("a", "b"), points, strict=True))
    model = PlanModel("cut", (Variant("cut", stages, (0.0,)),), demand_rps=5.0)
    request = PlanRequest((FleetEntry(A30, count=3, layouts=ONE),), (model,))
    left = {
        loss.gpu: [one.left_rps for one in loss.models]
        for loss in failure_losses(request, plan(request).gpus)
    }
    # Two instances of a, one of b: without b nothing, without one a 10 of 20, which is more than the demand.
    assert sorted(left.values()) == [[], [], [0.0]]


def test_the_only_gpu_cannot_be_lost():
    bert = simple("bert", {"4g.24gb": 10.0}, min_throughput_rps=5.0)
    request = on_a30(bert, objective=Objective(survives=1))
    outcome = plan(request)
    assert outcome.status == "infeasible"
    assert "No plan survives the loss of the only GPU" in outcome.conflicts[0].message
    assert outcome.least_relaxation is not None and outcome.least_relaxation[0].new == 0.0


def test_nothing_to_hold_is_a_warning():
    request = on_a30(simple("bert", {"4g.24gb": 10.0}), objective=Objective(survives=1))
    outcome = plan(request)
    assert outcome.status == "optimal" and any("No model has a minimum" in text for text in outcome.warnings)


@pytest.mark.slow
@repeated("sharing", ["exclusive", "fractional"], kept=0)
def test_large_fleets_are_dealt_out_so_that_any_gpu_can_go(sharing):
    rates = {"1g.6gb": 10.0, "2g.12gb": 19.0, "4g.24gb": 35.0}
    models = tuple(
        simple(f"m{i}", rates, min_throughput_rps=30.0 + i, demand_rps=10.0, memory_gib=1.0) for i in range(4)
    )
    fleet = (FleetEntry(A30, count=4), FleetEntry(A30, count=2, mig=False))

    def also_whole(model: PlanModel) -> PlanModel:
        points = (*model.variants[0].stages[0].points, Point(A30, WHOLE_GPU, 1, 40.0, 5.0))
        return replace(model, variants=(Variant("whole", (Stage("whole", points),)),))

    request = PlanRequest(
        fleet, tuple(map(also_whole, models)), objective=Objective(survives=1), sharing=sharing
    )  # type: ignore[arg-type]
    outcome = plan(request)
    assert outcome.status in ("optimal", "feasible") and survives_failure(request, outcome.gpus)

"""What the workflow's plan refuses before or instead of an answer that serves nobody."""

from dataclasses import replace

import pytest

from tests.support.planning.edits import with_model
from tests.support.planning.requests import LAYOUTS, on_a30, simple
from torchsplit_core import workflow
from torchsplit_core.values import InputFault, PlanRequest, SolverOptions


def request(**options: object) -> PlanRequest:
    models = tuple(simple(name, {"2g.12gb": 10.0}, demand_rps=10.0, **options) for name in ("a", "b"))  # type: ignore[arg-type]
    return on_a30(*models, layouts=(LAYOUTS[1],), solver=SolverOptions(10.0))


def test_limits_that_no_point_of_any_model_keeps_are_refused_with_the_reason_of_each():
    hasty = tuple(replace(model, max_latency_ms=1e-3) for model in request().models)
    with pytest.raises(InputFault) as caught:
        workflow.plan(replace(request(), models=hasty))
    assert "none can run on any GPU of the fleet" in str(caught.value)
    assert "a: no point of it can run on this fleet within its limits" in str(caught.value)
    assert "b: no point" in str(caught.value)


def test_one_model_that_may_run_is_planned_for_and_the_other_is_told():
    outcome = workflow.plan(with_model(request(), 1, max_latency_ms=1e-3))
    assert outcome.status == "optimal" and outcome.models[0].throughput_rps > 0
    assert any(warning.startswith("b: no point") for warning in outcome.warnings)


def test_with_minima_it_is_infeasible_and_says_what_would_help():
    owed = tuple(replace(model, max_latency_ms=1e-3, min_throughput_rps=1.0) for model in request().models)
    assert workflow.plan(replace(request(), models=owed)).status == "infeasible"

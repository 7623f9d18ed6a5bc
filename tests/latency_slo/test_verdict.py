"""What a verdict says of queues, memory and who is left out; its words on the pages are tested there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.app.values import plan, request
from tests.support.planning.edits import with_each_model, with_model, with_points
from torchsplit_core import simulation, workflow
from torchsplit_core.latency_slo import expected_response
from torchsplit_core.latency_slo.expected_response import (
    CALM,
    LOOK_REQUESTS,
    REPLICATIONS,
    REQUESTS,
    ExpectedResponse,
    expected_responses,
)
from torchsplit_core.latency_slo.verdict import PlanVerdict, plan_verdict
from torchsplit_core.planning.request import edit
from torchsplit_core.values import (
    DeterministicArrivals,
    Pace,
    PlanOutcome,
    PlanRequest,
    ResponsePercentiles,
    SimulationRequest,
)


def asking(**more: Any) -> PlanRequest:
    """bert as it is, and ocr with other demands: 300 of its requests/s can be served."""
    asked = request()
    return with_model(asked, 1, **more)


def of(asked: PlanRequest, outcome: PlanOutcome | None = None) -> PlanVerdict:
    return plan_verdict(asked, outcome or plan(asked))


def fact(found: PlanVerdict, question: str) -> str:
    return next(one.text for one in found.facts if one.question == question)


def test_figures_under_load_are_those_of_simulate_and_a_first_look_decides_no_close_one():
    asked = asking(max_latency_ms=50.0)
    found = {one.model: one for one in expected_responses(asked, plan(asked))}  # type: ignore[union-attr]
    simulated = workflow.simulation_request(plan(asked), asked)
    simulated = replace(simulated, requests_per_model=REQUESTS, replications=REPLICATIONS)
    told = workflow.simulate(simulated).models[1]
    assert found["ocr"].response_ms == pytest.approx(told.response_ms.p95)
    assert found["ocr"].width_ms == pytest.approx(told.response_ci95_ms.p95)
    assert found["ocr"].exceeds and found["bert"].within_limit and not found["ocr"].promised


@pytest.mark.parametrize(("demand_rps", "simulated"), [(30.0, 1), (300 * CALM, 1), (300 * CALM + 1, 2)])
def test_a_first_look_is_enough_up_to_its_share_of_what_can_be_served(
    demand_rps: float, simulated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def simulate_model(asked: SimulationRequest, number: int) -> Any:
        runs.append(asked.requests_per_model)
        return simulation.simulate_model(asked, number)

    asked = with_each_model(asking(demand_rps=demand_rps), max_latency_ms=None)
    asked = with_model(asked, 1, max_latency_ms=1e4)
    monkeypatch.setattr(expected_response, "simulate_model", simulate_model)
    (ocr,) = expected_responses(asked, plan(asked))
    assert isinstance(ocr, ExpectedResponse) and ocr.within_limit
    assert runs == [LOOK_REQUESTS, REQUESTS][:simulated]


def test_a_limit_of_the_service_time_that_queues_break_is_amber_and_of_the_response_red():
    found = of(asking(max_latency_ms=50.0))
    assert found.level == "amber" and found.may_plan_for_response
    assert "under load 1 of 2 exceeds its limit: ocr p95 53" in found.sentence
    assert "Without queues every limit holds." in found.sentence
    promised = edit.with_response_limits(asking(max_latency_ms=50.0))
    found = of(promised)
    assert found.level == "red" and not found.may_plan_for_response
    assert "exceeds its limit: ocr p95 53" in found.sentence and "Without queues" not in found.sentence


def test_what_the_planner_simulated_itself_is_not_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    promised = edit.with_response_limits(asking(max_latency_ms=50.0))
    made = plan(promised)
    models = tuple(replace(model, response_ms=ResponsePercentiles(20.0, 49.0, 60.0)) for model in made.models)
    monkeypatch.setattr(expected_response, "simulate_model", None)
    found = of(promised, replace(made, models=models))
    assert found.level == "green" and "every limit holds under load" in found.sentence


def test_a_limit_within_the_interval_is_amber_and_said_to_be_close():
    asked = asking(max_latency_ms=50.0)
    (_, ocr) = expected_responses(asked, plan(asked))  # type: ignore[misc]
    found = of(asking(max_latency_ms=ocr.response_ms + ocr.width_ms / 2))
    assert found.level == "amber" and "1 of 2 may exceed its limit: ocr p95 53" in found.sentence
    assert fact(found, "Keeps its limits under load").startswith("unknown (too close to tell")


def test_a_host_that_may_be_slow_for_a_while_makes_a_limit_uncertain():
    loose = loose_host(asking(max_latency_ms=55.0))
    (_, ocr) = expected_responses(loose, plan(loose))  # type: ignore[misc]
    assert 50.0 < ocr.response_ms < ocr.high_ms
    limit = (ocr.response_ms + ocr.high_ms) / 2
    assert of(asking(max_latency_ms=limit)).level == "green"
    found = of(loose_host(asking(max_latency_ms=limit)))
    assert found.level == "amber" and "as the host changes its speed" in found.sentence


def loose_host(asked: PlanRequest) -> PlanRequest:
    """The request on a host that is slow for a while, now and then."""
    models = (
        with_points(model, lambda point: replace(point, pace=Pace(0.05, 5.0, 0.03))) for model in asked.models
    )
    return replace(asked, models=tuple(models))


def test_a_queue_that_grows_without_end_is_said_and_who_has_no_limit_is_not_asked():
    found = of(asking(demand_rps=300.0))
    assert found.level == "amber" and "the queue of ocr grows without end" in found.sentence
    free = with_each_model(request(), max_latency_ms=None)
    found = of(free)
    assert found.level == "green" and "limit" not in found.sentence
    assert fact(found, "Keeps its limits under load").startswith("not asked")
    # Arrivals are those of the request: at the demand it would exceed this limit.
    even = replace(free.models[1], arrivals=DeterministicArrivals(20.0), max_latency_ms=50.0)
    assert of(replace(free, models=(free.models[0], even))).level == "green"


def test_a_limit_that_cannot_be_simulated_is_not_green(monkeypatch):
    monkeypatch.setattr(expected_response, "REQUESTS", 0)
    found = of(request())
    assert found.level == "amber" and "Whether limits hold under load is not known" in found.sentence


def test_memory_that_is_exceeded_is_amber_and_what_nobody_told_unknown():
    def needing(gib: float | None) -> PlanVerdict:
        made = plan()
        slices = tuple(
            replace(item, tenants=(replace(item.tenants[0], memory_gib=gib),)) for item in made.gpus[0].slices
        )
        return of(request(), replace(made, gpus=(replace(made.gpus[0], slices=slices),)))

    assert fact(needing(10.0), "Fits in memory") == "yes" and needing(10.0).level == "green"
    assert "no memory figure for bert, ocr" in fact(needing(None), "Fits in memory")
    found = needing(50.0)
    assert found.level == "amber" and "Memory is exceeded: gpu0 4g.40gb at 0 50 of 39" in found.sentence

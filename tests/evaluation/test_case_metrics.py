"""A case's figures by a second way: closed forms, conservation, and counts by hand."""

from dataclasses import replace

import pytest

from tests.support.deployment.helpers import plan_of, planned_gpu
from tests.support.planning.requests import whole_model
from torchsplit_core.evaluation.case_metrics import at_end, evaluate_case
from torchsplit_core.evaluation.cross_gpu_traffic import leaving_share
from torchsplit_core.evaluation.mixes import TensorPair
from torchsplit_core.planning import plan
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import (
    FleetEntry,
    PlanModel,
    PlannedModel,
    PlanOutcome,
    PlanRequest,
    Point,
    Stage,
    Tenant,
    Variant,
)
from torchsplit_core.values.evaluation.outcome import CaseKey, EvaluatedCase, EvaluationSettings

KEY = CaseKey("one", "any", "exclusive", "off", "equal", "planner")
SETTINGS = EvaluationSettings(quick=True, requests_per_model=20_000, replications=3, time_limit_s=5.0)
A100 = "A100-80GB"


def whole(name: str, demand_rps: float, *points: Point) -> PlanModel:
    return whole_model(name, points, demand_rps=demand_rps)


def small(rate: float, batch: int = 1, **more: object) -> Point:
    return Point(A100, "1g.10gb", batch, rate, 1000 * batch / rate, memory_gib=2.5, **more)  # type: ignore[arg-type]


def solved(request: PlanRequest, *pairs: TensorPair) -> EvaluatedCase:
    return evaluate_case(KEY, request, plan(request), pairs, SETTINGS)


def test_one_model_on_a_slice_waits_as_in_md1_and_keeps_it_busy_as_long():
    layouts = (("1g.10gb",),)
    request = PlanRequest((FleetEntry(A100, layouts=layouts),), (whole("m", 80.0, small(100.0)),))
    case = solved(request)
    (model,), figures = case.models, case.figures
    assert figures is not None and model.p50_ms and model.p95_ms
    # Erlang's distribution of the wait at 0.8: 1.2759 and 6.6203 services of 10 ms, and the service itself.
    assert model.p50_ms == pytest.approx(10 * (1.2759 + 1), rel=0.05)
    assert model.p95_ms == pytest.approx(10 * (6.6203 + 1), rel=0.1)
    # One of seven compute slices at work for 80 × 10 ms of a second; at 0.9 of what it carries, for 0.9.
    assert figures.utilisation == pytest.approx(0.8 / 7, rel=0.02)
    assert figures.utilisation_full == pytest.approx(0.9 / 7, rel=0.02)
    assert (figures.common_load, figures.jain, figures.total_rps) == (1.25, 1.0, 100.0)
    assert figures.stranded_share == pytest.approx(6 / 7)
    assert figures.memory_share == pytest.approx(2.5 / 9.5, rel=0.1)
    assert (figures.gpus_used, figures.starved, figures.below_demand, figures.deployable) == (1, 0, 0, True)
    assert case.gap == 0 and case.layouts == ("1g.10gb",)
    assert figures.bytes_across_cuts_per_s is figures.cross_gpu_bytes_per_s is figures.at_low is None


def test_nothing_is_served_that_was_not_offered_or_cannot_be():
    models = (whole("idle", 10.0, small(100.0, 4)), whole("over", 300.0, small(100.0)))
    request = PlanRequest((FleetEntry(A100, layouts=(("1g.10gb",) * 2,)),), models)
    case = solved(request)
    figures = case.figures
    assert figures is not None
    for model in case.models:
        assert model.served_rps <= min(1.02 * model.demand_rps, model.throughput_rps * (1 + 1e-9))
    idle, over = case.models
    # What comes at less than its service time is never batched.
    assert idle.served_rps == pytest.approx(10.0, rel=0.03) and idle.p50_ms
    assert over.served_rps == pytest.approx(100.0, rel=0.01) and over.p95_ms is None
    assert figures.common_load == pytest.approx(1 / 3) and figures.below_demand == 1
    assert figures.total_rps == pytest.approx(200.0) and figures.served_rps < 111
    # The mean of 10 and 1/3 squared over the mean of their squares.
    assert figures.jain == pytest.approx((10 + 1 / 3) ** 2 / (2 * (100 + 1 / 9)))


def test_ends_of_estimates_move_response_times_and_load_the_other_way():
    point = small(100.0, basis="estimated", low_rps=50.0, high_rps=160.0)
    request = PlanRequest((FleetEntry(A100, layouts=(("1g.10gb",),)),), (whole("m", 80.0, point),))
    assert at_end(request, "low_rps").models[0].variants[0].stages[0].points[0].throughput_rps == 50.0
    case = solved(request)
    (model,), figures = case.models, case.figures
    assert figures is not None and figures.at_low and figures.at_high
    assert (figures.at_low.common_load, figures.common_load, figures.at_high.common_load) == (
        0.625, 1.25, 2.0,
    )  # fmt: skip
    # 80 requests/s are more than the 50 of the lower end; at the upper one they wait less.
    assert model.overloaded_at_low and model.p95_high_ms is None
    assert model.p95_low_ms and model.p95_ms and model.p95_low_ms < model.p95_ms
    assert case.basis == "estimated"


def cut(demand_rps: float) -> PlanModel:
    stages = tuple(Stage(name, (small(100.0),)) for name in ("one", "two"))
    variant = Variant("cut", stages, cut_bytes=(0.0,), cut_bytes_per_request=(1000.0,))
    return PlanModel("m", (variant,), demand_rps=demand_rps)


def placed(gpus: list[list[tuple[str, str, str, float]]], request: PlanRequest) -> PlanOutcome:
    """A plan with these (model, variant, stage, requests/s) as slices of each GPU."""
    planned = (
        planned_gpu(f"gpu{number}", A100, [
            ("1g.10gb", start, Tenant(model, variant, stage, 1.0, 1, 1, rate, 2.5, "measured"))
            for start, (model, variant, stage, rate) in enumerate(slices)
        ])
        for number, slices in enumerate(gpus)
    )  # fmt: skip
    models = tuple(PlannedModel(model.name, "cut", 100.0, 1.0, 20.0) for model in request.models)
    return replace(plan_of(*planned), request_sha256=request_hash(request), models=models)


def test_bytes_leave_where_the_other_stage_is_not():
    request = PlanRequest((FleetEntry(A100, count=2),), (cut(50.0),), link_gb_per_s=12.0)
    pair = TensorPair("m/one", "m/two", 1000.0)
    one, two = ("m", "cut", "one", 100.0), ("m", "cut", "two", 100.0)
    together, apart = placed([[one, two], []], request), placed([[one], [two]], request)
    half = placed([[one, two], [two]], request)
    assert [leaving_share(found, request, pair) for found in (together, apart, half)] == [0.0, 1.0, 0.5]
    assert leaving_share(placed([[one], []], request), request, pair) is None
    case = evaluate_case(KEY, request, apart, (pair,), SETTINGS)
    figures = case.figures
    assert figures is not None
    # A thousand bytes a request, and 50 requests/s.
    assert figures.bytes_across_cuts_per_s == pytest.approx(50_000, rel=0.03)
    assert figures.cross_gpu_bytes_per_s == pytest.approx(figures.bytes_across_cuts_per_s)
    assert figures.cross_gpu_bytes_per_s == pytest.approx(1000 * case.models[0].served_rps)
    closer = evaluate_case(KEY, request, half, (pair,), SETTINGS).figures
    assert closer is not None and closer.cross_gpu_bytes_per_s == pytest.approx(25_000, rel=0.03)


def test_models_of_a_pair_hand_on_what_the_slower_of_them_serves():
    models = (whole("a", 40.0, small(100.0)), whole("b", 20.0, small(100.0)))
    request = PlanRequest((FleetEntry(A100, count=2, layouts=(("1g.10gb",),)),), models)
    figures = solved(request, TensorPair("a", "b", 500.0)).figures
    assert figures is not None and figures.cross_gpu_bytes_per_s == pytest.approx(20 * 500, rel=0.03)


def test_a_case_without_slices_says_why():
    request = PlanRequest((FleetEntry(A100),), (whole("m", 1.0, small(100.0)),))
    empty = replace(placed([[], []], request), status="timeout", warnings=("Nothing was found.",))
    case = evaluate_case(KEY, request, empty, (), SETTINGS)
    assert case.figures is None
    assert case.why_not == "no plan with a slice within 5 s (timeout); Nothing was found."

"""Load and comparison: what is sent when, and what is said of what came back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.serving.plans import Placed, cpu_plan
from torchsplit_core import workflow
from torchsplit_core.cli.serving import format_model
from torchsplit_core.files import read_text, write_text
from torchsplit_core.serving.device_binding import bind_slices
from torchsplit_core.serving.load_test.comparison import LoadTestData, build_measurement, percentiles
from torchsplit_core.serving.load_test.measurement import (
    arrival_times,
    build_simulation,
    death_warnings,
    front_warning,
)
from torchsplit_core.serving.load_test.session import LoadResult
from torchsplit_core.serving.plan import plan_serving
from torchsplit_core.serving.settings import LoadSettings, ServeSettings
from torchsplit_core.simulation import simulate
from torchsplit_core.values import (
    DeterministicArrivals,
    GammaArrivals,
    InputFault,
    MmppArrivals,
    Pace,
    PlanOutcome,
    PlanRequest,
    PoissonArrivals,
    RateState,
    TraceArrivals,
)
from torchsplit_core.values.plan.front import FrontCosts
from torchsplit_core.values.serving.measurement import MeasuredTimes, Measurement

PLAN, REQUEST = cpu_plan([Placed("bert", batch_size=1, ms=10.0)], {"bert": "sample:bert"}, demand_rps=50.0)
ROSTER = plan_serving(PLAN, REQUEST, bind_slices(PLAN, cores=(0, 1)))
SERVER = "host0/1c@0"
TIMES = [0.02 * (1 + number) for number in range(500)]


BEGUN_S = 1000.0


def course(times_ms: Sequence[float]) -> list[tuple[float, int, float]]:
    """Batches of one, each begun when its request was due."""
    return [(BEGUN_S + due, 1, ms) for due, ms in zip(TIMES, times_ms, strict=True)]


def tally(**change: Any) -> dict[str, Any]:
    """500 batches of one, 10 ms each, no wait."""
    found = {
        "batches": 500, "rows": 500, "busy_s": 5.0, "waited_s": 0.0, "whole_ms": {"1": [10.5] * 500},
        "compute_ms": {"1": [10.0] * 500}, "course": course([10.5] * 500),
    }  # fmt: skip
    return found | change


def measured(
    response_s: float = 0.011, status: int = 200, hop: float = 1.0, tallies: Mapping[str, Any] | None = None
) -> Measurement:
    answers = [(due, response_s, status if number % 10 == 0 else 200) for number, due in enumerate(TIMES)]
    sent = LoadResult({"bert": answers}, BEGUN_S)
    data = LoadTestData(sent, tallies or {SERVER: tally()}, {"bert": hop}, {SERVER: 0.5}, 10.0)
    asked = build_simulation(PLAN, REQUEST, {"bert": TIMES}, {SERVER: 0.5})
    return build_measurement(PLAN, ROSTER, data, asked, simulate(asked))


def test_what_agrees_is_not_named():
    profile = measured()
    (model,) = profile.models
    assert (model.offered_rps, model.predicted_rps, model.errors) == (50.0, 50.0, 0)
    assert model.measured_rps == pytest.approx(500 / 10.011)
    # 10 ms of service and 0.5 ms of hand-over in the queue's server, 0.5 ms of the front's way beside it.
    assert model.simulated_ms == MeasuredTimes(*[pytest.approx(11.0)] * 3)
    assert model.measured_ms == MeasuredTimes(*[pytest.approx(11.0)] * 3)
    assert model.replayed_ms == MeasuredTimes(*[pytest.approx(11.0)] * 3)
    assert profile.disagreements == ()
    (server,) = profile.servers
    assert server.planned_batch_ms == pytest.approx(10.5) and server.utilisation == pytest.approx(0.5)
    assert server.simulated_utilisation == pytest.approx(0.525, abs=0.01)
    (point,) = profile.points
    assert (point.batch_size, point.throughput_rps, point.profile, point.gpu_type) == (1, 100.0, "1c", "CPU")


def test_a_p95_that_the_simulation_has_for_this_host_is_no_disagreement():
    plan, request = paced(Pace(0.2, 1.0, 0.4))
    asked = build_simulation(plan, request, {"bert": TIMES}, {SERVER: 0.5})
    data = LoadTestData(
        LoadResult({"bert": [(due, 0.0145, 200) for due in TIMES]}, BEGUN_S),
        {SERVER: tally()}, {"bert": 1.0}, {SERVER: 0.5}, 10.0,
    )  # fmt: skip
    told = build_measurement(plan, ROSTER, data, asked, simulate(asked))
    (model,) = told.models
    low, high = model.simulated_low_ms, model.simulated_high_ms
    assert low is not None and high is not None and low.p95 is not None and high.p95 is not None
    load = simulate(asked).models[0]
    assert load.response_low_ms is not None and load.response_low_ms.p95 is not None
    # The way through the front that keeps no worker busy comes on top of both ends.
    assert low.p95 == pytest.approx(load.response_low_ms.p95 + 0.5)
    assert low.p95 < 14.5 < high.p95 and told.disagreements == ()
    assert f"({low.p95:.4g} ms to {high.p95:.4g} ms in 90 % of its runs)" in format_model(model)
    assert read_text(write_text(replace(told, host="here")))[1].models[0] == model
    assert "simulated_low_ms" not in write_text(replace(measured(), host="here"))


def paced(pace: Pace) -> tuple[PlanOutcome, PlanRequest]:
    """The plan on a host that changes its speed."""
    (model,) = REQUEST.models
    (variant,) = model.variants
    (stage,) = variant.stages
    points = tuple(replace(point, pace=pace) for point in stage.points)
    variant = replace(variant, stages=(replace(stage, points=points),))
    return PLAN, replace(REQUEST, models=(replace(model, variants=(variant,)),))


def test_slow_batches_are_named_with_their_slice_and_stage():
    slow = {SERVER: tally(whole_ms={"1": [15.0] * 500}, busy_s=7.5)}
    (fault,) = measured(0.016, tallies=slow).disagreements
    assert (fault.where, fault.server, fault.stage) == ("service", SERVER, "whole")
    assert "+43%" in fault.message and "replayed p95 11 ms, -31% against measured" in fault.message


def test_queues_and_the_front_are_told_apart():
    (wait,) = measured(0.030, tallies={SERVER: tally(waited_s=9.5)}).disagreements
    assert (wait.where, wait.server) == ("wait", SERVER)
    (front,) = measured(0.030).disagreements
    assert front.where == "front" and "19.5 ms under load and 1 ms alone" in front.message


def test_a_core_that_changes_its_speed_is_told_from_a_queue():
    """Half of the run batches take 6 ms, then 15.2 ms, in turns of a second: 10.6 ms in the mean, as was planned."""
    phases = [6.0 if due % 2 < 1 else 15.2 for due in TIMES]
    loose = {SERVER: tally(whole_ms={"1": phases}, course=course(phases))}
    (fault,) = measured(0.0157, tallies=loose).disagreements
    assert (fault.where, fault.server) == ("service", SERVER)
    assert "the queues follow from that" in fault.message and "took 6 to 15.2 ms" in fault.message
    assert "replayed p95 15.7 ms, -0%" in fault.message or "replayed p95 15.7 ms, +0%" in fault.message
    (wait,) = measured(0.030, tallies={SERVER: loose[SERVER] | {"waited_s": 9.5}}).disagreements
    assert wait.where == "wait" and "replayed p95 15.7 ms, -48% against measured" in wait.message


def test_without_batches_nothing_is_replayed():
    nothing = tally(batches=0, rows=0, busy_s=0.0, whole_ms={}, compute_ms={}, course=[])
    (model,) = measured(status=504, tallies={SERVER: nothing}).models
    assert model.replayed_ms == MeasuredTimes() and "replayed" not in write_text(
        measured(tallies={SERVER: nothing})
    )


def test_requests_without_a_result_are_counted_by_status():
    profile = measured(status=429)
    assert (profile.models[0].errors, profile.models[0].statuses) == (50, ((200, 450), (429, 50)))
    assert profile.disagreements[0].where == "load" and "50 × 429" in profile.disagreements[0].message


def test_nothing_answered_is_no_zero():
    assert percentiles([]) == MeasuredTimes(None, None, None)
    assert percentiles([0.001 * number for number in range(1, 101)]) == MeasuredTimes(50.0, 95.0, 99.0)


def test_points_need_enough_batches():
    few = tally(whole_ms={"1": [10.5] * 19}, compute_ms={"1": [10.0] * 19})
    assert measured(tallies={SERVER: few}).points == ()


def test_the_outcome_is_a_contract_file():
    profile = measured(status=504)
    assert read_text(write_text(profile), expected="torchsplit.measurement")[1] == profile


def test_arrivals_are_those_of_the_simulation():
    def times(load, kind=None):
        made = (lambda model: kind) if kind else (lambda model: model.expected_arrivals)
        return arrival_times(REQUEST, ROSTER, load, made)["bert"]

    found = times(LoadSettings(40.0, 2.0, 7))
    assert found == times(LoadSettings(40.0, 2.0, 7)) != times(LoadSettings(40.0, 2.0, 8))
    assert len(found) == pytest.approx(4000, rel=0.1) and found == sorted(found) and found[-1] <= 40.0
    assert times(LoadSettings(1.0), DeterministicArrivals(4.0)) == [0.25, 0.5, 0.75, 1.0]
    assert times(LoadSettings(1.0, 2.0), TraceArrivals((1.0, 2.0, 9.0))) == [0.0, 0.5]
    # A demand of nothing to speak of is none: beside other models it is no fault.
    faint = replace(
        REQUEST, models=(*REQUEST.models, replace(REQUEST.models[0], name="ocr", demand_rps=1e-8))
    )
    both = replace(ROSTER, models=(*ROSTER.models, replace(ROSTER.models[0], name="ocr")))
    assert arrival_times(faint, both, LoadSettings(1.0), lambda model: model.expected_arrivals)["ocr"] == []
    with pytest.raises(InputFault, match="no request is due"):
        times(LoadSettings(0.001), DeterministicArrivals(1.0))
    with pytest.raises(InputFault, match="that are sent to a model"):
        times(LoadSettings(3600.0, 1e6))


@pytest.mark.parametrize(("kind", "words"), [
    (GammaArrivals(10.0, 0.0), "arrivals.cv: is 0.0"),
    (GammaArrivals(10.0, math.nan), "arrivals.cv"),
    (PoissonArrivals(math.inf), "arrivals.rate_rps: is inf"),
    (MmppArrivals((RateState(0.0, 1.0),)), "no rate above 0"),
    (MmppArrivals((RateState(1.0, 1e-9), RateState(2.0, 1e-9))), "more than 20000000"),
    (TraceArrivals((2.0, 1.0)), "less than the 2.0 before it"),
])  # fmt: skip
def test_arrivals_that_make_no_sense(kind, words):
    with pytest.raises(InputFault, match="models: bert: arrivals") as caught:
        arrival_times(REQUEST, ROSTER, LoadSettings(10.0), lambda model: kind)
    assert words in str(caught.value)


def test_workers_that_died_under_load_are_told():
    """Their requests were answered late, not with an error: nothing else says it."""
    (words,) = death_warnings({SERVER: tally(deaths=1), "host0/1c@1": tally(deaths=0)})
    assert words.startswith(f"{SERVER}: a worker died under load")
    assert "2 workers" in next(death_warnings({SERVER: tally(deaths=2)}))


@pytest.mark.parametrize(
    "load", [LoadSettings(0.0), LoadSettings(1.0, 0.0), LoadSettings(1e9), LoadSettings(-1.0)]
)
def test_loads_that_make_no_sense(load):
    with pytest.raises(InputFault, match=r"--load|--duration-s"):
        workflow.measure(PLAN, REQUEST, ServeSettings(stand_in="cpu", port=0), load)


@pytest.mark.torch
@pytest.mark.slow
def test_a_plan_is_measured(tmp_path):
    plan = cpu_plan([Placed("bert", batch_size=4, ms=2.0)], {"bert": "sample:bert"}, cores=1, demand_rps=20.0)
    moments = []
    measurement = workflow.measure(
        *plan, ServeSettings(port=0), LoadSettings(3.0), arrivals=lambda m: DeterministicArrivals(20.0),
        on_sample=moments.append,
    )  # fmt: skip
    (model,) = measurement.models
    assert (model.offered_rps, model.errors, model.statuses) == (20.0, 0, ((200, 60),))
    assert model.measured_ms.p50 is not None and model.hop_ms > 0 and model.measured_rps > 0
    assert moments and set(moments[-1]["models"]["bert"]) == {"sent", "answered", "rate_rps", "p95_ms"}
    assert moments[-1]["queues"]["bert"]["ready"]
    assert sum(server.mean_batch or 0 for server in measurement.servers) >= 1
    path = tmp_path / "measurement.json"
    path.write_text(write_text(replace(measurement, load=1.0)))
    plan_with_nobody = replace(plan[1], models=(replace(plan[1].models[0], source="sample:nobody"),))
    with pytest.raises(InputFault, match="nobody"):
        workflow.measure(plan[0], plan_with_nobody, ServeSettings(port=0), LoadSettings(1.0))


COSTS = FrontCosts(0.4, 0.4, hand_over_ms=0.3, cores=2, generator_ms=0.2, host="here")
"""bert in batches of one: 0.8 ms of the front, 1.0 with the generator on its core."""


def test_the_simulation_of_a_run_has_the_front_and_the_generator_that_shares_its_core():
    request = replace(REQUEST, front=COSTS)
    asked = build_simulation(PLAN, request, {"bert": TIMES}, {SERVER: 0.5})
    assert [model.front_ms for model in asked.models] == [pytest.approx(1.0)]
    # The hand-over is the one that was measured, and only once.
    assert dict(asked.servers[0].batch_ms) == {1: 10.5}
    apart = build_simulation(PLAN, replace(request, front=replace(COSTS, cores=3)), {"bert": TIMES}, {})
    assert [model.front_ms for model in apart.models] == [pytest.approx(0.8)]
    assert build_simulation(PLAN, REQUEST, {"bert": TIMES}, {}).models[0].front_ms == 0.0


def test_the_way_through_the_simulated_front_is_not_counted_twice():
    request = replace(REQUEST, front=replace(COSTS, cores=3))
    asked = build_simulation(PLAN, request, {"bert": TIMES}, {SERVER: 0.5})
    sent = LoadResult({"bert": [(due, 0.011, 200) for due in TIMES]}, BEGUN_S)
    data = LoadTestData(sent, {SERVER: tally()}, {"bert": 1.5}, {SERVER: 0.5}, 10.0, {"bert": 0.8})
    (model,) = build_measurement(PLAN, ROSTER, data, asked, simulate(asked)).models
    # 0.8 ms of the front, 10.5 of the worker, and 0.2 of the 1.5 ms beside the computing that are neither.
    assert model.simulated_ms == MeasuredTimes(*[pytest.approx(11.5)] * 3)


def test_what_the_front_does_not_pass_is_said_of_the_load_that_is_sent():
    request = replace(REQUEST, front=replace(COSTS, ms_per_request=20.0))
    assert front_warning(PLAN, REQUEST) == ""
    # 20.6 ms with the generator's, which is on the front's only core, and 0.3 ms from batch to batch.
    assert "passes about 47.8 requests/s (measured on here), and 50 are demanded" in front_warning(
        PLAN, request
    )
    assert front_warning(PLAN, request, 0.9) == ""
    assert "and 100 are demanded" in front_warning(PLAN, request, 2.0)

"""Engines of LLMs through a replayed day: tokens, limits, engines that load for minutes and are drained."""

from dataclasses import replace

import pytest

from tests.day_plans.test_day_planner import llm_day
from tests.day_plans.test_replay import hourly, model_of, settings
from tests.support.day_plans.days import with_windows
from tests.support.serving.llm_plans import SIZES
from torchsplit_core import workflow
from torchsplit_core.day_plans.replay.server_periods import windows_day
from torchsplit_core.transition import ChangeTimes
from torchsplit_core.values import InputFault, LognormalTokens, PlannedEngine, StepLine


@pytest.fixture(scope="module")
def chats():
    """Chats on one H100 by night and on two by day; an engine loads for eight minutes."""
    request = llm_day()
    (model,) = request.models
    engine = PlannedEngine(1, None, 2000, 16, 16, 2048, 4096, True, (StepLine(80.0, 0.08, 0.4, 0.002),))
    points = tuple(
        replace(point, engine=engine, throughput_rps=1.0)
        for point in model.llm.points
        if point.tensor_parallel == 1
    )
    llm = replace(
        model.llm,
        config=SIZES,
        points=points,
        tensor_parallel=(1,),
        output_tokens=LognormalTokens(100.0, 1.0),
        max_tpot_ms=160.0,
    )
    model = with_windows(replace(model, llm=llm), (1.0, 1.0), (2.0, 2.0))
    request = replace(request, models=(model,))
    return request, workflow.plan_day(request, times=ChangeTimes(start_s=480.0, drain_s=1.0))


OVERLOADED = [0.25] * 6 + [2.4] * 2 + [1.0] * 13 + [0.25] * 3


@pytest.fixture(scope="module")
def overloaded(chats):
    """The model in the windows of a day whose night is overloaded, all requests simulated."""
    replay = workflow.replay_day(*chats, hourly(chat=OVERLOADED), settings())
    return model_of(replay, "windows", "chat")


def test_an_engine_is_there_when_the_day_begins_and_what_it_works_on_at_its_end_is_cut_off(chats):
    request, outcome = chats
    asked = workflow.with_engine_points(request)
    day = windows_day(asked, outcome, 0)
    short = [period for period in day.periods if period.begin_s > 0 or period.end_s < 86_400]
    assert [(period.begin_s, period.end_s) for period in short] == [(8 * 3600, pytest.approx(20.5 * 3600))]
    rates = [0.1] * 19 + [1.3] * 2 + [0.1] * 3
    replay = workflow.replay_day(request, outcome, hourly(chat=rates), settings())
    model = model_of(replay, "windows", "chat")
    total = model.served_requests + model.lost_requests + model.waiting_requests
    assert total == pytest.approx(model.arrived_requests, rel=1e-12)
    # About a second's requests are longer than the drain of one: a handful is lost, no more.
    assert 1 <= model.lost_requests <= 16
    assert model.ttft_ms.p50 < model.response_ms.p50 and model.max_ttft_ms == 1000.0
    assert model.max_response_ms is None and model.attainment.all > 0.9
    assert replay.simulated_share == 1 and replay.service_basis == "measured"


@pytest.mark.repeated
def test_a_longer_drain_loses_nothing(chats):
    request, _ = chats
    outcome = workflow.plan_day(request, times=ChangeTimes(start_s=480.0, drain_s=400.0))
    rates = [0.4] * 8 + [1.3] * 13 + [0.4] * 3
    replay = workflow.replay_day(request, outcome, hourly(chat=rates), settings())
    assert model_of(replay, "windows", "chat").lost_requests == 0


@pytest.mark.repeated
def test_limits_of_tokens_are_kept_together(chats):
    request, outcome = chats
    rates = hourly(chat=[0.4] * 8 + [1.3] * 13 + [0.4] * 3)

    few = settings(requests_per_model=2000)

    def attainment(**limits):
        (model,) = request.models
        changed = replace(request, models=(replace(model, llm=replace(model.llm, **limits)),))
        day = replace(outcome, request_sha256=None)
        return model_of(workflow.replay_day(changed, day, rates, few), "static", "chat").attainment.all

    ttft = attainment(max_ttft_ms=140.0, max_tpot_ms=None)
    tpot = attainment(max_ttft_ms=None, max_tpot_ms=72.0)
    both = attainment(max_ttft_ms=140.0, max_tpot_ms=72.0)
    assert 0 < both <= min(ttft, tpot) < 1
    assert attainment(max_ttft_ms=None, max_tpot_ms=None) is None


@pytest.mark.repeated
def test_an_engine_that_comes_too_late_lets_requests_wait_and_that_is_seen(overloaded):
    """An overload of the night: chats wait at full engines until the day's engine has loaded."""
    model = overloaded
    assert [hour.hour for hour in model.hours if hour.stable is False] == [6, 7] and model.stable is False
    assert model.hours[7].attainment < 0.05 < 0.8 < model.hours[14].attainment
    assert model.hours[7].served_share == pytest.approx(1.0, abs=1e-3)


@pytest.mark.repeated
def test_a_sampled_day_of_engines_is_the_whole_day_within_its_error(chats, overloaded):
    whole, sample = overloaded, settings(requests_per_model=8000, replications=3)
    replay = workflow.replay_day(*chats, hourly(chat=OVERLOADED), sample)
    part = model_of(replay, "windows", "chat")
    assert replay.simulated_share < 0.2
    assert part.arrived_requests == pytest.approx(whole.arrived_requests, rel=0.02)
    assert part.attainment.all == pytest.approx(whole.attainment.all, abs=0.05)
    assert part.hours[14].response_ms.p95 == pytest.approx(whole.hours[14].response_ms.p95, rel=0.15)
    assert part.hours[7].response_ms.p50 == pytest.approx(whole.hours[7].response_ms.p50, rel=0.25)


def test_engines_of_measured_points_alone_cannot_be_simulated():
    request = llm_day()
    with pytest.raises(InputFault, match="only LLMs of which measured points alone are known"):
        workflow.replay_day(request, workflow.plan_day(request), hourly(chat=1.0), settings())

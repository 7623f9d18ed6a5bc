"""A day simulated over a trace: against the plain simulation, a second reckoning of its figures, flows and faults."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.support.day_plans.days import with_windows
from tests.support.planning.requests import on_a30, simple
from tests.support.seeds import repeated
from torchsplit_core import files, workflow
from torchsplit_core.day_plans.replay.model_day import make_queues, model_day
from torchsplit_core.day_plans.replay.model_run import run_model_day
from torchsplit_core.day_plans.replay.server_periods import static_day, windows_day
from torchsplit_core.day_plans.replay.sides import ReplaySettings, replay_day
from torchsplit_core.day_plans.replay.summary import replay_lines
from torchsplit_core.day_plans.replay.time_sample import group_pieces
from torchsplit_core.day_plans.replay.trace_day import one_day
from torchsplit_core.day_plans.window_requests import static_request
from torchsplit_core.latency_slo.simulation_input import simulation_request
from torchsplit_core.simulation.replication import simulate_one
from torchsplit_core.tables.demand_trace.trace_csv import DAY_S, DemandTrace
from torchsplit_core.transition import ChangeTimes
from torchsplit_core.values import InputFault, Objective

DAY, REQUEST = "examples/days/three_windows.json", "examples/days/three_windows_request.json"
RATES = {"1g.6gb": 2.0, "2g.12gb": 4.0, "4g.24gb": 8.0}
WHOLE_DAY = float("inf")


def hourly(**rates):
    """A trace by the hour; a single number stands for every hour."""
    columns = {
        name: tuple(values) if isinstance(values, list) else (values,) * 24 for name, values in rates.items()
    }
    return DemandTrace(0, 3600, columns)


def settings(**options):
    return ReplaySettings(**{"replications": 1, **options})


def planned(*figures, times=None, count=2, **options):
    """Two models over windows, their day and its request; figures: the demands of a and b by window."""
    models = [
        with_windows(simple(name, RATES, **options), *((demand, demand) for demand in demands))
        for name, demands in zip("ab", figures, strict=True)
    ]
    request = on_a30(*models, count=count, objective=Objective("min_gpus"))
    return request, workflow.plan_day(request, times=times)


@pytest.fixture(scope="module")
def steady():
    """One window."""
    return planned((3.0,), (1.5,))


@pytest.fixture(scope="module")
def changing():
    """A night on one GPU and a day on two."""
    return planned(
        (1.0, 7.0), (1.0, 7.0), times=ChangeTimes(start_s=240.0, drain_s=30.0), max_latency_ms=2000.0
    )


@pytest.fixture(scope="module")
def example():
    return files.read_file(REQUEST)[1], files.read_file(DAY)[1]


def run_side(day, name, trace, level=WHOLE_DAY, seed=(0, 0, 0)):
    part = model_day(day, name, trace)
    groups = group_pieces(part.pieces, 1)
    made = run_model_day(groups, level, lambda axis, rng: make_queues(part, axis, rng), seed, trace.step_s)
    return part, made


def side_of(replay, name):
    return next(side for side in replay.sides if side.name == name)


def model_of(replay, side, name):
    return next(model for model in side_of(replay, side).models if model.name == name)


def test_one_window_is_the_plain_simulation_of_its_plan(steady):
    request, outcome = steady
    trace = hourly(a=2.5, b=1.2)
    day = windows_day(request, outcome, 0)
    assert day.changes == () and day.gpu_hours == 24.0 * outcome.gpu_hours.windows / 24
    plan = outcome.windows[0].plan
    simulated = simulation_request(plan, static_request(request))
    for name in "ab":
        _, run = run_side(day, name, trace)
        order = np.argsort(run.arrivals_s)
        arrivals = run.arrivals_s[order]
        assert len(arrivals) == run.arrived - run.waiting > 90_000 and run.lost == 0
        (model,) = (item for item in simulated.models if item.name == name)
        servers = [server for server in simulated.servers if server.model == name]
        plain = simulate_one(model, servers, (arrivals - arrivals[0]).tolist())
        assert run.response_ms[order].tolist() == pytest.approx(plain.tolist(), abs=1e-3)


@pytest.mark.repeated
def test_one_window_and_one_plan_are_the_same_side(steady):
    request, outcome = steady
    replay = replay_day(request, outcome, hourly(a=2.5, b=1.2), settings())
    assert side_of(replay, "windows").models == side_of(replay, "static").models
    assert (
        replay.simulated_share == 1
        and "all of them in each of 1 replications" in list(replay_lines(replay))[-1]
    )


def test_arrivals_are_those_of_the_trace_hour_by_hour(steady):
    request, outcome = steady
    rates = [0.5 + (hour % 5) / 2 for hour in range(24)]
    replay = replay_day(request, outcome, hourly(a=rates, b=0.0), settings())
    model = model_of(replay, "windows", "a")
    assert [hour.offered_rps for hour in model.hours] == rates
    expected = 3600 * sum(rates)
    assert model.arrived_requests == pytest.approx(expected, abs=5 * math.sqrt(expected))
    idle = model_of(replay, "windows", "b")
    assert idle.arrived_requests == 0 and idle.response_ms.p95 is None and idle.attainment.all is None


@repeated("requests", [2000, None])
def test_what_arrived_is_served_lost_or_waiting(changing, requests):
    request, outcome = changing
    trace = hourly(a=[0.8] * 8 + [9.0] * 3 + [6.0] * 9 + [0.8] * 4, b=1.0)
    replay = replay_day(request, outcome, trace, settings(requests_per_model=requests))
    assert (replay.simulated_share == 1) is (requests is None)
    for side in replay.sides:
        for model in side.models:
            parts = model.served_requests + model.lost_requests + model.waiting_requests
            assert parts == pytest.approx(model.arrived_requests, rel=1e-12)


def test_gpu_hours_are_those_of_the_plans_and_of_the_minutes_of_changes(changing):
    request, outcome = changing
    day = windows_day(request, outcome, 0)
    more = day.gpu_hours - outcome.gpu_hours.windows
    # A GPU that comes is in use from its first start on, ahead of the window; one that goes until its last stop ends.
    busy = 0.0
    for window in outcome.windows:
        change = window.transition
        used = {gpu.id for gpu in window.plan.gpus if gpu.used}
        stays = {gpu.host_gpu for gpu in change.mapping if any(item.tenants for item in gpu.instances)}
        moments = np.cumsum([0.0, *(step.seconds for step in change.steps)])
        for gpu in stays - used if window.ahead else used - stays:
            places = [at for at, step in enumerate(change.steps) if step.gpu == gpu]
            if window.ahead:
                starts = [at for at in places if change.steps[at].action == "start"]
                busy += moments[-1] - moments[starts[0]]
            else:
                stops = [at for at in places if change.steps[at].action == "stop"]
                busy += moments[stops[-1] + 1]
    assert more == pytest.approx(busy / 3600, abs=1e-9) and more > 0
    assert (
        side_of(replay_day(request, outcome, hourly(a=1.0, b=1.0), settings()), "windows").gpu_hours
        == day.gpu_hours
    )


def test_utilisation_is_what_was_served_times_its_time_over_the_hours_of_the_servers(steady):
    request, outcome = steady
    replay = replay_day(request, outcome, hourly(a=2.5, b=1.2), settings())
    for name in "ab":
        model = model_of(replay, "static", name)
        servers = [
            (server.batch_ms[1], server.count)
            for server in simulation_request(outcome.static, static_request(request)).servers
            if server.model == name
        ]
        ((ms, count),) = {(ms, sum(number for _, number in servers)) for ms, _ in servers}
        expected = model.served_requests * ms / 1e3 / (count * DAY_S)
        assert model.utilisation == pytest.approx(expected, rel=1e-3)


def test_a_heavy_overload_is_not_stable_and_says_so(changing):
    request, outcome = changing
    trace = hourly(a=[0.8] * 9 + [20.0] * 2 + [0.8] * 13, b=1.0)
    replay = replay_day(request, outcome, trace, settings())
    model = model_of(replay, "windows", "a")
    assert model.stable is False and model.overloaded_s == 2 * 3600
    assert [hour.hour for hour in model.hours if hour.stable is False] == [9, 10]
    assert model_of(replay, "windows", "b").stable is True
    # The queue of two hours is there when it ends, and every response meanwhile is as long as the queue.
    capacity = outcome.windows[1].plan.models[0].throughput_rps
    worst = model.hours[10].response_ms.p99
    assert worst == pytest.approx(1e3 * 7200 * (20.0 - capacity) / capacity, rel=0.05)
    assert model.hours[9].attainment < 0.1
    assert any("a is not stable at 09:00, 10:00 UTC" in line for line in replay_lines(replay))


@pytest.mark.repeated
def test_a_sampled_day_is_the_whole_day_within_its_error(changing):
    """An overload, its queue afterwards, and the hours in balance: a twentieth of the requests gives all of it."""
    request, outcome = changing
    trace = hourly(a=[0.8] * 8 + [10.0] * 2 + [3.0] * 10 + [0.8] * 4, b=1.0)
    whole = replay_day(request, outcome, trace, settings())
    part = replay_day(request, outcome, trace, settings(requests_per_model=4000, replications=5))
    assert whole.simulated_share == 1 and part.simulated_share < 0.06
    for name in ("windows", "static"):
        exact, sampled = model_of(whole, name, "a"), model_of(part, name, "a")
        assert sampled.arrived_requests == pytest.approx(exact.arrived_requests, rel=0.02)
        assert sampled.served_requests == pytest.approx(exact.served_requests, rel=0.02)
        assert sampled.attainment.all == pytest.approx(exact.attainment.all, abs=0.03)
        assert sampled.utilisation == pytest.approx(exact.utilisation, abs=0.03)
        for hour in (9, 10, 15):
            assert sampled.hours[hour].response_ms.p95 == pytest.approx(
                exact.hours[hour].response_ms.p95, rel=0.25
            )
            assert sampled.hours[hour].attainment == pytest.approx(exact.hours[hour].attainment, abs=0.08)


def test_where_nothing_serves_a_model_what_arrives_is_lost(changing):
    """The plan of the day is asked at night as well: a model that the night's plan has not is lost there."""
    request = on_a30(
        with_windows(simple("a", RATES), (1.0, 1.0), (6.0, 6.0)),
        with_windows(simple("b", RATES), (0.0, None), (6.0, 6.0)),
        objective=Objective("min_gpus"), count=2,
    )  # fmt: skip
    outcome = workflow.plan_day(request)
    replay = replay_day(request, outcome, hourly(a=0.5, b=1.0), settings())
    model = model_of(replay, "windows", "b")
    begin, end = 8 * 3600, 20.5 * 3600
    served_s = sum(
        piece.length_s for piece in model_day(windows_day(request, outcome, 0), "b", hourly(a=0.5, b=1.0)).pieces
        if piece.capacities
    )  # fmt: skip
    assert served_s == pytest.approx(end - begin, abs=120)
    assert model.lost_requests == pytest.approx(DAY_S - served_s, rel=0.02)
    assert model.hours[3].served_share == 0 and model.hours[3].response_ms.p95 is None
    assert model.hours[12].served_share == 1
    assert model_of(replay, "static", "b").lost_requests == 0


def test_a_change_ahead_gives_its_servers_before_the_window_and_one_that_wraps_midnight_too(changing):
    request, outcome = changing
    night, day = outcome.windows
    assert night.ahead
    for first_s in (0, 8 * 3600, 8 * 3600 - 60, 21 * 3600):
        served = windows_day(request, outcome, first_s)
        length = sum(step.seconds for step in night.transition.steps)
        length += sum(step.seconds for step in day.transition.steps)
        assert served.transition_s == pytest.approx(length, abs=1e-3)
        begins = (8 * 3600 - first_s) % DAY_S
        for name in "ab":
            rate = sum(
                1e3 * period.server.count / period.server.batch_ms[1]
                for period in served.periods
                if period.server.model == name and period.begin_s <= begins + 1 < period.end_s
            )
            (model,) = (item for item in day.plan.models if item.name == name)
            assert rate == pytest.approx(model.throughput_rps)
        assert served.gpu_hours == pytest.approx(windows_day(request, outcome, 0).gpu_hours, abs=1e-6)


@pytest.mark.repeated
def test_in_and_outside_of_changes_are_parts_of_all(changing):
    request, outcome = changing
    trace = hourly(a=[0.8] * 8 + [6.5] * 12 + [0.8] * 4, b=[0.8] * 7 + [6.5] * 14 + [0.8] * 3)
    replay = replay_day(request, outcome, trace, settings())
    model = model_of(replay, "windows", "b")
    changes = windows_day(request, outcome, 0).changes
    shares = model.attainment
    assert None not in (shares.all, shares.in_transitions, shares.outside)
    within = sum(
        rate * max(0.0, min(end, 3600 * (hour + 1)) - max(begin, 3600 * hour))
        for begin, end in changes
        for hour, rate in enumerate(trace.rates["b"])
    )
    weight = within / sum(3600 * rate for rate in trace.rates["b"])
    mixed = weight * shares.in_transitions + (1 - weight) * shares.outside
    assert shares.all == pytest.approx(mixed, abs=0.01)
    assert shares.in_transitions < shares.outside


def test_holes_are_not_known_and_no_zeros(steady):
    request, outcome = steady
    rates = [2.0] * 24
    rates[5] = rates[6] = None
    replay = replay_day(request, outcome, hourly(a=rates, b=1.0), settings())
    model = model_of(replay, "windows", "a")
    hour = model.hours[5]
    assert (hour.known_s, hour.offered_rps, hour.attainment, hour.served_share, hour.stable) == (
        0,
        *[None] * 4,
    )
    assert hour.response_ms.p95 is None and model.hours[7].response_ms.p95 is not None
    assert model.arrived_requests == pytest.approx(22 * 7200, rel=0.02)
    assert replay.trace.holes == 2 and "2 values of the trace are missing" in list(replay_lines(replay))[-1]


def test_a_side_without_a_plan_says_why_and_the_others_are_simulated(changing):
    request, outcome = changing
    none = replace(outcome.static, status="infeasible", gpus=(), models=())
    replay = replay_day(request, replace(outcome, static=none), hourly(a=1.0, b=1.0), settings())
    side = side_of(replay, "static")
    assert side.gpu_hours is None and side.models == () and side.message == "no one plan holds all day"
    assert side_of(replay, "windows").models and "one plan: n/a: no one plan" in "\n".join(
        replay_lines(replay)
    )
    bare = replace(
        outcome.static, gpus=tuple(replace(gpu, slices=(), used=False) for gpu in outcome.static.gpus)
    )
    windows = (replace(outcome.windows[0], plan=bare), *outcome.windows[1:])
    bare_day = replace(outcome, static=bare, windows=windows)
    left = replay_day(request, bare_day, hourly(a=1.0, b=1.0), settings(requests_per_model=1000))
    assert [side.message is None for side in left.sides] == [False, False, True]
    assert "no plan for night" in left.sides[0].message


def test_the_same_seed_gives_the_same_figures_and_another_others(steady):
    request, outcome = steady
    trace = hourly(a=0.5, b=0.3)
    first, again, other = (replay_day(request, outcome, trace, settings(seed=seed)) for seed in (3, 3, 4))
    assert first == again and first.sides != other.sides
    assert files.read_text(files.write_text(first))[1] == first


def test_intervals_come_with_replications_alone(steady):
    request, outcome = steady
    trace = hourly(a=0.7, b=0.1)
    single = model_of(replay_day(request, outcome, trace, settings()), "static", "a")
    several = model_of(replay_day(request, outcome, trace, settings(replications=3)), "static", "a")
    assert single.p95_ci95_ms is None and single.hours[3].p95_ci95_ms is None
    assert (
        several.p95_ci95_ms > 0
        and abs(several.response_ms.p95 - single.response_ms.p95) < 10 * several.p95_ci95_ms
    )


def test_the_example_day_costs_less_by_window_than_by_the_rule_and_one_plan(example):
    request, outcome = example
    windows = request.models[0].demand_windows
    rates = {
        model.name: tuple(
            0.85 * model.demand_windows[
                next(at for at, w in enumerate(windows) if (60 * hour - w.minutes[0]) % 1440 < w.minutes[1])
            ].demand_rps
            for hour in range(24)
        )
        for model in request.models
    }  # fmt: skip
    replay = replay_day(request, outcome, DemandTrace(0, 3600, rates), settings(requests_per_model=20_000))
    by_side = {side.name: side for side in replay.sides}
    assert by_side["windows"].gpu_hours < by_side["rule"].gpu_hours < by_side["static"].gpu_hours
    assert by_side["static"].gpu_hours == outcome.gpu_hours.static
    assert all(model.lost_requests == 0 for side in replay.sides for model in side.models)
    assert replay.service_basis == "measured"


def a_fault(**expected):
    def check(call):
        with pytest.raises(InputFault) as caught:
            call()
        text = f"{caught.value.where}: {caught.value.problem} {caught.value.remedy}"
        assert all(words in text for words in expected["words"]), text

    return check


def test_faults_of_the_trace_and_of_settings_say_what_is_wrong(steady):
    request, outcome = steady
    good = hourly(a=1.0, b=1.0)

    def replayed(trace=good, asked=request, **options):
        return lambda: replay_day(asked, outcome, trace, settings(**options))

    a_fault(words=["no column of the model 'b'", "--map"])(replayed(hourly(a=1.0)))
    a_fault(words=["a", "has no value in the day"])(replayed(hourly(a=[None] * 24, b=1.0)))
    a_fault(words=["has no demand in the day"])(replayed(hourly(a=0.0, b=0.0)))
    a_fault(words=["covers 0.5 days"])(replayed(DemandTrace(0, 3600, {"a": (1.0,) * 12, "b": (1.0,) * 12})))
    a_fault(words=["--request", "is not the request"])(replayed(asked=replace(request, seed=5)))
    a_fault(words=["--requests"])(replayed(requests_per_model=10))
    a_fault(words=["--replications"])(replayed(replications=0))


def test_one_day_of_a_trace_is_chosen_and_another_length_is_refused():
    week = DemandTrace(3600, 3600, {"a": tuple(float(hour) for hour in range(49))})
    assert one_day(week, 2).rates["a"][0] == 24.0 and one_day(week, 2).first_s == 3600
    a_fault(words=["covers 2.042 days", "--trace-day 1 to 2"])(lambda: one_day(week))
    a_fault(words=["is 3, and the trace has 2 whole days"])(lambda: one_day(week, 3))
    short = replace(week, rates={"a": (1.0,) * 5})
    a_fault(words=["covers 5 h, and a day is 24 h"])(lambda: one_day(short))


def test_the_static_day_has_the_one_plan_all_day(changing):
    request, outcome = changing
    day = static_day(request, outcome)
    assert day.transition_s == 0 and day.gpu_hours == outcome.gpu_hours.static
    assert {(period.begin_s, period.end_s) for period in day.periods} == {(0.0, float(DAY_S))}


@pytest.mark.repeated
def test_a_sample_too_short_for_queues_to_settle_is_said(example):
    request, outcome = example
    rates = {model.name: (0.5 * model.demand_windows[1].demand_rps,) * 24 for model in request.models}
    trace = DemandTrace(0, 3600, rates)
    short = replay_day(request, outcome, trace, settings(requests_per_model=2000))
    assert any("queues have not found their balance" in text for text in short.warnings)
    assert not replay_day(request, outcome, trace, settings(requests_per_model=60_000)).warnings

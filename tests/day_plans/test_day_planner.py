"""Days planned: each window and the static plan against a look at every plan, changes, limits, bad input."""

from dataclasses import replace

import pytest

from tests.support.day_plans.days import at_both_rates, random_day, with_windows
from tests.support.planning.oracle import best_plan, levels_of
from tests.support.planning.requests import on_a30, simple
from tests.support.seeds import in_blocks, repeated
from torchsplit_core import workflow
from torchsplit_core.day_plans.day_clock import SEARCH_SHARE
from torchsplit_core.day_plans.verification import day_faults
from torchsplit_core.files import read_text, write_text
from torchsplit_core.planning import plan
from torchsplit_core.transition import state_of_plan
from torchsplit_core.values import (
    ConstantTokens,
    DayOutcome,
    FleetEntry,
    GammaArrivals,
    InputFault,
    LlmModel,
    LlmPoint,
    Objective,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    SolverOptions,
)

RATES = {"1g.6gb": 10.0, "2g.12gb": 20.0, "4g.24gb": 40.0}


def asked_of(request: PlanRequest, window: int | None) -> PlanRequest:
    """The request of one window, or of the largest figures of all, by the words of the contract."""
    models = []
    for model in request.models:
        chosen = model.demand_windows if window is None else (model.demand_windows[window],)
        demand = max(float(item.demand_rps) for item in chosen)
        minima = [
            model.min_throughput_rps if item.min_throughput_rps is None else item.min_throughput_rps
            for item in chosen
            if item.demand_rps
        ]
        least = max((minimum for minimum in minima if minimum is not None), default=None)
        if demand:
            models.append(replace(model, demand_rps=demand, min_throughput_rps=least, demand_windows=()))
    names = {model.name for model in models}
    pairs = tuple(pair for pair in request.colocations if names >= set(pair.models))
    return replace(request, models=tuple(models), colocations=pairs)


def as_good_as_every_plan(request: PlanRequest, outcome: PlanOutcome) -> None:
    best = best_plan(request)
    if best is None:
        assert outcome.status == "infeasible"
        return
    assert outcome.status == "optimal"
    assert levels_of(request, outcome) == pytest.approx(best[0], rel=1e-6, abs=1e-6)


@pytest.mark.slow
@repeated("kind", ["min_gpus", "max_min", "leximin", "weighted_sum"], kept=2)
@in_blocks("seed", range(25), kept=1)
def test_every_window_and_the_plan_for_all_are_as_good_as_every_plan_looked_at(kind, seed):
    request = random_day(seed, kind)
    try:
        day = workflow.plan_day(request)
    except InputFault as fault:
        # In some window nothing can run at all, which `plan` refuses as well.
        assert "none can run on any GPU" in fault.problem
        return
    assert list(day_faults(request, day)) == []
    for number, window in enumerate(day.windows):
        as_good_as_every_plan(asked_of(request, number), window.plan)
    as_good_as_every_plan(asked_of(request, None), day.static)


@pytest.mark.slow
@repeated("kind", ["leximin", "min_gpus"])
@in_blocks("seed", range(20), kept=1)
def test_no_plan_as_good_changes_less(kind, seed):
    request = random_day(seed, kind)
    try:
        day = workflow.plan_day(request)
    except InputFault:
        return
    _no_closer(request, day)


def _no_closer(request: PlanRequest, day: DayOutcome) -> None:
    """No plan of a window that is as good touches fewer GPUs of the one before."""
    for number, (before, window) in enumerate(zip(day.windows, day.windows[1:], strict=False), 1):
        touched = window.plan.touched_gpus
        if not touched or not before.plan.gpus:
            continue
        asked = replace(
            asked_of(request, number),
            current=state_of_plan(before.plan),
            objective=replace(request.objective, max_touched_gpus=touched - 1),
        )
        closer = plan(asked)
        if closer.gpus:
            reached = levels_of(asked, closer)
            assert reached < levels_of(asked, window.plan)
            assert reached != pytest.approx(levels_of(asked, window.plan))


def two_models(**options: object) -> PlanRequest:
    """By night half a GPU is enough, by day two are needed; every model's demand is its minimum."""
    first = with_windows(simple("a", RATES, memory_gib=1.0), (10.0, 10.0), (40.0, 40.0))
    second = with_windows(simple("b", RATES, memory_gib=1.0), (10.0, 10.0), (20.0, 20.0))
    options = {"objective": Objective("min_gpus"), "count": 3, "cost": 2.0} | options
    return on_a30(first, second, **options)


def test_a_day_has_gpu_hours_costs_and_transitions_on_both_sides():
    request = two_models()
    day = workflow.plan_day(request)
    assert [window.name for window in day.windows] == ["night", "day"]
    assert day.gpu_hours.windows == pytest.approx(11.5 * 1 + 12.5 * 2)
    assert day.gpu_hours.static == 48.0
    assert day.cost_per_day is not None and day.cost_per_day.static == 96.0
    assert day.cost_per_day.windows == pytest.approx(2.0 * 36.5)
    served = 3600 * (11.5 * 20.0 + 12.5 * 60.0) / 1e6
    assert day.cost_per_million_requests is not None
    assert day.cost_per_million_requests.static == pytest.approx(96.0 / served)
    assert day.cost_per_million_output_tokens is None
    assert day.worst_normalised.windows == 1.0 and day.worst_normalised.static == 1.0
    assert day.lost_requests == sum(
        (item.model_seconds_below_demand or 0.0) * (item.demand_rps or 0.0)
        for window in day.windows
        for item in window.transition.during
    )
    assert read_text(write_text(day))[1] == day


def test_a_growth_begins_ahead_of_its_window_and_loses_nothing():
    day = workflow.plan_day(two_models())
    night, light = day.windows
    assert night.ahead and not light.ahead
    assert {item.model: item.demand_rps for item in night.transition.during} == {"a": 10.0, "b": 10.0}
    assert all(item.model_seconds_below_demand == 0.0 for item in night.transition.during)


def test_with_one_window_it_is_the_plan_as_it_is():
    model = simple("a", RATES, min_throughput_rps=15.0)
    request = on_a30(with_windows(model, (30.0, None)), objective=Objective("min_gpus"))
    day = workflow.plan_day(request)
    plain = workflow.plan(replace(request, models=(replace(model, demand_rps=30.0),)))
    (window,) = day.windows
    assert window.plan.request_sha256 == plain.request_sha256
    assert (window.plan.gpus, window.plan.objective) == (plain.gpus, plain.objective)
    assert day.static == window.plan and window.transition.steps == ()


def test_where_the_static_plan_is_as_good_all_day_nothing_changes():
    models = [with_windows(simple(name, RATES), (5.0, 5.0), (20.0, 20.0)) for name in "ab"]
    day = workflow.plan_day(on_a30(*models, objective=Objective("min_gpus"), count=2))
    assert [window.transition.touched_gpus for window in day.windows] == [0, 0]
    assert all(window.plan.gpus == day.static.gpus for window in day.windows)


def test_the_p95_of_a_window_is_its_demand_unless_the_mean_is_asked_for():
    request = two_models()
    high = workflow.plan_day(at_both_rates(request))
    assert high.gpu_hours == workflow.plan_day(request).gpu_hours
    # Served is what arrives, of which the mean is the better figure.
    assert high.cost_per_million_requests.static == pytest.approx(
        2 * workflow.plan_day(request).cost_per_million_requests.static
    )
    mean = workflow.plan_day(replace(at_both_rates(request), plan_demand_at="mean"))
    assert mean.worst_normalised.windows == pytest.approx(2 * high.worst_normalised.windows)


def test_a_window_without_a_plan_is_infeasible_and_the_others_go_on():
    first = with_windows(simple("a", RATES), (10.0, 10.0), (500.0, 500.0), (10.0, 10.0))
    day = workflow.plan_day(on_a30(first, objective=Objective("min_gpus")))
    assert [window.plan.status for window in day.windows] == ["optimal", "infeasible", "optimal"]
    assert day.status == "infeasible"
    assert [window.transition is None for window in day.windows] == [True, True, False]
    assert (day.gpu_hours.windows, day.gpu_hours.static, day.lost_requests) == (None, None, None)


def test_where_only_one_plan_for_all_is_infeasible_its_figures_are_not_known():
    models = [with_windows(simple(name, RATES), *figures) for name, figures in (
        ("a", ((40.0, 40.0), (0.0, None))), ("b", ((0.0, None), (40.0, 40.0))),
    )]  # fmt: skip
    day = workflow.plan_day(on_a30(*models, objective=Objective("min_gpus")))
    assert day.status == "optimal" and day.static.status == "infeasible"
    assert day.gpu_hours.windows == 24.0 and day.gpu_hours.static is None
    assert day.worst_normalised.static is None
    assert [model.name for window in day.windows for model in window.plan.models] == ["a", "b"]


def test_a_limit_of_touched_gpus_holds_all_round_the_day():
    request = two_models(objective=Objective("min_gpus", max_touched_gpus=1))
    day = workflow.plan_day(request)
    assert max(window.transition.touched_gpus for window in day.windows) <= 1
    assert day.status in ("optimal", "feasible") and list(day_faults(request, day)) == []
    still = workflow.plan_day(replace(request, objective=Objective("leximin", max_touched_gpus=0)))
    assert [window.transition.touched_gpus for window in still.windows] == [0, 0]


def test_with_no_change_allowed_every_window_has_the_plan_that_holds_all_day():
    request = two_models(objective=Objective("min_gpus", max_touched_gpus=0))
    day = workflow.plan_day(request)
    assert [window.plan.gpus for window in day.windows] == [day.static.gpus] * 2
    assert day.gpu_hours.windows == day.gpu_hours.static
    # The night would do with half of it: that is its bound, not its value.
    assert (day.windows[0].plan.objective.value, day.windows[0].plan.objective.bound) == (4.0, 2.0)
    assert list(day_faults(request, day)) == []


@pytest.mark.slow
@in_blocks("seed", range(20), kept=1)
def test_a_limit_is_kept_wherever_one_plan_holds_all_day(seed):
    request = random_day(seed, "min_gpus")
    if not all(window.demand_rps for model in request.models for window in model.demand_windows):
        return  # a model that nobody asks for in a window stops there
    for limit in (0, 1):
        asked = replace(request, objective=replace(request.objective, max_touched_gpus=limit))
        try:
            day = workflow.plan_day(asked)
        except InputFault:
            continue
        assert list(day_faults(asked, day)) == []
        if day.static.gpus:
            assert max(window.transition.touched_gpus for window in day.windows) <= limit
            assert day.gpu_hours.windows <= day.gpu_hours.static


def test_a_limit_that_no_window_can_keep_leaves_it_without_a_plan():
    models = [with_windows(simple(name, RATES), *figures) for name, figures in (
        ("a", ((40.0, 40.0), (0.0, None))), ("b", ((0.0, None), (40.0, 40.0))),
    )]  # fmt: skip
    day = workflow.plan_day(on_a30(*models, objective=Objective("min_gpus", max_touched_gpus=0)))
    assert [window.plan.status for window in day.windows] == ["optimal", "infeasible"]
    assert day.static.status == "infeasible"


def test_arrivals_come_in_proportion_and_a_day_shares_one_time_limit():
    asked: list[PlanRequest] = []
    model = replace(
        simple("a", RATES), demand_rps=20.0, arrivals=GammaArrivals(20.0, 2.0),
    )  # fmt: skip
    request = on_a30(with_windows(model, (10.0, None), (40.0, None)), solver=SolverOptions(12.0))

    def planner(window: PlanRequest, progress: object) -> PlanOutcome:
        asked.append(window)
        return plan(window)

    from torchsplit_core.day_plans.day_planner import plan_day

    plan_day(request, planner)
    rates = [model.arrivals.rate_rps for window in asked for model in window.models]
    assert sorted(rates) == [10.0, 40.0, 40.0]
    assert asked[0].solver.time_limit_s == pytest.approx(12.0 * SEARCH_SHARE / 3, rel=0.1)
    assert all(window.solver.time_limit_s <= 12.0 for window in asked)


def refused(request: PlanRequest) -> InputFault:
    with pytest.raises(InputFault) as caught:
        workflow.plan_day(request)
    return caught.value


def test_bad_days_are_refused_in_a_sentence():
    model = simple("a", RATES)
    other = simple("b", RATES)
    with_two = with_windows(model, (1.0, None), (2.0, None))
    for models, problem in (
        ((model,), "have no demand_windows"),
        ((with_two, other), "has the windows none"),
        ((with_windows(model, (0.0, 3.0), (2.0, None)),), "a demand of 0 and a minimum of 3"),
        ((with_windows(model, (0.0, None), (2.0, None)),), "asks nothing of any model"),
        ((replace(with_two, demand_windows=with_two.demand_windows[:1]),), "belongs to no window"),
    ):  # fmt: skip
        assert problem in refused(on_a30(*models)).problem
    assert "no model has a minimum" in refused(on_a30(with_two, objective=Objective("min_gpus"))).problem


def changed(day: DayOutcome) -> list[DayOutcome]:
    """The day with one claim falsified at a time."""
    night, light = day.windows
    static = day.static
    return [
        replace(day, windows=(light, night)),
        replace(day, gpu_hours=replace(day.gpu_hours, windows=1.0)),
        replace(day, gpu_hours=replace(day.gpu_hours, static=None)),
        replace(day, worst_normalised=replace(day.worst_normalised, windows=7.0)),
        replace(day, cost_per_day=replace(day.cost_per_day, static=1.0)),
        replace(day, lost_requests=(day.lost_requests or 0.0) + 1.0),
        replace(day, request_sha256="0" * 64),
        replace(day, windows=(replace(night, transition=None), light)),
        replace(day, windows=(replace(night, transition=light.transition), light)),
        replace(day, windows=(replace(night, plan=static), light)),
        replace(day, static=night.plan),
    ]


def test_the_check_finds_each_false_claim():
    request = two_models()
    day = workflow.plan_day(request)
    assert list(day_faults(request, day)) == []
    for number, false in enumerate(changed(day)):
        assert list(day_faults(request, false)), number


def test_a_models_own_minimum_stands_where_a_window_has_none():
    model = PlanModel("a", simple("a", RATES).variants, min_throughput_rps=15.0)
    request = on_a30(with_windows(model, (10.0, 5.0), (10.0, None)), objective=Objective("min_gpus"))
    night, light = workflow.plan_day(request).windows
    assert night.plan.models[0].throughput_rps >= 5.0 and light.plan.models[0].throughput_rps >= 15.0


def llm_day(**options: object) -> PlanRequest:
    """An LLM with measured engines on one and two GPUs of a node, by night and by day."""
    points = tuple(
        LlmPoint("H100-SXM5-80GB", "", rate, gpus, ttft_ms=200.0, tpot_ms=20.0)
        for gpus, rate in ((1, 4.0), (2, 9.0))
    )
    llm = LlmModel(
        None, ConstantTokens(500), ConstantTokens(100), max_ttft_ms=1000.0, tensor_parallel=(1, 2), points=points
    )  # fmt: skip
    model = with_windows(PlanModel("chat", llm=llm), (4.0, 4.0), (8.0, 8.0))
    fleet = (FleetEntry("H100-SXM5-80GB", count=4, node="host", mig=False, cost=3.0),)
    return PlanRequest(fleet, (model,), objective=Objective("min_gpus"))


def test_llms_have_windows_with_few_changes_and_a_cost_per_million_tokens():
    request = llm_day()
    day = workflow.plan_day(request)
    assert list(day_faults(workflow.with_engine_points(request), day)) == []
    assert [sum(gpu.used for gpu in window.plan.gpus) for window in day.windows] == [1, 2]
    # An engine more beside the one that runs, not one of twice the size in its place.
    assert [window.transition.touched_gpus for window in day.windows] == [1, 1]
    requests = 3600 * (11.5 * 4.0 + 12.5 * 8.0) / 1e6
    assert day.cost_per_million_output_tokens.static == pytest.approx(6.0 * 24 / (requests * 100))
    assert day.cost_per_million_requests.static == pytest.approx(6.0 * 24 / requests)


def test_response_time_limits_hold_in_each_window():
    model = replace(simple("a", RATES, memory_gib=1.0), max_response_ms=400.0)
    request = on_a30(
        with_windows(model, (5.0, 5.0), (30.0, 30.0)), objective=Objective("min_gpus"), count=2,
        solver=SolverOptions(120.0),
    )  # fmt: skip
    day = workflow.plan_day(request)
    assert all(window.plan.models[0].response_ms.p95 <= 400.0 for window in day.windows)
    assert list(day_faults(request, day)) == []


def test_the_energy_of_a_day_is_of_both_sides_and_a_false_one_is_refused():
    model = with_windows(simple("a", RATES, demand_rps=10.0), (10.0, 10.0), (40.0, 40.0))
    request = at_both_rates(on_a30(model, count=2, objective=Objective("min_gpus")))
    outcome = workflow.plan_day(request)
    energy = outcome.energy_kwh_per_day
    # One A30 of 165 W, whose slices are sized for the p95 and get its half.
    assert energy.static.high == pytest.approx(24 * 0.165) and energy.windows.high == pytest.approx(
        24 * 0.165
    )
    by_hand = 0.165 * (11.5 * 5.0 + 12.5 * 20.0) / 40.0
    assert energy.static.low == pytest.approx(by_hand)
    assert read_text(write_text(outcome))[1] == outcome
    for change in ({"high": 1.0}, {"low": 99.0}):
        false = replace(energy, windows=replace(energy.windows, **change))
        assert any(
            "kWh" in fault for fault in day_faults(request, replace(outcome, energy_kwh_per_day=false))
        )
    hosts = replace(request, gpus=(FleetEntry("CPU-4c"),))
    points = tuple(
        replace(point, gpu_type="CPU", profile="2c") for point in model.variants[0].stages[0].points[:1]
    )
    stage = replace(model.variants[0].stages[0], points=points)
    on_cores = replace(model, variants=(replace(model.variants[0], stages=(stage,)),))
    small = with_windows(on_cores, (5.0, 5.0), (6.0, 6.0))
    assert workflow.plan_day(replace(hosts, models=(small,))).energy_kwh_per_day is None


def test_the_energy_of_one_side_is_known_where_only_the_other_uses_cores_of_a_host():
    def on_either(name, day, night):
        model = with_windows(simple(name, {"1g.6gb": 10.0}, demand_rps=10.0), (day, day), (night, night))
        stage = model.variants[0].stages[0]
        points = (*stage.points, replace(stage.points[0], gpu_type="CPU", profile="2c"))
        return replace(model, variants=(replace(model.variants[0], stages=(replace(stage, points=points),)),))

    models = (on_either("a", 29.0, 5.0), on_either("b", 5.0, 29.0))
    request = on_a30(models[0], objective=Objective("min_gpus"))
    request = replace(request, models=models, gpus=(FleetEntry("A30-24GB"), FleetEntry("CPU-4c")))
    outcome = workflow.plan_day(request)
    # Either window fits on the A30; both peaks at once take the cores besides.
    assert {gpu.type for gpu in outcome.static.gpus if gpu.used} == {"A30-24GB", "CPU-4c"}
    energy = outcome.energy_kwh_per_day
    assert energy.static is None and energy.windows.high == pytest.approx(24 * 0.165)
    assert list(day_faults(request, outcome)) == []


def test_a_day_says_that_it_takes_no_notice_of_samples():
    model = with_windows(simple("a", RATES, demand_rps=10.0), (10.0, None), (40.0, None))
    assert workflow.plan_day(on_a30(model)).warnings == ()
    sampled = replace(model, demand_samples=(1.0, 2.0))
    assert workflow.plan_day(on_a30(sampled)).warnings == (
        "a: planned for demand_windows; demand_samples are not used.",
    )

"""The tab Over the day: its windows are read back, the day is planned in a job, and what it shows is the outcome."""

import datetime
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from app.charts.day import DayStretch, gpus_over_day, saved_against_lost, shares_held
from app.plans import summary
from app.plans.day import costs, tab, window_table
from app.plans.report import report
from tests.support.app import plan_page
from tests.support.app.page import field, metrics, press, said
from tests.support.app.values import plan, request
from torchsplit_core import workflow
from torchsplit_core.day_plans.least_change import used_gpus
from torchsplit_core.jobs.job_kinds import DAY, DAY_CURVE, HELD_OUT, RequestParameters
from torchsplit_core.jobs.plan import day_curve_job, day_job, held_out_job
from torchsplit_core.pictures.numbers import short
from torchsplit_core.planning.request.edit import with_demands_as_minima
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.sample_plans.drawn import drawn_samples
from torchsplit_core.planning.sample_plans.holdout import held_of_others, planned_samples
from torchsplit_core.values import (
    DemandLevels,
    DemandWindow,
    FleetEntry,
    HeldSamples,
    InputFault,
    Objective,
    PlanRequest,
    ignore_progress,
)
from torchsplit_core.values.plan.prices import GpuPrice, PriceTable
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace

SCRIPT = """
from app.plans.day import tab
from app.shell import frame
with frame.fault_boundary():
    workspace = frame.open_page("Plan")
    tab.render(workspace, "review", workspace.get("plan_request", "review"))
"""


def opened(workspace: Workspace) -> AppTest:
    test = AppTest.from_string(SCRIPT, default_timeout=120)
    test.query_params["workspace"] = workspace.id
    test.run()
    assert not test.exception
    return test


def fewest() -> PlanRequest:
    """Two models of which each takes a GPU by day and both share one by night."""
    models = tuple(replace(model, demand_rps=400.0, max_latency_ms=None) for model in request().models)
    gpus = (FleetEntry("A100-80GB", count=4, cost=2.0),)
    asked = PlanRequest(gpus, models, objective=Objective("min_gpus"))
    rows = window_table.rows_of(asked)
    return tab.with_demands_as_minima(window_table.with_windows(asked, rows))


@pytest.fixture
def planned(filled) -> Workspace:
    filled.put("plan_request", "review", fewest())
    assert day_job(filled, RequestParameters("review"), ignore_progress)["windows"] == 2
    return filled


def test_rows_and_windows_are_each_other_and_what_a_window_has_besides_stays():
    asked = request()
    rows = window_table.rows_of(asked)
    assert [row[window_table.NAME] for row in rows] == ["day", "night"]
    assert rows[0]["bert"] == asked.models[0].demand_rps and rows[1]["bert"] < rows[0]["bert"]
    changed = window_table.with_windows(asked, rows)
    assert window_table.rows_of(changed) == rows
    first = changed.models[0].demand_windows
    levels = replace(first[0], demand_rps=DemandLevels(100.0, 200.0), min_throughput_rps=30.0)
    bert = replace(changed.models[0], demand_windows=(levels, first[1]))
    both = replace(changed, models=(bert, *changed.models[1:]))
    again = window_table.with_windows(both, window_table.rows_of(both))
    assert again == both
    rows = window_table.rows_of(both)
    rows[0]["bert"] = 150.0
    edited = window_table.with_windows(both, rows).models[0].demand_windows[0]
    assert (edited.demand_rps, edited.min_throughput_rps) == (150.0, 30.0)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        (window_table.NAME, None, "row 1: window: is empty"),
        (window_table.START, float("nan"), r"row 1: from \(UTC\): is empty"),
        ("bert", None, "row 1: bert: is empty"),
        ("bert", -1.0, "row 1: bert: is no rate"),
        ("bert", float("inf"), "row 1: bert: is no rate"),
    ],
)
def test_a_cell_that_is_no_window_is_named(column, value, words):
    rows = window_table.rows_of(request())
    rows[0][column] = value
    with pytest.raises(InputFault, match=words):
        window_table.with_windows(request(), rows)


def test_windows_in_the_users_time_and_days_of_another_length():
    window = DemandWindow("day", "07:00", "22:00", 1.0)
    summer, winter = datetime.date(2026, 7, 1), datetime.date(2026, 12, 1)
    assert window_table.local_span(window, "Europe/Berlin", summer) == "09:00–00:00"
    assert window_table.local_span(window, "Europe/Berlin", winter) == "08:00–23:00"
    for zone in (None, "", "UTC", "Nowhere/Here"):
        assert window_table.local_span(window, zone, winter) is None and not window_table.zone_note(
            zone, winter
        )
    assert window_table.zone_note("Europe/Berlin", summer) == "Local times are of Europe/Berlin today."
    assert "Today has 23 hours" in window_table.zone_note("Europe/Berlin", datetime.date(2026, 3, 29))
    assert "Today has 25 hours" in window_table.zone_note("Europe/Berlin", datetime.date(2026, 10, 25))


def test_a_window_past_midnight_is_two_stretches():
    assert window_table.minutes_of_day(DemandWindow("night", "22:00", "07:00", 1.0)) == [
        (22.0, 24.0),
        (0.0, 7.0),
    ]
    assert window_table.minutes_of_day(DemandWindow("all", "00:00", "24:00", 1.0)) == [(0.0, 24.0)]


def test_planning_stores_the_windows_and_starts_a_job_and_the_plan_stays_current(filled, started):
    filled.put("plan", "review", plan())
    page = press(opened(filled), "Plan the day")
    assert "what changing between them loses" in said(opened(filled))
    assert started == [(DAY, RequestParameters("review"))] and not page.exception
    stored = filled.get("plan_request", "review")
    assert [window.name for window in stored.models[0].demand_windows] == ["day", "night"]
    assert named_results.plan_is_current(stored, filled.get("plan", "review"))


def test_windows_that_leave_a_hole_start_nothing(filled, started, monkeypatch):
    rows = window_table.rows_of(request())
    rows[1][window_table.END] = "06:00"
    monkeypatch.setattr(tab.st, "data_editor", lambda *_, **__: pd.DataFrame(rows))
    page = press(opened(filled), "Plan the day")
    assert "06:00" in said(page) and started == []
    assert filled.get("plan_request", "review") == request()


class Dropped:
    """A file that was dropped: two services by the hour over two days, the first busy from 8 to 20."""

    name = "trace.csv"

    def getvalue(self) -> bytes:
        rows = ["time_s,bert,search"]
        for hour in range(48):
            busy = 8 <= hour % 24 < 20
            rows.append(f"{3600 * hour},{(80 if busy else 10) + hour},{40 if busy else 4}")
        return "\n".join(rows).encode()


def test_a_trace_is_cut_into_windows_of_the_models_it_names(filled, started, monkeypatch):
    monkeypatch.setattr(tab.trace_input.st, "file_uploader", lambda *_, **__: Dropped())
    page = opened(filled)
    assert "2 days, a row every 60 min" in said(page) and "columns that are no model" not in said(page)
    field(page, "number_input", "Windows").set_value(2)
    field(page, "number_input", "Times the trace").set_value(0.5)
    field(page, "selectbox", "Column of ocr").set_value("search")
    press(page.run(), "Cut into windows of least cost")
    bert, ocr = filled.get("plan_request", "review").models
    assert [(window.start, window.end) for window in bert.demand_windows] == [
        ("08:00", "20:00"),
        ("20:00", "08:00"),
    ]
    assert [window.demand_rps for window in bert.demand_windows] == [0.5 * (80 + 43), 0.5 * (10 + 47)]
    assert [window.demand_rps for window in ocr.demand_windows] == [20.0, 2.0] and started == []


def test_a_trace_that_is_none_is_said_and_nothing_changes(filled, monkeypatch):
    broken = Dropped()
    broken.getvalue = lambda: b"when,bert\n0,1\n"
    monkeypatch.setattr(tab.trace_input.st, "file_uploader", lambda *_, **__: broken)
    page = opened(filled)
    assert "trace.csv" in said(page) and "time_s" in said(page)
    assert filled.get("plan_request", "review") == request()


def test_the_outcome_is_shown_with_both_sides_and_a_window_opens_as_a_scenario(planned, select):
    outcome = planned.get("day", "review")
    page = opened(planned)
    assert outcome.request_sha256 == request_hash(fewest())
    text = said(page)
    assert "Changing pays: it saves" in text
    hours = metrics(page)["GPU-hours a day"]
    assert hours == f"{outcome.gpu_hours.windows:g} · {outcome.gpu_hours.static:g}"
    (shown,) = [element.value for element in page.dataframe if "GPUs used" in element.value]
    assert list(shown["GPUs used"]) == [
        *(used_gpus(window.plan) for window in outcome.windows),
        used_gpus(outcome.static),
    ]
    assert (
        metrics(page)["Cost a day"] == f"{outcome.cost_per_day.windows:g} · {outcome.cost_per_day.static:g}"
    )
    assert select("day-chart", points=[{"customdata": [1]}])["day window of review"] == 1
    page.session_state["day window of review"] = 1
    press(page.run(), "Open as scenario")
    opened_request, opened_plan = (
        planned.get("plan_request", "review · night"),
        planned.get("plan", "review · night"),
    )
    assert named_results.plan_is_current(opened_request, opened_plan)
    assert opened_request.models[0].demand_rps == fewest().models[0].demand_windows[1].demand_rps


def test_samples_are_drawn_and_a_share_of_them_is_a_draft_with_its_card(page, filled, started):
    shown = plan_page.tab(page("plan", filled), "Over the day")
    assert "samples are moments of all models at once" in said(shown)
    field(shown, "number_input", "Samples to draw").set_value(40)
    press(shown.run(), "Draw samples around the demands")
    stored = filled.get("plan_request", "review")
    assert [len(model.demand_samples) for model in stored.models] == [40, 40]
    shown = plan_page.tab(page("plan", filled), "Over the day")
    assert "40 samples: bert" in said(shown)
    press(shown, "Try the fewest GPUs")
    assert "share of samples none → 0.95" in said(shown)
    cards = metrics(plan_page.tab(shown, "Plan"))
    assert "GPUs (or cost) needed" in cards or "No plan" in said(shown)


def test_the_moments_of_a_trace_are_samples_and_a_model_without_a_column_has_its_demand(filled, monkeypatch):
    monkeypatch.setattr(tab.trace_input.st, "file_uploader", lambda *_, **__: Dropped())
    press(opened(filled), "Take the moments of the trace")
    bert, ocr = filled.get("plan_request", "review").models
    assert bert.demand_samples[:2] == (10.0, 11.0) and len(bert.demand_samples) == 48
    assert set(ocr.demand_samples) == {ocr.demand_rps}


def test_the_card_of_samples_says_how_many_are_held():
    samples = HeldSamples(40, 38, 0.95, 38, "bert")
    least = replace(plan(), samples=samples, objective=replace(plan().objective, kind="min_gpus", value=1.0))
    first = summary.metrics(least, request())[0]
    assert first.label.endswith("needed") and "holds 38 of 40 samples" in first.note
    most = replace(least, objective=replace(least.objective, kind="attainment", value=0.95))
    card = summary.metrics(most, request())[0]
    assert (card.label, card.value) == ("Samples held", "95\u202f%") and "38 of 40 samples" in card.note


def test_a_trace_that_leaves_the_plans_is_said_with_their_age(planned, monkeypatch):
    calm = Dropped()
    calm.getvalue = lambda: b"time_s,bert\n0,1\n3600,2\n"
    monkeypatch.setattr(tab.trace_input.st, "file_uploader", lambda *_, **__: calm)
    assert "at each of its 2 moments" in said(opened(planned)) and "Planned" in said(opened(planned))
    calm.getvalue = lambda: b"time_s,bert\n0,1\n3600,90000\n"
    assert "At 1 of the trace's 2 moments demand is above" in said(opened(planned))


def test_the_report_has_the_day_where_it_is_of_the_request(planned):
    asked, outcome = planned.get("plan_request", "review"), planned.get("day", "review")
    text = report("review", asked, plan(asked), {}, outcome)
    assert "Over the day" in text and "Changing pays" in text and ">night<" in text
    assert "Over the day" not in report("review", asked, plan(asked), {})


def test_the_curve_of_changes_is_a_job_whose_points_are_shown(planned, started, monkeypatch):
    press(opened(planned), "Plan with fewer changes")
    assert started == [(DAY_CURVE, RequestParameters("review"))]
    result = day_curve_job(planned, RequestParameters("review"), ignore_progress)
    points = result["points"]
    assert [point["most_touched"] for point in points] == [0, 1, 2, None]
    assert points[0]["saved_gpu_hours"] == 0 and points[0]["lost_requests"] == 0
    free = planned.get("day", "review")
    assert points[-1]["gpu_hours"] == free.gpu_hours.windows
    done = SimpleNamespace(state="done", result=result)
    monkeypatch.setattr(tab.change_curve.jobs, "newest", lambda *_: done)
    page = opened(planned)
    (shown,) = [element.value for element in page.dataframe if "GPU-hours saved" in element.value]
    assert list(shown["GPUs that may change"]) == ["at most 0", "at most 1", "at most 2", "any number"]
    planned.put("plan_request", "review", replace(planned.get("plan_request", "review"), seed=7))
    assert not any("GPU-hours saved" in element.value for element in opened(planned).dataframe)


def test_the_curve_leaves_out_what_is_not_known():
    drawn = saved_against_lost(
        [("at most 0", 0.0, 0.0), ("at most 1", None, None), ("any", 5.0, 9.0)], dark=True
    )
    assert list(drawn.data[0].x) == [0.0, 5.0] and list(drawn.data[0].text) == ["at most 0", "any"]


def test_an_outcome_of_other_windows_says_so(planned):
    asked = planned.get("plan_request", "review")
    planned.put("plan_request", "review", replace(asked, objective=Objective("max_min")))
    assert "of an earlier state of this scenario" in said(opened(planned))


def test_it_stands_in_a_tab_of_the_plan_page(page, planned):
    shown = plan_page.tab(page("plan", planned), "Over the day")
    assert "Changing pays" in said(shown)


def test_the_chart_has_every_window_where_it_is_and_none_without_a_plan():
    stretches = [
        DayStretch(0, "night", 22.0, 24.0, 1, 0.5, 1.2),
        DayStretch(0, "night", 0.0, 7.0, 1, 0.5, 1.2),
        DayStretch(1, "day", 7.0, 22.0, None, 1.0, None),
    ]
    for dark in (False, True):
        drawn = gpus_over_day(stretches, 3, dark=dark)
        lines = [trace for trace in drawn.data if trace.customdata is not None]
        assert [(line.x[0], line.x[-1], line.customdata[0][0]) for line in lines] == [
            (0.0, 7.0, 0),
            (22.0, 24.0, 0),
        ]
        assert any(trace.name == "one plan all day" and list(trace.y) == [3, 3] for trace in drawn.data)
    assert not any(
        trace.name == "one plan all day" for trace in gpus_over_day(stretches, None, dark=False).data
    )


def test_the_samples_held_out_judge_each_share_in_a_job_and_are_shown(filled, started, monkeypatch):
    drawn = drawn_samples(request(), 60, 0.5, 0.4, 3)
    objective = Objective("min_gpus", attainment=0.8)
    filled.put(
        "plan_request",
        "review",
        replace(drawn, objective=objective, gpus=(FleetEntry("A100-80GB", count=4),)),
    )
    press(opened(filled), "Judge by samples held out")
    assert started == [(HELD_OUT, RequestParameters("review"))]
    result = held_out_job(filled, RequestParameters("review"), ignore_progress)
    points = {point["asked"]: point for point in result["points"]}
    assert list(points) == [0.8, 0.9, 0.95, 0.99, 0.999, 1.0, None]
    stored = filled.get("plan_request", "review")
    for asked, point in points.items():
        assert (point["planned"], point["held_out"]) == (30, 30) and point["held"] <= 30
        assert asked is None or point["planned_held"] >= asked * 30 - 1e-9
    by_hand = workflow.plan(planned_samples(stored))
    assert points[0.8]["held"] == held_of_others(stored, by_hand)[0]
    monkeypatch.setattr(
        tab.samples.held_out.jobs, "newest", lambda *_: SimpleNamespace(state="done", result=result)
    )
    page = opened(filled)
    (shown,) = [element.value for element in page.dataframe if "held of those held out" in element.value]
    words = f"{100 * points[0.8]['held'] / 30:.3g}"
    assert words in shown["held of those held out"][0] and f"({points[0.8]['held']} of 30)" in said(page)
    assert "too few to tell 99 % and 99.9 % from every one" in said(page)
    filled.put("plan_request", "review", replace(stored, seed=9))
    assert not any("held of those held out" in element.value for element in opened(filled).dataframe)


def test_one_sample_cannot_be_held_out_and_that_is_said(filled):
    one = tuple(replace(model, demand_samples=(5.0,)) for model in request().models)
    filled.put("plan_request", "review", replace(request(), models=one))
    assert "Held out: n/a. There is one sample" in said(opened(filled))


def test_the_workspaces_prices_fill_in_what_the_request_lacks_and_its_own_stay(filled, started):
    asked = fewest()
    unpriced = replace(asked, gpus=(FleetEntry("A100-80GB", count=4),))
    table = PriceTable("EUR", (GpuPrice("A100-80GB", 1.5, "2026-01-02"),))
    filled.put("plan_request", "review", unpriced)
    minima = with_demands_as_minima(unpriced)
    filled.put("plan", "review", replace(workflow.plan(minima), request_sha256=request_hash(unpriced)))
    day_job(filled, RequestParameters("review"), ignore_progress)
    assert metrics(opened(filled))["Cost a day"] == "n/a" and "no price of A100-80GB" in said(opened(filled))
    filled.put("prices", "prices", table)
    page = opened(filled)
    assert "the workspace's table has other prices: plan the day again" in said(page)
    press(page, "Plan the day")
    assert [(entry.cost, entry.cost_date) for entry in filled.get("plan_request", "review").gpus] == [
        (1.5, "2026-01-02")
    ]
    priced = filled.get("plan_request", "review")
    assert not named_results.plan_is_current(priced, filled.get("plan", "review"))
    outcome = day_job(filled, RequestParameters("review"), ignore_progress) and filled.get("day", "review")
    shown = opened(filled)
    assert metrics(shown)["Cost a day, EUR"] == costs.pair(outcome.cost_per_day)
    assert "1.5 EUR an hour, price of 2026-01-02 from the workspace's table" in said(shown)
    filled.put("plan_request", "review", asked)
    day_job(filled, RequestParameters("review"), ignore_progress)
    press(opened(filled), "Plan the day")
    assert filled.get("plan_request", "review").gpus == asked.gpus and "Prices:" not in said(opened(filled))


def test_a_fair_plan_stays_with_its_cost_when_prices_are_filled_in(filled, started):
    asked = request()
    filled.put("plan", "review", replace(workflow.plan(asked), cost_per_hour=None))
    filled.put("prices", "prices", PriceTable("EUR", (GpuPrice("A100-80GB", 1.5, "2026-01-02"),)))
    press(opened(filled), "Plan the day")
    stored, kept_plan = filled.get("plan_request", "review"), filled.get("plan", "review")
    assert stored.gpus[0].cost == 1.5 and named_results.plan_is_current(stored, kept_plan)
    assert kept_plan.cost_per_hour == 1.5 * sum(gpu.used for gpu in kept_plan.gpus)


def test_the_energy_of_the_day_is_shown_as_an_estimate_and_warnings_with_it(planned):
    outcome = planned.get("day", "review")
    energy = outcome.energy_kwh_per_day
    sides = [f"{short(side.low)}–{short(side.high)}" for side in (energy.windows, energy.static)]
    assert metrics(opened(planned))["Energy a day, kWh"] == sides[0]
    assert costs.energy_card(outcome)[2] == f"estimated, by window; {sides[1]} with one plan all day"
    assert "Energy is estimated: from limit × utilisation" in said(opened(planned))
    planned.put("day", "review", replace(outcome, energy_kwh_per_day=None, warnings=("bert: not used.",)))
    page = opened(planned)
    assert metrics(page)["Energy a day, kWh"] == "n/a" and "bert: not used." in said(page)
    unknown = replace(outcome.static, gpus=tuple(replace(gpu, type="CPU-4c") for gpu in outcome.static.gpus))
    card = costs.energy_card(replace(outcome, energy_kwh_per_day=None, static=unknown))
    assert card[1:] == ("n/a", "no limit of CPU-4c is known")


def test_the_chart_of_held_samples_has_both_halves():
    for dark in (False, True):
        planned_for, held_out = shares_held([(1, 0.9, 0.8), (2, 1.0, 0.95)], dark=dark).data
        assert list(planned_for.x) == list(held_out.x) == [1, 2]
        assert list(planned_for.y) == [90.0, 100.0] and list(held_out.y) == [80.0, 95.0]


def test_prices_are_used_in_a_scenario_without_planning_a_day(filled, started):
    asked = request()
    filled.put("plan", "review", workflow.plan(asked))
    assert "Use in this scenario" not in [button.label for button in opened(filled).button]
    filled.put("prices", "prices", PriceTable("EUR", (GpuPrice("A100-80GB", 1.5, "2026-01-02"),)))
    press(opened(filled), "Use in this scenario")
    stored, planned_before = filled.get("plan_request", "review"), filled.get("plan", "review")
    assert [(entry.cost, entry.cost_date) for entry in stored.gpus] == [(1.5, "2026-01-02")] and started == []
    assert named_results.plan_is_current(stored, planned_before) and planned_before.cost_per_hour > 0
    assert "Use in this scenario" not in [button.label for button in opened(filled).button]

"""The sweep of a scenario on its page: what is asked, the curve, the points, a point opened as a scenario."""

from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.charts.sweep import PlanDot, SweepMark, curve, pareto_front
from app.format.badges import Badge
from app.plans.sweep import chosen_point, controls, formatting, response_times, tab
from app.session import scenario
from tests.support.app import plan_page
from tests.support.app.page import field, press, said, turn_to
from tests.support.app.values import plan, request
from tests.support.planning.edits import with_model
from torchsplit_core import jobs
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.job_kinds import SWEEP, SweepParameters
from torchsplit_core.latency_slo.expected_response import expected_responses
from torchsplit_core.latency_slo.worst_response import WorstResponse, worst_response
from torchsplit_core.planning.outcome.build import no_plan
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.sweep.points import SweepRequest, request_at, sweep_points, sweep_requests
from torchsplit_core.values import (
    InputFault,
    Objective,
    PlannedModel,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
)
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.sweeps import SweepStore

A100 = "A100-80GB"
WHAT = SweepRequest("gpus", A100, (1.0, 2.0, 3.0, 4.0))
SCRIPT = """
from app.plans.sweep import tab
from app.shell import frame
with frame.fault_boundary():
    workspace = frame.open_page("Plan")
    tab.render(workspace, "review", workspace.get("plan_request", "review"))
"""


def outcome(
    value: float, least: float, *, proven: bool = True, used: int = 1, bound: float | None = None
) -> PlanOutcome:
    """A plan of so many GPUs whose worse-served model gets `least`."""
    made = plan()
    goal = replace(
        made.objective, value=least, bound=bound if bound is not None else least,
        proven_levels=2 if proven else 0,
    )  # fmt: skip
    models = (
        PlannedModel("bert", "whole", 200 * 2 * least, 2 * least, 40.0),
        PlannedModel("ocr", "whole", 200 * least, least, 40.0),
    )
    gpus = tuple(replace(made.gpus[0], id=f"gpu{number}") for number in range(used))
    return replace(made, status="optimal" if proven else "feasible", objective=goal, models=models, gpus=gpus)


def outcomes() -> dict[float, PlanOutcome]:
    """Impossible, proven, not proven, proven."""
    return {
        1.0: no_plan(request(), "infeasible", PlanStatistics(0.1, 0.1, 0.0, "highs")),
        2.0: outcome(2.0, 0.75, used=2),
        3.0: outcome(3.0, 1.25, proven=False, used=3, bound=2.5),
        4.0: outcome(4.0, 2.0, used=4),
    }


def keep(
    workspace: Workspace, what: SweepRequest, plans: dict[float, PlanOutcome], asked: PlanRequest
) -> None:
    store = SweepStore(workspace, "review")
    keys = {value: request_hash(one) for value, one in sweep_requests(asked, what)}
    store.begin(what, asked, keys)
    for value, found in plans.items():
        store.save_plan(replace(found, request_sha256=keys[value]), 10.0)


@pytest.fixture
def swept(filled) -> Workspace:
    keep(filled, WHAT, outcomes(), request())
    return filled


def opened(workspace: Workspace) -> AppTest:
    test = AppTest.from_string(SCRIPT, default_timeout=120)
    test.query_params["workspace"] = workspace.id
    test.run()
    assert not test.exception
    return test


def number(page: AppTest, label: str) -> Any:
    return field(page, "number_input", label)


def table(page: AppTest) -> Any:
    return next(element.value for element in page.dataframe if "on the front" in element.value)


def test_before_a_sweep_the_page_says_what_it_shows_and_senseless_ranges_start_nothing(filled, started):
    page = opened(filled)
    assert "what plans reach as one number varies" in said(page) and not page.dataframe
    assert "The scenario has 1." in said(page)
    number(page, "From").set_value(5)
    number(page, "To").set_value(2)
    press(page.run(), "Run the sweep")
    assert "begins at 5, above its end 2" in said(page)
    page.selectbox[0].set_value("weight").run()
    number(page, "From").set_value(0.0)
    press(page.run(), "Run the sweep")
    assert "weight" in said(page) and "above 0" in said(page) and started == []


def test_it_stands_in_a_tab_of_the_plan_page(page, swept, started):
    shown = page("plan", swept)
    assert not any(button.label == "Run the sweep" for button in shown.button)
    plan_page.tab(shown, "Sweep")
    assert list(table(shown)["GPUs"]) == [1, 2, 3, 4]
    press(shown, "Run the sweep")
    assert len(started) == 1


def test_run_asks_what_the_controls_say(filled, started):
    page = press(opened(filled), "Run the sweep")
    values = tuple(float(number) for number in range(1, 9))
    assert started == [(SWEEP, SweepParameters("review", "gpus", A100, values, 60.0))]
    page.selectbox[0].set_value("demand").run()
    page.selectbox[1].set_value("ocr").run()
    assert number(page, "From").value == 50 and number(page, "To").value == 800
    number(page, "From").set_value(100.0)
    number(page, "To").set_value(300.0)
    number(page, "Points").set_value(3)
    number(page, "Search").set_value(20.0)
    press(page.run(), "Run the sweep")
    asked = SweepParameters("review", "demand", "ocr", (100.0, 200.0, 300.0), 20.0)
    assert started[1] == (SWEEP, asked)


def test_the_points_are_in_the_table_with_what_is_proven(swept):
    page = opened(swept)
    shown = table(page)
    assert list(shown["GPUs"]) == [1, 2, 3, 4]
    assert list(shown["proven"]) == ["impossible", "proven", "gap 37.5\u202f%", "proven"]
    # Four GPUs are proven to give at most 2: so do three.
    assert list(shown["none above, ×"][1:]) == [0.75, 2.0, 2.0]
    assert list(shown["on the front"]) == ["no", "yes", "yes", "yes"]
    text = said(page)
    assert "Every model gets its demand from 3 × A100" in text.replace("\\", "")
    assert "At 2 × A100-80GB that is proven impossible." in text.replace("\\", "")
    assert "worst served proven best at 2 of 3" in text and "1 of 2 profiles estimated" in text
    assert list(shown["of"].notna()) == [False, True, True, True]
    stored = SweepStore(swept, "review").load()
    assert stored is not None
    looked = {
        point.value: worst
        for point in stored.points
        if (worst := worst_response(point.outcome, request_at(stored.request, WHAT, point.value)))
    }
    assert set(looked) == {2.0, 3.0, 4.0}
    told = [looked[value].p95_ms for value in (2.0, 3.0, 4.0)]
    assert list(shown["p95 response, ms"][1:]) == told and all(told)
    view = next(radio for radio in page.radio if formatting.RESPONSE in radio.options)
    view.set_value(formatting.RESPONSE).run()
    assert not page.exception and "3 runs of 20,000 requests" in said(page)
    # Of a limit of 80 ms.
    marks = tab.marks(stored, stored.points, formatting.RESPONSE, None, looked)
    assert [mark.y for mark in marks] == [None, *(looked[value].share for value in (2.0, 3.0, 4.0))]
    assert formatting.response_axis(looked) == ("p95 response of the worst model, × its limit", True)


def test_without_limits_the_slowest_is_told_in_ms_and_what_is_not_stable_not_at_all():
    looked = {1.0: WorstResponse("ocr", 12.5, None), 2.0: WorstResponse("ocr", None, None)}
    assert formatting.response_axis(looked) == ("p95 response of the worst model, ms", False)
    assert [formatting.response_figure(looked, value) for value in (1.0, 2.0, 3.0)] == [12.5, None, None]
    free = tuple(replace(model, max_latency_ms=None, demand_rps=1e6) for model in request().models)
    busy = worst_response(plan(), replace(request(), models=free))
    assert busy is not None and busy.p95_ms is None and busy.share is None
    nothing = no_plan(request(), "infeasible", PlanStatistics(0.1, 0.1, 0.0, "highs"))
    assert worst_response(nothing, request()) is None


def test_a_limited_model_has_the_response_time_that_the_verdict_has():
    worst = worst_response(plan(), request())
    expected = expected_responses(request(), plan())
    assert worst is not None and not isinstance(expected, str)
    (same,) = [item for item in expected if item.model == worst.model]
    assert (worst.p95_ms, worst.limit_ms) == (same.response_ms, same.limit_ms)


def test_a_page_looks_at_a_few_plans_at_a_time(swept, monkeypatch):
    monkeypatch.setattr(response_times, "BUDGET_S", 0.0)
    page = opened(swept)
    assert not table(page)["of"].notna().any()
    monkeypatch.setattr(response_times, "BUDGET_S", 60.0)
    page.run()
    assert table(page)["of"].notna().sum() == 3


def test_a_dot_or_row_shows_its_plan_and_opens_it_as_a_scenario(swept, select):
    page = opened(swept)
    for chart in ("sweep-curve", "sweep-front"):
        assert select(chart, points=[{"customdata": [3, "text"]}])["sweep point of review"] == 4.0
    assert select("sweep-table", rows=[2])["sweep point of review"] == 3.0
    turn_to(page, "sweep point of review", 3.0)
    assert "The plan at 3 × A100-80GB" in [header.value for header in page.header]
    assert "the bound of 4 holds here" in said(page).replace("\\", "")
    press(page, "Open as scenario")
    name = f"review · 3 × {A100}"
    asked = swept.get("plan_request", name)
    assert asked.gpus[0].count == 3 and asked.models == request().models
    assert swept.setting("scenario") == name and named_results.plan_is_current(asked, swept.get("plan", name))
    # The same point again is the same scenario; another request under its name stays.
    stored = SweepStore(swept, "review").load()
    assert stored is not None
    assert chosen_point.open_point(swept, "review", stored, stored.points[2]) == name
    swept.put("plan_request", name, request())
    assert chosen_point.open_point(swept, "review", stored, stored.points[2]) == f"{name} 2"


def test_an_impossible_point_says_why_and_can_be_opened(swept):
    page = opened(swept)
    turn_to(page, "sweep point of review", 1.0)
    assert "Impossible, proven" in said(page).replace("\\", "")
    press(page, "Open as scenario")
    assert swept.get("plan", f"review · 1 × {A100}").status == "infeasible"


def test_a_removed_scenario_takes_its_sweep_along(swept):
    scenario.remove(swept, "review")
    assert SweepStore(swept, "review").load() is None


def test_half_a_sweep_and_an_earlier_request_are_told(filled):
    keep(filled, WHAT, {2.0: outcome(2.0, 0.75)}, request())
    assert "1 of 4 points: run again to go on" in said(opened(filled))
    changed = with_model(request(), 0, demand_rps=10.0)
    filled.put("plan_request", "review", changed)
    assert "of an earlier state of this scenario" in said(opened(filled))


def test_other_objectives_show_their_value_and_bound_apart(filled):
    asked = replace(request(), objective=Objective("weighted_sum"))
    filled.put("plan_request", "review", asked)
    keep(filled, WHAT, {2.0: outcome(2.0, 0.75, bound=9.0, proven=False)}, asked)
    shown = table(opened(filled))
    assert list(shown["objective"]) == [0.75] and list(shown["its bound"]) == [9.0]
    assert "none above, ×" not in shown
    (point,) = sweep_points(asked, WHAT, {2.0: outcome(2.0, 0.75, bound=9.0, proven=False)})
    assert formatting.figure(asked, point, "Worst-served model") == (0.75, None)
    assert formatting.figure(asked, point, "Objective") == (0.75, 9.0)
    assert formatting.figure(asked, point, "GPUs used") == (1.0, None)


def test_the_answer_is_a_sentence():
    points = sweep_points(request(), WHAT, outcomes())
    assert formatting.headline(request(), WHAT, points[:1]) == "No plan is possible at any of these values."
    assert "up to 0.75 × (2 × A100" in formatting.headline(request(), WHAT, points[:2])
    late = no_plan(request(), "timeout", PlanStatistics(0.1, 0.1, 0.0, "highs"))
    nothing = sweep_points(request(), WHAT, {1.0: late})
    assert "in the time given" in formatting.headline(request(), WHAT, nothing)
    unsure = sweep_points(
        request(), WHAT, {2.0: outcome(2.0, 0.75, proven=False, bound=1.5), 3.0: outcome(3.0, 1.25)}
    )
    assert "not found, nor ruled out" in formatting.headline(request(), WHAT, unsure)
    weight = SweepRequest("weight", "ocr", (1.0, 2.0))
    two = sweep_points(request(), weight, {1.0: outcome(1.0, 1.5), 2.0: outcome(2.0, 0.5)})
    told = formatting.headline(request(), weight, two)
    assert told.startswith("The worst-served model gets from 0.5 (ocr's weight 2) to 1.5")
    demand = SweepRequest("demand", "ocr", (10.0, 20.0))
    falling = sweep_points(request(), demand, {10.0: outcome(1.0, 1.5), 20.0: outcome(2.0, 0.5)})
    told = formatting.headline(request(), demand, falling).replace("\u202f", " ")
    assert told == (
        "Every model gets its demand up to ocr's demand 10 req/s. At ocr's demand 20 req/s that is proven impossible."
    )


def test_badges_say_what_is_proven_and_measured():
    points = sweep_points(request(), WHAT, {2.0: outcome(2.0, 0.75), 4.0: outcome(4.0, 2.0)})
    assert formatting.proof_badge(request(), points) == Badge("all plans proven optimal", "gray")
    later = sweep_points(request(), WHAT, {2.0: replace(outcome(2.0, 0.75), status="feasible")})
    assert formatting.proof_badge(request(), later) == Badge("worst served proven best at 1 of 1", "gray")
    weighted = replace(request(), objective=Objective("weighted_sum"))
    open_ = sweep_points(weighted, WHAT, {2.0: outcome(2.0, 0.75, proven=False, bound=3.0)})
    assert formatting.proof_badge(weighted, open_) == Badge("first level proven at 0 of 1", "yellow")
    measured = replace(request(), models=request().models[:1])
    assert formatting.basis_badge(measured) == Badge("the profile is measured", "green")


def test_a_running_sweep_of_the_scenario_ends_before_the_next(filled, started, monkeypatch):
    status = jobs.JobStatus("j", "Sweep", SWEEP, "running", 0.5, "", None, None, 1.0)
    ended = []
    monkeypatch.setattr(
        runner,
        "running",
        lambda w, names, request: (status,) if (names, request) == ((SWEEP,), "review") else (),
    )
    monkeypatch.setattr(runner, "cancel", lambda workspace, job: ended.append(job))
    controls.start_sweep(filled, "review", request(), WHAT, 5.0)
    assert ended == ["j"] and len(started) == 1
    with pytest.raises(InputFault):
        controls.start_sweep(filled, "review", request(), SweepRequest("gpus", A100, (0.0,)), 5.0)
    assert ended == ["j"] and len(started) == 1


def test_the_curve_tells_proven_from_open_and_impossible():
    found = [
        SweepMark(0, 1.0, None, None, "infeasible", "<b>a</b> at least 5"),
        SweepMark(1, 2.0, 0.5, 0.5, "proven"),
        SweepMark(2, 3.0, 1.0, 1.5, "open", chosen=True),
        SweepMark(3, 4.0, None, None, "timeout"),
    ]
    figure = curve(found, "number of GPUs", "worst served", 1.0, dark=False)
    traces = {trace.name: trace for trace in figure.data if trace.mode == "markers"}
    assert len(traces) == 4
    open_ = traces["not proven: line to the bound"]
    assert open_.marker.symbol == "circle-open" and list(open_.error_y.array) == [0.5]
    assert [row[0] for row in open_.customdata] == [2] and list(open_.marker.size) == [16]
    cross = traces["impossible, proven"]
    assert list(cross.y) == [0] and "&lt;b&gt;a" in cross.customdata[0][1]
    line = next(trace for trace in figure.data if trace.mode == "lines")
    assert list(line.x) == [2, 3] and figure.layout.shapes[0].y0 == 1.0
    assert curve([], "", "", None, dark=True).layout.xaxis.range is not None
    low = curve([SweepMark(0, 1.0, 4.0, 3.0, "open")], "", "", None, dark=True).data[0]
    assert list(low.error_y.arrayminus) == [1.0] and list(low.error_y.array) == [0.0]


def test_the_front_is_joined_and_what_is_beaten_is_faint():
    found = [
        PlanDot(0, 1, 0.5, "one", False),
        PlanDot(1, 2, 0.4, "two", True),
        PlanDot(2, 3, 2.0, "three", False, True),
    ]
    figure = pareto_front(found, dark=True)
    line = next(trace for trace in figure.data if trace.mode == "lines")
    assert list(line.x) == [1, 3] and line.line.shape == "hv"
    faint = next(trace for trace in figure.data if trace.name == "beaten")
    assert [row[0] for row in faint.customdata] == [1] and faint.marker.opacity[0] < 1

"""The tab Under load: what it says of a plan, of one that can't serve what comes, and where there is no plan yet."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app.plans.load import controls, results, runs, tab
from app.plans.load.settings import (
    LOADS,
    Bursts,
    LoadSettings,
    Trace,
    arrivals,
    build_simulation,
    kinds_of,
    with_same_arrivals,
)
from tests.support.app import plan_page
from tests.support.app.page import field, open_page, press_key, put_plan, said
from tests.support.app.values import plan, point, request
from tests.support.planning.edits import with_model
from torchsplit_core import workflow
from torchsplit_core.pictures.slice_map import fleet_svg
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import (
    DeterministicArrivals,
    FleetEntry,
    GammaArrivals,
    InputFault,
    MmppArrivals,
    PlanRequest,
    PoissonArrivals,
    TraceArrivals,
)


@pytest.fixture(autouse=True)
def _slider(monkeypatch) -> None:
    """The library's own slider in place of the browser's, so that a test can move it."""

    def slider(label, texts, place, *, key, on_move):
        st.select_slider(
            label, range(len(texts)), place, format_func=texts.__getitem__, key=key,
            on_change=lambda: on_move(st.session_state[key]),
        )  # fmt: skip

    monkeypatch.setattr(controls, "live_slider", slider)
    monkeypatch.setattr(runs, "QUICK_REQUESTS", 1200)
    monkeypatch.setattr(runs, "FULL_REQUESTS", 1500)
    monkeypatch.setattr(runs, "FIND_REQUESTS", 1200)


@pytest.fixture
def loaded(filled) -> Callable[[], AppTest]:
    return lambda: plan_page.tab(open_page("plan", filled), "Under load")


def table(page: AppTest) -> str:
    return next(str(one.proto.body) for one in page.get("html") if "mean wait, ms" in one.proto.body)


def move(page: AppTest, load: float) -> AppTest:
    page.select_slider(key="load-slider review").set_value(LOADS.index(load)).run()
    assert not page.exception
    return page


def test_response_times_stand_against_the_limits_also_one_typed_on_the_tab(loaded):
    page = loaded()
    assert "All models keep their limits at p95" in said(page)
    assert "Simulated; nothing here was measured under load." in said(page)
    assert "estimated for 1 of 2 models, measured for the others" in said(page)
    shown = table(page)
    assert shown.count("±") == 6 and "200" in shown and "n/a" not in shown
    assert page.query_params["tab"] == "under-load"
    limit = field(page, "number_input", "bert,")
    assert limit.value == 80
    limit.set_value(1.0).run()
    assert "1 of 2 models exceeds its limit at p95; furthest bert" in said(page)


def test_more_than_can_be_served_has_no_times_and_says_why(loaded):
    page = move(loaded(), 1.8)
    assert "Not stable: ocr. 360 req/s arrive and at most 300 req/s can be served" in said(page)
    assert "n/a for ocr: more arrives than can be served" in said(page)
    assert "n/a" in table(page)


def test_a_load_moved_while_the_page_draws_is_simulated_in_full_too(loaded, monkeypatch):
    # The page draws in runs of its own here; the browser's runs of the fragment alone are what makes full runs.
    with_full_runs, look = runs.load_runs, []
    monkeypatch.setattr(runs, "load_runs", lambda asked: look.append(asked) or with_full_runs(asked))
    page = loaded()
    page.session_state["full runs"] = {runs.run_key(runs.full(look[-1]), number) for number in range(2)}
    page.run()
    intervals, fragment = [], st.fragment

    def watched(run=None, *, run_every=None, **others):
        if run is tab._tab:
            intervals.append(run_every)
        return fragment(run, run_every=run_every, **others)

    monkeypatch.setattr(st, "fragment", watched)
    page.run()
    assert intervals == [None]
    move(page, 1.8)
    assert intervals[-1] == tab.REST_S


def test_the_highest_load_is_found_when_asked(loaded, monkeypatch):
    monkeypatch.setattr(tab, "FIND_S", 60.0)
    page = loaded()
    assert "The plan takes" not in said(page)
    press_key(page, "load-find")
    asked = runs.max_load_request(
        build_simulation(plan(), request(), LoadSettings(limits_ms={"bert": 80, "ocr": 80})), 95
    )
    known = workflow.simulate(asked).highest_load
    assert known is not None
    found = results.describe_max_load(known, 2)
    assert found in said(page) and "The plan takes 1." in found
    # Where the slider stands it is the same question.
    assert "The plan takes" in said(move(page, 0.5))


def test_a_search_for_the_highest_load_goes_on_with_every_run_and_can_be_cancelled(loaded, monkeypatch):
    monkeypatch.setattr(tab, "FIND_S", 0.0)
    page = loaded()
    page.button(key="load-find").click().run()
    texts = []
    for _ in range(3):
        assert not page.exception and "The plan takes" not in said(page)
        (bar,) = page.get("progress")
        texts.append((bar.proto.value, bar.proto.text))
        page.run()
    assert texts[0] < texts[-1] and "times the rates" in texts[0][1]
    press_key(page, "load-find-cancel")
    assert not page.get("progress")
    assert page.button(key="load-find") is not None
    # Asked again it begins anew.
    page.button(key="load-find").click().run()
    assert page.get("progress")[0].proto.text == texts[0][1]


def test_arrivals_of_the_request_come_first_where_it_has_any(loaded, filled):
    assert "As the request says" not in loaded().selectbox(key="load-kind review").options
    second = request().models[1]
    bursty = with_model(request(), 0, arrivals=GammaArrivals(20.0, 3.0))
    assert arrivals(LoadSettings("planned"), bursty.models[0]) == GammaArrivals(20.0, 3.0)
    assert arrivals(LoadSettings("planned"), second) == PoissonArrivals(second.demand_rps)
    assert kinds_of(bursty)[0] == "planned" and "planned" not in kinds_of(request())


def test_another_scenario_stands_beside_under_the_same_arrivals(loaded, filled):
    assert "Duplicate this one" in said(loaded())
    put_plan(filled, request(), plan(), "copy")
    filled.set_setting("scenario", "review")
    page = loaded()
    page.selectbox(key="load-beside review").set_value("copy").run()
    assert not page.exception
    both = next(element.proto.body for element in page.get("html") if 'colspan="2"' in element.proto.body)
    rows = [row for row in both.split("<tr>") if 'class="name"' in row]
    assert len(rows) == 2
    for row in rows:
        cells = [cell.split("</td>")[0] for cell in row.split('<td class="n">')[2:]]
        # The same plan under the same requests answers the same.
        assert cells[0] == cells[1] and cells[2] == cells[3] and cells[4] == cells[5]


@pytest.mark.parametrize(("kind", "words"), [
    ("plan", "It needs a plan: press Plan first."), ("plan_request", "drop the request file"),
])  # fmt: skip
def test_what_is_missing_is_said_with_what_comes_next(loaded, filled, kind, words):
    filled.remove(kind, "review")
    assert words in said(loaded())


def test_arrivals_are_at_the_demand():
    model = request().models[0]
    assert arrivals(LoadSettings(), model) == PoissonArrivals(200.0)
    assert arrivals(LoadSettings("deterministic"), model) == DeterministicArrivals(200.0)
    assert arrivals(LoadSettings("gamma", cv=3.0), model) == GammaArrivals(200.0, 3.0)
    bursts = arrivals(LoadSettings("bursts", bursts=Bursts(3.0, 2.0, 8.0)), model)
    assert isinstance(bursts, MmppArrivals)
    assert [(state.rate_rps, state.mean_s) for state in bursts.states] == [(100.0, 8.0), (600.0, 2.0)]


def test_bursts_that_leave_nothing_between_them_are_refused():
    with pytest.raises(InputFault, match="below 5 times"):
        arrivals(LoadSettings("bursts", bursts=Bursts(5.0, 2.0, 8.0)), request().models[0])


def test_a_trace_is_of_each_model_or_of_all():
    bert, ocr = request().models
    own = LoadSettings("trace", trace=Trace("t.csv", {"bert": (0.0, 1.0)}))
    assert arrivals(own, bert) == TraceArrivals((0.0, 1.0))
    with pytest.raises(InputFault, match="ocr"):
        arrivals(own, ocr)
    assert arrivals(LoadSettings("trace", trace=Trace("t.csv", {None: (0.0, 2.0)})), ocr) == TraceArrivals(
        (0.0, 2.0)
    )


def test_a_quick_run_gives_way_to_a_full_one(monkeypatch):
    kept = {}
    monkeypatch.setattr(st, "session_state", kept)
    asked = build_simulation(plan(), request(), LoadSettings())
    first = runs.load_runs(asked)
    assert first.full == 0 and not first.complete
    assert runs.run_next(asked) and runs.load_runs(asked).full == 1
    assert runs.run_next(asked) and not runs.run_next(asked)
    done = runs.load_runs(asked)
    assert done.complete
    # Model by model with the draws of the whole.
    whole = workflow.simulate(runs.full(asked))
    assert tuple(model.load for model in done.models) == whole.models
    assert tuple(server for model in done.models for server in model.servers) == tuple(
        sorted(whole.servers, key=lambda server: [server.id for server in asked.servers].index(server.id))
    )
    # The drawn distribution goes through the percentiles of all requests.
    drawn = done.models[0]
    near = min(range(len(drawn.percents)), key=lambda at: abs(drawn.percents[at] - 95))
    assert drawn.times_ms[near] == pytest.approx(drawn.load.response_ms.p95, rel=0.15)
    assert list(drawn.times_ms) == sorted(drawn.times_ms)


def test_two_plans_get_the_same_requests():
    simulation = build_simulation(plan(), request(), LoadSettings(load=0.5, limits_ms={"bert": 70.0}))
    asked = request()
    turned = PlanRequest((FleetEntry("A100-80GB"),), asked.models[::-1])
    answered = replace(plan(), request_sha256=request_hash(turned))
    one, other = with_same_arrivals(simulation, build_simulation(answered, turned, LoadSettings()))
    assert [model.name for model in other.models] == ["bert", "ocr"]
    assert [model.arrivals for model in one.models] == [model.arrivals for model in other.models]
    assert [model.slo_ms for model in other.models] == [70.0, None]
    alone = replace(other, models=other.models[:1])
    assert with_same_arrivals(simulation, alone)[0].models == simulation.models[:1]


def test_the_map_has_how_busy_each_slice_is(monkeypatch):
    monkeypatch.setattr(st, "session_state", {})
    simulated = build_simulation(plan(), request(), LoadSettings())
    found = results.tenant_utilisation(plan(), runs.load_runs(simulated))
    assert set(found) == {("gpu0", 0, "bert", "whole"), ("gpu0", 4, "ocr", "whole")}
    assert 0.5 < found["gpu0", 4, "ocr", "whole"] < 1
    drawn = fleet_svg(plan(), {}, request=request(), busy=found)
    assert drawn.count("at work, simulated,") == 2
    assert "share of its time at work, simulated" in drawn and "planned demand" not in drawn


def test_point_of_the_plan_that_the_request_has_not_is_told(loaded, filled):
    asked = request()
    bare = replace(asked.models[1].variants[0].stages[0], points=(point("4g.40gb", 400.0),))
    models = (
        asked.models[0],
        replace(asked.models[1], variants=(replace(asked.models[1].variants[0], stages=(bare,)),)),
    )
    filled.put("plan_request", "review", replace(asked, models=models))
    assert "the request has no throughput for that" in " ".join(
        error.value for error in loaded().error
    ).replace("\\", "")

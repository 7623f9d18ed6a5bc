"""One draft a scenario: whatever edits it, the bar says what it changes and brings, and it survives a reload."""

from __future__ import annotations

import html
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from app.components import browser_tab
from app.components.field_rows import Edit
from app.plans.draft import change_summary, quick_plan
from app.plans.inputs import objective
from app.plans.what_if import proof
from tests.support.app import plan_page
from tests.support.app.page import field, open_page, press, put_plan, said
from tests.support.app.values import request
from tests.support.planning.edits import with_model
from torchsplit_core import workflow
from torchsplit_core.jobs.job_kinds import PLAN, RequestParameters
from torchsplit_core.planning.infeasibility.notes import SMALLER
from torchsplit_core.planning.request.difference import difference
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import FleetEntry, GammaArrivals, PlanRequest
from torchsplit_core.workspace.drafts import DraftStore, StoredDraft
from torchsplit_core.workspace.versions import VersionStore

pytestmark = pytest.mark.usefixtures("native_sliders")
TWO = replace(request(), gpus=(FleetEntry("A100-80GB", count=2),))


def told(page: AppTest) -> str:
    return html.unescape(said(page))


def gpus(page: AppTest, count: int) -> AppTest:
    field(page, "select_slider", "GPUs").set_value(count).run()
    assert not page.exception
    return page


def test_a_field_and_a_slider_write_into_one_draft(page, solved, rows):
    opened = rows.edit(page("plan", solved), "Models", "bert", "demand_rps", "57.5")
    assert "demand of bert 200 → 57.5" in told(opened)
    assert rows.drawn["Models"]["bert"].before == {"demand_rps": "200"}
    gpus(opened, 2)
    assert "A100-80GB 1 → 2 · demand of bert 200 → 57.5" in told(opened)
    assert rows.drawn["Fleet"]["0"].before == {"count": "1"}
    assert "GPUs used 1 → 2" in told(opened) and "requests/s" in told(opened)
    assert opened.metric[0].delta.startswith("+")
    assert solved.get("plan_request", "review") == request()


def reloaded(opened: AppTest) -> AppTest:
    """The same tab in a new session, with what the browser keeps of it."""
    kept = {browser_tab._KEY: opened.session_state[browser_tab._KEY]}
    return open_page("plan", session=kept, **opened.query_params)


def test_a_draft_survives_a_reload_and_is_its_tab_s_alone(page, solved):
    first = gpus(page("plan", solved), 2)
    (kept,) = DraftStore(solved, "review").all()
    assert replace(kept, edited=0.0) == StoredDraft(request_hash(request()), TWO)
    again = reloaded(first)
    assert "A100-80GB 1 → 2" in told(again) and "draft, not kept" in told(again)
    # Somebody else sees what is kept, and an edit of theirs is not added to the first one's.
    other = page("plan", solved)
    assert "draft, not kept" not in told(other)
    gpus(other, 3)
    assert "A100-80GB 1 → 3" in told(other) and "A100-80GB 1 → 2" in told(reloaded(first))
    press(again, "Discard")
    assert [one.request.gpus[0].count for one in DraftStore(solved, "review").all()] == [3]
    assert "draft, not kept" not in told(reloaded(first))


def test_a_draft_of_another_tab_is_told_in_the_history_and_taken_over_as_a_copy(page, solved):
    first = gpus(page("plan", solved), 2)
    other = plan_page.tab(page("plan", solved), "History")
    assert "Another tab has a draft: A100-80GB 1 → 2" in told(other)
    assert "Another tab has a draft, edited 1 minute ago." in told(other)
    press(other, "Open a copy here")
    assert "draft, not kept" in told(other) and "Another tab has a draft" not in told(other)
    gpus(other, 3)
    assert "A100-80GB 1 → 3" in told(other) and "A100-80GB 1 → 2" in told(reloaded(first))


def test_keep_stores_the_plan_on_screen_and_searches_on_only_what_is_open(page, solved, started, monkeypatch):
    press(gpus(page("plan", solved), 2), "Keep and prove")
    kept = solved.get("plan", "review")
    assert kept.status == "optimal" and kept.request_sha256 == request_hash(TWO)
    assert not [name for name, _ in started if name == PLAN]
    newest = VersionStore(solved, "review").list()[0]
    assert (newest.status, newest.changes) == ("optimal", ("A100-80GB 1 → 2",))

    open_plan = replace(workflow.plan(request()), status="feasible")
    monkeypatch.setattr(quick_plan, "plan_with_starts", lambda asked, *_: open_plan)
    press(gpus(page("plan", solved), 1), "Keep and prove")
    assert solved.get("plan", "review") == open_plan
    assert VersionStore(solved, "review").list()[0].status == "feasible"
    assert [one for one in started if one[0] == PLAN] == [(PLAN, RequestParameters("review"))]


def test_changes_that_are_not_proven_the_smallest_are_not_called_that(page, workspace, monkeypatch):
    asked = with_model(request(), 0, min_throughput_rps=1000.0)
    found = workflow.plan(asked)
    put_plan(workspace, asked, replace(found, warnings=(SMALLER,)))
    shown = told(page("plan", workspace))
    assert "What makes it possible:" in shown and "A smaller change may exist." in shown
    assert "smallest" not in shown and "cheapest" not in shown
    # A draft is searched on without being kept, and what that proves takes its place.
    monkeypatch.setattr(quick_plan, "plan_with_starts", lambda asked, *_: replace(found, warnings=(SMALLER,)))
    opened = gpus(page("plan", workspace), 2)
    assert "A smaller change may exist, still searching." in told(opened)
    assert "The proof starts once you stop editing." in told(opened)
    drafted = next(one for one in DraftStore(workspace, "review").all()).request
    monkeypatch.setattr(
        proof, "poll", lambda w, name, tried: replace(found, request_sha256=request_hash(drafted))
    )
    monkeypatch.setattr(proof, "is_running", lambda w, name, tried: False)
    opened.run()
    assert "The cheapest change of figures comes first:" in told(opened.run())


def test_a_draft_that_is_kept_elsewhere_is_none_here(page, solved):
    opened = gpus(page("plan", solved), 2)
    solved.put("plan_request", "review", TWO)
    assert "draft, not kept" not in told(opened.run())


def test_saved_as_a_new_scenario_the_old_one_stands(page, solved, started):
    opened = press(gpus(page("plan", solved), 2), "Save as new scenario")
    new = "review · A100-80GB 1 → 2"
    assert solved.get("plan_request", new) == TWO and solved.get("plan_request", "review") == request()
    assert solved.get("plan", new).request_sha256 == request_hash(TWO)
    assert not [name for name, _ in started if name == PLAN]  # it is proven
    assert opened.query_params["scenario"] == new
    assert DraftStore(solved, "review").all() == ()


def test_a_survivors_objective_outlives_an_edit_of_the_form():
    asked: PlanRequest = replace(request(), objective=replace(request().objective, survives=1))
    assert objective.apply_edit(asked, Edit("objective", "plan_at", "low")).objective.survives == 1


def test_limits_of_responses_are_edited_and_told(page, solved, rows, started):
    opened = page("plan", solved)
    for column, value in (
        ("max_response_ms", "200"),
        ("response_percentile", "99"),
        ("arrivals", "gamma:2"),
    ):
        rows.edit(opened, "Models", "bert", column, value)
    shown = told(opened)
    for text in (
        "response limit of bert none → 200 ms",
        "response percentile of bert 95 → 99",
        "arrivals of bert poisson → gamma:2",
    ):
        assert text in shown
    press(opened, "Keep and prove")
    kept = solved.get("plan_request", "review").models[0]
    assert (kept.max_response_ms, kept.response_percentile) == (200.0, 99.0)
    assert kept.arrivals == GammaArrivals(kept.demand_rps, 2.0)
    assert (PLAN, RequestParameters("review")) in started


def test_many_changes_are_counted():
    many = replace(
        request(),
        gpus=(FleetEntry("A100-80GB", count=4),),
        models=tuple(
            replace(model, demand_rps=1.5, weight=2.0, max_latency_ms=None, cap_at_demand=True)
            for model in request().models
        ),
    )
    changes = difference(request(), many)
    assert len(changes) == 9 and change_summary.describe_draft("", changes).endswith("· 3 more")

"""What if: sliders plan at once in the session; keeping stores and proves, going back forgets."""

from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from app.plans.draft import quick_plan
from tests.support.app.page import field, press, said, turn_to
from tests.support.app.values import request
from torchsplit_core import workflow
from torchsplit_core.files import read_text
from torchsplit_core.jobs.job_kinds import EXPLAIN, RequestParameters
from torchsplit_core.planning.comparison.plan_comparison import compare
from torchsplit_core.planning.infeasibility.notes import unsettled_notes
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import FleetEntry
from torchsplit_core.workspace.plan_cache.cache import PlanCache

pytestmark = pytest.mark.usefixtures("native_sliders")


def metric(page: AppTest) -> str:
    return str(page.metric[0].value)


def test_a_slider_plans_at_once_and_nothing_is_stored(page, solved, started):
    opened = page("plan", solved)
    before = metric(opened)
    field(opened, "select_slider", "GPUs, A100-80GB").set_value(2).run()
    assert not opened.exception and metric(opened) != before
    assert "draft, not kept" in said(opened) and "A100-80GB 1 → 2" in said(opened)
    stored, tried = (
        solved.get("plan", "review"),
        quick_plan.plan_quickly(
            PlanCache(solved), replace(request(), gpus=(FleetEntry("A100-80GB", count=2),))
        ),
    )
    assert tried.outcome is not None and compare(stored, tried.outcome).lines[1] not in said(opened)
    turn_to(opened, "draft-lines", True)
    assert compare(stored, tried.outcome).lines[1] in said(opened)
    field(opened, "select_slider", "Weight").set_value(2.0).run()
    assert "A100-80GB 1 → 2 · weight of bert 1 → 2" in said(opened)
    expected = replace(
        request(),
        gpus=(FleetEntry("A100-80GB", count=2),),
        models=(replace(request().models[0], weight=2.0), request().models[1]),
    )
    best = workflow.plan(expected).objective.value
    assert best is not None and metric(opened).startswith(f"{best:.3g}")
    assert solved.get("plan_request", "review") == request() and not started
    assert "Why this plan" not in said(opened)


def test_keeping_stores_the_request_and_looks_for_the_proof(page, solved, started):
    opened = page("plan", solved)
    field(opened, "select_slider", "bert, req/s").set_value(400.0).run()
    press(opened, "Keep and prove")
    assert solved.get("plan_request", "review").models[0].demand_rps == 400.0
    assert started == [(EXPLAIN, RequestParameters("review"))] and "not kept" not in said(opened)


def test_going_back_by_button_or_slider_shows_what_is_stored(page, solved):
    opened = page("plan", solved)
    before = metric(opened)
    field(opened, "select_slider", "GPUs, A100-80GB").set_value(5).run()
    press(opened, "Discard")
    assert metric(opened) == before and "not kept" not in said(opened)
    assert field(opened, "select_slider", "GPUs, A100-80GB").value == 1
    field(opened, "select_slider", "Weight").set_value(3.0).run()
    field(opened, "select_slider", "Weight").set_value(1.0).run()
    assert "not kept" not in said(opened)


def test_what_is_downloaded_is_what_is_on_screen_and_says_so(page, solved, files):
    opened = page("plan", solved)
    told = {"review.plan_request.json", "review.plan.json", "review.html"}
    assert set(files) == told | {"review.losses.csv"}
    files.clear()
    field(opened, "select_slider", "GPUs, A100-80GB").set_value(2).run()
    assert set(files) == {
        "review.draft.plan_request.json", "review.draft.plan.json", "review.draft.html",
        "review.draft.losses.csv",
    }  # fmt: skip
    two = replace(request(), gpus=(FleetEntry("A100-80GB", count=2),))
    asked = read_text(files["review.draft.plan_request.json"](), origin="a download")[1]
    tried = read_text(files["review.draft.plan.json"](), origin="a download")[1]
    assert asked == two and tried.request_sha256 == request_hash(two)
    told = files["review.draft.html"]()
    assert "review, draft: A100-80GB 1 → 2" in told and "2 × A100-80GB" in told
    assert "of the draft on screen, which is not kept yet" in said(opened)


def test_where_the_bar_stands_plan_says_that_nothing_has_changed(page, solved, started):
    opened = page("plan", solved)
    press(opened, "Plan")
    assert not started and "Nothing has changed" in str(opened.toast[0].value)
    field(opened, "select_slider", "GPUs, A100-80GB").set_value(2).run()
    assert not [button for button in opened.button if button.key == "plan"]
    press(opened, "Discard")
    assert opened.button(key="plan") and not started


def test_a_request_that_changed_meanwhile_is_told_and_kept_beside_the_draft(page, solved, started):
    opened = page("plan", solved)
    field(opened, "select_slider", "Weight").set_value(3.0).run()
    theirs = replace(request(), sharing="fractional")
    solved.put("plan_request", "review", theirs)
    opened.run()
    assert "The scenario was changed elsewhere" in said(opened)
    assert "slices fractional → exclusive" in said(opened)
    press(opened, "Keep and prove")
    assert solved.get("plan_request", "review").models[0].weight == 3.0
    assert solved.get("plan_request", "review, edited elsewhere") == theirs


def test_demands_that_contradict_while_dragging_are_said_and_nothing_raises(workspace):
    least = replace(request().models[0], min_throughput_rps=1e6)
    asked = replace(request(), models=(least, request().models[1]))
    known = PlanCache(workspace)
    tried = quick_plan.plan_quickly(known, asked)
    # Why is for the search behind the draft to say: whoever moves a slider does not wait for it.
    assert tried.outcome is not None and tried.outcome.status == "infeasible"
    assert unsettled_notes(tried.outcome)
    assert tried.outcome.request_sha256 == request_hash(asked)
    broken = quick_plan.plan_quickly(known, replace(asked, gpus=(FleetEntry("none"),)))
    assert broken.outcome is None and "none" in broken.fault

"""A plan on the whole window: the verdict, the figures with arrows, before and after, sliders that write the draft."""

import html
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from app.plans.presentation import page as present
from app.plans.presentation.headline import figures_html
from app.plans.presentation.slides import MOST_SLIDERS, NO_MODEL, Slide, format_models, slider_models
from tests.support.app.page import field, press_key, put_plan, said
from tests.support.app.values import plan, request
from tests.support.planning.edits import with_each_model, with_model
from torchsplit_core import workflow
from torchsplit_core.values import FleetEntry, GammaArrivals, PlanOutcome, PlanRequest
from torchsplit_core.workspace.drafts import DraftStore
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.versions import VersionStore

pytestmark = pytest.mark.usefixtures("native_sliders")
TWO = replace(request(), gpus=(FleetEntry("A100-80GB", count=2),))


@pytest.fixture
def solved(solved) -> Workspace:
    VersionStore(solved, "review").save()
    return solved


@pytest.fixture
def maps(monkeypatch) -> list[str]:
    """The drawings of the map, newest last."""
    drawings = []
    monkeypatch.setattr(present, "picture", lambda drawn, **_: drawings.append(drawn))
    return drawings


def told(page: AppTest) -> str:
    return html.unescape(said(page))


def address(page: AppTest, parameter: str) -> str:
    """What the address has, whether a test or the page has put it there."""
    value = page.query_params[parameter]
    return value if isinstance(value, str) else str(value[0])


def labels(page: AppTest) -> list[str]:
    return [slider.label for slider in page.select_slider]


def two_gpus(page: AppTest) -> AppTest:
    field(page, "select_slider", "GPUs").set_value(2).run()
    assert not page.exception
    return page


def test_one_plan_is_shown_with_its_verdict_figures_and_proof_and_without_steps(page, solved, maps):
    opened = page("present", solved)
    shown = told(opened)
    assert opened.title[0].value == "review"
    assert "present-verdict green" in shown and "All 2 models get their demand" in shown
    assert "Worst-served model gets" in shown and "proven optimal" in shown and "▲" not in shown
    assert "1 of 2 profiles estimated" in shown
    assert "bert" in maps[-1] and "stroke-dasharray" not in maps[-1]
    assert not [button for button in opened.button if button.key in ("present-before", "present-after")]


def test_a_slider_makes_the_draft_of_the_plan_page_and_steps_to_what_comes_of_it(page, solved, maps):
    opened = two_gpus(page("present", solved))
    assert DraftStore(solved, "review").all()[0].request == TWO
    assert address(opened, "at") == "after"
    after = told(opened)
    assert "Draft: A100-80GB 1 → 2" in after and "1<i> of 2" not in after
    assert after.count("▲</i> from ") == 3 and 'class="neutral"' in after
    assert ">new</title>" in maps[-1]
    press_key(opened, "present-before")
    before = told(opened)
    assert address(opened, "at") == "before"
    assert "▲</i> to 2" in before and "▲</i> from " not in before
    assert ">new</title>" not in maps[-1]
    # Whoever moves a slider wants to see what comes of it.
    field(opened, "select_slider", "GPUs").set_value(3).run()
    assert address(opened, "at") == "after" and "A100-80GB 1 → 3" in told(opened)


def test_arrivals_without_a_rate_of_their_own_go_with_a_demand_that_is_moved(page, solved, maps):
    first = request().models[0]
    arrivals = GammaArrivals(first.demand_rps, 2.0)
    solved.put("plan_request", "review", with_model(request(), 0, arrivals=arrivals))
    opened = page("present", solved)
    field(opened, "select_slider", "bert, req/s").set_value(400.0).run()
    (draft,) = DraftStore(solved, "review").all()
    assert draft.request.models[0].demand_rps == 400.0
    assert draft.request.models[0].arrivals == GammaArrivals(400.0, 2.0)


def test_without_a_draft_the_version_before_stands_beside(page, solved, maps):
    put_plan(solved, TWO, workflow.plan(TWO))
    assert "The stored plan** · from v1 of" in told(page("present", solved))
    VersionStore(solved, "review").save()
    opened = page("present", solved)
    assert "The stored plan** · from v1 of" in told(opened)
    opened.query_params["at"] = "before"
    opened.run()
    assert "**v1 of" in told(opened) and "then the stored plan" in told(opened)


@pytest.mark.parametrize(
    ("status", "words"),
    [("infeasible", "that is proven"), ("timeout", "no plan was found"), ("", "Not planned yet")],
)
def test_what_is_no_plan_is_told_without_figures(page, workspace, status, words):
    workspace.put("plan_request", "review", request())
    if status:
        workspace.put("plan", "review", plan(status=status))
    shown = told(page("present", workspace))
    assert words in shown and shown.count("<b>n/a</b>") == 3


def test_a_plan_without_its_request_has_no_sliders(page, workspace):
    workspace.put("plan", "review", plan())
    opened = page("present", workspace)
    assert not labels(opened) and "present-verdict amber" in told(opened)


def test_an_empty_workspace_leads_to_the_models(page, workspace):
    assert "once there is one" in told(page("present", workspace))


def test_the_address_chooses_the_sliders_and_may_name_a_scenario_that_is_not_there(page, solved):
    opened = page("present", solved)
    opened.query_params["models"] = "ocr,nobody"
    opened.run()
    assert labels(opened) == ["GPUs, A100-80GB", "ocr, req/s"]
    assert "The address names nobody" in told(opened)
    opened.multiselect[0].set_value(["bert", "ocr"]).run()
    assert address(opened, "models") == "bert,ocr"
    opened.multiselect[0].set_value([]).run()
    assert address(opened, "models") == NO_MODEL and labels(opened) == ["GPUs, A100-80GB"]
    opened.query_params["scenario"] = "gone"
    opened.run()
    assert not opened.exception
    assert "There is no scenario" in told(opened) and address(opened, "scenario") == "gone"
    assert "Worst-served" not in told(opened)


def test_the_plan_page_has_the_way_here(page, solved, monkeypatch):
    gone = []
    opened = page("plan", solved)
    monkeypatch.setattr("app.shell.navigation.go", lambda *where: gone.append(where))
    press_key(opened, "present")
    assert gone == [("Present", "review")]


def test_models_in_the_address_are_the_worst_served_first_and_may_have_commas():
    names = ["a,b", "50%", "c d", *(f"m{number}" for number in range(9))]
    model = request().models[0]
    asked = PlanRequest(request().gpus, tuple(replace(model, name=name) for name in names))
    assert slider_models(format_models(names[:3]), asked, None) == (tuple(names[:3]), ())
    assert slider_models(format_models(["zz", "c d"]), asked, None) == (("c d",), ("zz",))
    assert slider_models(NO_MODEL, asked, None) == ((), ())
    assert len(slider_models(format_models(names), asked, None)[0]) == MOST_SLIDERS
    assert slider_models(None, request(), plan())[0] == ("ocr", "bert")


def test_arrows_say_what_falls_and_text_of_a_user_is_no_markup():
    worse = with_each_model(plan(), normalised=0.5, name="<img>")
    drawn = figures_html(_slide(worse), _slide(plan()), "after")
    assert '<em class="loss"><i role="img" aria-label="falls">▼</i> from 1.5' in drawn
    assert "as before" in drawn and "<img" not in drawn
    assert '<em class="loss"><i role="img" aria-label="falls">▼</i> to 0.5' in figures_html(
        _slide(plan()), _slide(worse), "before"
    )


def _slide(outcome: PlanOutcome) -> Slide:
    return Slide("", request(), outcome)

"""The verdict on a plan: who gets what is asked, in which words and colour, on the pages and in the report."""

from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.plans.model_table import models_table
from app.plans.summary import metrics, status_badge
from app.plans.verdict import verdict_of
from tests.support.app.page import press_key, put_plan
from tests.support.app.values import plan, point, request
from tests.support.planning.edits import with_model
from tests.support.serving.plans import Placed, cpu_plan
from torchsplit_core.jobs.job_kinds import RequestParameters
from torchsplit_core.latency_slo.verdict import PlanVerdict
from torchsplit_core.pictures.slice_map import fleet_svg
from torchsplit_core.planning import plan as solved
from torchsplit_core.values import Objective, PlanOutcome, PlanRequest, Stage, Variant
from torchsplit_core.workspace.store import Workspace

COLOURS = {"bert": "#3f66cc", "ocr": "#e2a11c"}


def asking(bert: float, ocr: float, **more: Any) -> PlanRequest:
    """The two models with other demands."""
    asked = request()
    first, second = asked.models
    return replace(asked, models=(replace(first, demand_rps=bert), replace(second, demand_rps=ocr)), **more)


def judged(asked: PlanRequest, outcome: PlanOutcome | None = None) -> PlanVerdict:
    outcome = outcome or plan(asked)
    return verdict_of(asked, outcome)


def keep(workspace: Workspace, asked: PlanRequest, outcome: PlanOutcome) -> Workspace:
    put_plan(workspace, asked, outcome)
    return workspace


def lines(page: AppTest) -> dict[str, list[str]]:
    """What the page says in boxes, by their kind."""
    return {
        kind: [str(element.value).replace("\\", "").replace("\u202f", " ") for element in page.get(kind)]
        for kind in ("success", "info", "warning", "error")
    }


def test_a_plan_of_cores_speaks_of_cores():
    plan, asked = cpu_plan([Placed("bert")], {"bert": "sample:bert"}, cores=2)
    _, _, used, idle = metrics(plan, asked)
    assert (used.label, used.value, used.note) == ("Cores used", "1 of 2", "1 slice, none free")
    assert (idle.label, idle.value) == ("Idle cores", "1")


def test_what_is_met_exactly_or_well_is_green_and_names_the_tightest():
    verdict = judged(request())
    assert verdict.level == "green" and verdict.sentence == (
        "All 2 models get their demand, and every limit holds under load. Tightest: ocr at 1.5 × its demand."
    )
    assert "All 2 models get their demand" in judged(asking(400.0, 300.0)).sentence
    assert judged(asking(400.0, 300.0 * (1 + 1e-9))).level == "amber"
    assert judged(asking(400.0, 300.0 * (1 + 1e-5))).level == "red"


def test_what_is_not_met_is_red_and_names_the_worst_first_though_it_is_proven():
    asked = asking(500.0, 3000.0)
    verdict = judged(asked)
    assert verdict.level == "red"
    assert verdict.sentence == "2 of 2 models do not get their demand: ocr 10 %, bert 80 %."
    assert judged(asking(200.0, 600.0)).sentence == "1 of 2 models does not get its demand: ocr 50 %."
    assert status_badge(plan(asked)).colour != "green"
    # Of a plan that is not proven it is said of this plan alone.
    open_ = judged(asked, plan(asked, status="feasible"))
    assert open_.sentence == f"{verdict.sentence} A better plan is not ruled out."
    made = plan()
    gpu = made.gpus[0]
    models = (made.models[0], replace(made.models[1], variant=None, throughput_rps=0.0, normalised=0.0))
    alone = replace(made, gpus=(replace(gpu, slices=gpu.slices[:1]),), models=models)
    assert judged(request(), alone).sentence == "1 of 2 models does not get its demand: ocr not served."


def test_met_at_nominal_alone_is_amber():
    guessed = replace(point("3g.40gb", 300.0, "estimated"), low_rps=180.0, high_rps=340.0)
    sure = replace(point("4g.40gb", 400.0), low_rps=390.0, high_rps=405.0)
    asked = request()
    models = tuple(
        replace(model, variants=(Variant("whole", (Stage("whole", (one,)),)),))
        for model, one in zip(asked.models, (sure, guessed), strict=True)
    )
    asked = replace(asked, models=models)
    outcome = solved(asked)
    verdict = judged(asked, outcome)
    assert verdict.level == "amber"
    assert "at their low end 1 of 2 does not: ocr 90 %. Tightest: ocr at 1.5" in verdict.sentence
    eased = with_model(asked, 1, demand_rps=150.0)
    verdict = judged(eased, solved(eased))
    assert verdict.level == "green" and "also at the low end of the figures" in verdict.sentence


@pytest.mark.parametrize(
    ("status", "words"), [("infeasible", "that is proven"), ("timeout", "no plan was found")]
)
def test_no_plan_is_never_green(status, words):
    verdict = judged(request(), plan(status=status))
    assert verdict.level == "red" and words in verdict.sentence


def test_what_cannot_be_judged_says_why():
    assert "the request of this plan is not here" in verdict_of(None, plan()).sentence
    stale = judged(asking(1.0, 1.0), plan())
    assert stale.level == "amber" and "answers an earlier request" in stale.sentence


def test_fewest_gpus_are_held_to_their_minima_and_unmet_demands_are_said():
    asked = asking(500.0, 200.0, objective=Objective("min_gpus"))
    assert judged(asked).level == "red"
    first, second = asked.models
    owed = replace(
        asked, models=(replace(first, min_throughput_rps=300.0), replace(second, min_throughput_rps=9.0))
    )
    verdict = judged(owed)
    assert verdict.level == "amber"
    assert verdict.sentence == "Every minimum is met, but 1 of 2 models gets less than the demand: bert 80 %."


def test_who_is_below_the_demand_is_marked_in_the_table_and_on_the_map():
    asked = asking(500.0, 200.0)
    table = models_table(plan(asked), asked, COLOURS)
    rows = {row.split('"')[0]: row for row in table.split('data-model="')[1:]}
    bert, ocr = rows["bert"], rows["ocr"]
    assert 'class="n below"' in bert and "0.8 ▾" in bert and "below" not in ocr
    drawn = fleet_svg(plan(asked), COLOURS, asked)
    assert drawn.count('<g class="over">') == 1 and ">125%</text>" in drawn
    assert "load above 100 %" in drawn
    calm = fleet_svg(plan(), COLOURS, asking(400.0, 200.0))
    assert "over" not in calm.replace("overflow", "") and "load above 100 %" not in calm


def test_with_weights_the_table_divides_by_the_demand_and_the_card_says_what_it_shows():
    asked = request()
    heavy = with_model(asked, 0, weight=2.0)
    made = plan(heavy)
    made = with_model(made, 0, normalised=1.0)
    table = models_table(made, heavy, COLOURS)
    assert "÷ weight · demand" in table and 'title="2 × demand"' in table
    plain = models_table(plan(), asked, COLOURS)
    assert "÷ weight" not in plain
    # Nor have columns a place that would say the same of every model.
    assert "90 % interval" not in plain and "runs as" not in plain
    assert metrics(made, heavy)[0].label == "Least throughput ÷ weight · demand"
    assert "demand" not in metrics(made, heavy)[0].value
    assert metrics(plan(), asked)[0].value.endswith("its demand")


def test_value_bound_and_gap_in_the_card_are_of_one_level():
    made = plan(status="feasible")
    goal = replace(made.objective, value=1.5, bound=2.4, gap=0.2, proven_levels=1)
    note = metrics(replace(made, objective=goal), request())[0].note.replace("\u202f", " ")
    assert note == "proven for 1 of 2 levels, level 2 to 20 %"
    goal = replace(goal, bound=2.0, gap=0.25, proven_levels=0)
    note = metrics(replace(made, objective=goal), request())[0].note.replace("\u202f", " ")
    assert note == "proven: at most 2 · gap 25 %"
    note = metrics(replace(made, objective=replace(goal, gap=None)), request())[0].note
    assert note == "proven: at most 2"
    assert metrics(plan(), request())[0].note == "proven: no plan does better"


def test_fewest_gpus_without_a_minimum_offer_the_demands_as_minima(page, workspace, started):
    asked = replace(request(), objective=Objective("min_gpus"))
    keep(workspace, asked, solved(asked))
    opened = page("plan", workspace)
    assert "No model is served." in lines(opened)["error"][0]
    assert any("No model has a minimum" in str(element.value) for element in opened.markdown)
    press_key(opened, "demands-as-minima")
    assert workspace.get("plan_request", "review") == asked
    press_key(opened, "draft-keep")
    stored = workspace.get("plan_request", "review")
    assert [model.min_throughput_rps for model in stored.models] == [200.0, 200.0]
    assert [parameters for _, parameters in started] == [RequestParameters("review")]
    keep(workspace, stored, plan(stored))
    assert not [element for element in page("plan", workspace).button if element.key == "demands-as-minima"]


def test_fewest_gpus_without_a_minimum_are_not_planned_and_lead_to_the_minima(page, filled, rows):
    opened = page("plan", filled)
    assert not [element for element in opened.button if element.key == "demands-as-minima"]
    rows.edit(opened, "Objective", "objective", "kind", "min_gpus")
    assert any("so the fewest GPUs are none" in str(element.value) for element in opened.markdown)
    boxes = lines(opened)
    assert not opened.exception and not boxes["error"] and "Nothing to plan yet" in str(boxes["info"])
    assert opened.button(key="draft-keep").disabled and opened.button(key="draft-save-as").disabled
    press_key(opened, "demands-as-minima")
    assert "All 2 models get their demand" in lines(opened)["success"][0]
    # A number of GPUs is not compared with what the worst-served model got.
    assert opened.metric[0].label.endswith("needed") and not opened.metric[0].delta
    assert not opened.button(key="draft-keep").disabled
    assert not [element for element in opened.button if element.key == "demands-as-minima"]


def test_a_plan_without_a_slice_has_no_files(page, workspace):
    asked = replace(request(), objective=Objective("min_gpus"))
    keep(workspace, asked, solved(asked))
    opened = page("deploy", workspace)
    boxes = lines(opened)
    assert any("no slice, so there is nothing to deploy" in text for text in boxes["info"])
    assert not opened.code and not any("Applying removes" in text for text in boxes["warning"])
    assert "demand above 0" not in str(boxes)

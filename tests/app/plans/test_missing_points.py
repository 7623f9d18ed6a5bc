"""GPU types that models have no figures for: said beside the fleet before a search, and in the plan's verdict."""

from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from app.plans.missing_points import describe_gap
from app.plans.verdict import verdict_of
from app.shell import navigation
from tests.support.app.page import button, press, put_plan
from tests.support.app.values import SOURCE, graph, profile, request
from torchsplit_core.jobs.quick_start import measured_mix
from torchsplit_core.planning import plan as solved
from torchsplit_core.planning.request.coverage import UncoveredGpuType
from torchsplit_core.values import FleetEntry, PlanRequest
from torchsplit_core.workspace.drafts import DraftStore

H100, H200 = "H100-SXM5-80GB", "H200-141GB"


def on(*types: str) -> PlanRequest:
    return replace(request(), gpus=tuple(FleetEntry(kind) for kind in types))


def boxes(page: AppTest) -> str:
    found = [str(element.value) for kind in ("warning", "error") for element in page.get(kind)]
    return "\n".join(found).replace("\\", "")


def folds(page: AppTest) -> list[str]:
    return [str(element.proto.popover.label).replace("\\", "") for element in page.get("popover")]


def test_a_type_that_nobody_can_use_is_said_beside_the_fleet_before_it_is_planned(page, filled, rows):
    opened = page("plan", filled)
    assert "figures for" not in boxes(opened) and not any("figures" in label for label in folds(opened))
    rows.edit(opened, "Fleet", "1", "add", {"type": H200})
    assert f"No model has figures for {H200}: no plan can use it." in boxes(opened)
    assert f"No figures for {H200}" in folds(opened)


def test_a_model_that_the_workspace_has_figures_for_is_not_named(page, filled, monkeypatch):
    # bert's stored profile has rows for the H100, which Plan would add to the request; of ocr there is none.
    assert any(row.gpu_type == H100 for row in profile().rows) and SOURCE.endswith("bert")
    filled.put("plan_request", "review", on("A100-80GB", H100))
    assert f"1 of 2 models has no figures for {H100} and cannot run on it: ocr." in boxes(
        page("plan", filled)
    )


@pytest.mark.parametrize(
    ("label", "tab"), [("Measure and estimate", "Measure"), ("Import figures", "Import")]
)
def test_the_ways_out_lead_to_their_tab_of_the_profile_page(label, tab, page, filled, monkeypatch):
    went = []
    monkeypatch.setattr(navigation, "go", lambda title, thing=None: went.append(title))
    filled.put("plan_request", "review", on(H200))
    opened = page("plan", filled)
    press(opened, label)
    assert went == ["Profile"] and opened.session_state[navigation.PROFILE_TAB] == tab


def test_one_press_estimates_by_the_graph_where_it_is_here(page, filled):
    measured = [row for row in profile().rows if row.basis == "measured"]
    filled.put("plan_request", "review", on(H200))
    opened = page("plan", filled)
    assert f"No model has figures for {H200}" in boxes(opened)
    told = "\n".join(str(element.value) for element in opened.caption).replace("\\", "")
    assert "no model file to estimate from" not in told and "Untested on hardware" in told
    press(opened, "Estimate for these GPUs")
    rows = filled.get("profile", SOURCE).rows
    new = [row for row in rows if row.gpu_type == H200]
    assert new and all(row.basis == "estimated" and row.low_rps and row.high_rps for row in new)
    assert [row for row in rows if row.basis == "measured"] == measured
    # The draft has them, and what is stored waits for it to be kept.
    assert "figures for" not in boxes(opened)
    assert not [button for button in opened.button if button.key == "figures-estimate"]
    assert filled.get("plan_request", "review") == on(H200)
    assert any("draft, not kept" in str(element.value) for element in opened.markdown)


def test_the_measured_mix_on_another_gpu_leads_to_what_figures_alone_allow(page, workspace, monkeypatch):
    went = []
    monkeypatch.setattr(navigation, "go", lambda title, thing=None: went.append(title))
    name = measured_mix(workspace)
    mix = workspace.get("plan_request", name)
    workspace.put("plan_request", name, replace(mix, gpus=(FleetEntry(H100),)))
    opened = page("plan", workspace)
    labels = [button.label for button in opened.button]
    assert "Measure and estimate" not in labels and "Estimate for these GPUs" in labels
    assert "Import figures" in labels
    press(opened, "Add model files")
    assert went == ["Models"]


def test_one_press_estimates_models_that_are_figures_alone_into_the_draft(page, workspace):
    asked = on("A100-80GB", H200)
    workspace.put("plan_request", "review", asked)
    opened = page("plan", workspace)
    assert f"No model has figures for {H200}: no plan can use it." in boxes(opened)
    next(button for button in opened.button if button.key == "figures-estimate").click().run()
    assert not opened.exception and "figures for" not in boxes(opened)
    (kept,) = DraftStore(workspace, "review").all()
    for model, before in zip(kept.request.models, asked.models, strict=True):
        points = model.variants[0].stages[0].points
        assert points[: len(before.variants[0].stages[0].points)] == before.variants[0].stages[0].points
        new = [point for point in points if point.gpu_type == H200]
        assert new and all(one.basis == "estimated" and one.low_rps and one.high_rps for one in new)
    assert workspace.get("plan_request", "review") == asked


def test_a_graph_of_another_architecture_gives_no_estimate(page, filled):
    filled.put("graph", SOURCE, replace(graph(), architecture_hash="other"))
    filled.put("plan_request", "review", on(H200))
    opened = page("plan", filled)
    next(button for button in opened.button if button.key == "figures-estimate").click().run()
    assert "is of another architecture than the graph" in boxes(opened)
    assert filled.get("profile", SOURCE) == profile()


def test_a_plan_that_serves_nobody_for_want_of_figures_says_so_and_is_not_deployed(page, workspace):
    asked = on(H200)
    outcome = solved(asked)
    verdict = verdict_of(asked, outcome)
    assert verdict.level == "red"
    assert verdict.sentence == f"No model is served. No model has figures for {H200}."
    put_plan(workspace, asked, outcome)
    opened = page("plan", workspace)
    assert button(opened, "Deploy this plan").disabled
    assert verdict.sentence in boxes(opened)
    # The planner's warnings stand in one box.
    assert sum("can run on this fleet" in str(element.value) for element in opened.warning) <= 1
    assert verdict.sentence in boxes(page("deploy", workspace))


def test_names_are_counted_where_they_are_many():
    assert describe_gap(UncoveredGpuType("X", tuple("abcde"), 9)) == (
        "5 of 9 models have no figures for X and cannot run on it: a, b, c and 2 more."
    )

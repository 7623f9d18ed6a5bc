"""The Baselines tab: the plan beside what people do without a planner."""

from dataclasses import replace
from functools import partial

import pytest

from app.plans import baselines as plan_baselines
from tests.support.app import plan_page
from tests.support.app.page import press_key, put_plan, said
from tests.support.app.values import plan, request
from torchsplit_core import workflow
from torchsplit_core.planning.baselines.baseline_plans import Baseline, build_baselines
from torchsplit_core.values import FleetEntry, Point
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.versions import VersionStore

tab = partial(plan_page.tab, name="Baselines")


@pytest.fixture
def solved(workspace) -> Workspace:
    """Two models on two GPUs with points on whole GPUs too, really planned."""
    asked = request()
    whole = Point("A100-80GB", "7g.80gb", 8, 600.0, 40.0)

    def more(model):
        stage = model.variants[0].stages[0]
        return replace(
            model,
            variants=(replace(model.variants[0], stages=(replace(stage, points=(*stage.points, whole)),)),),
        )

    asked = replace(
        asked, gpus=(FleetEntry("A100-80GB", count=2),), models=tuple(more(model) for model in asked.models)
    )
    put_plan(workspace, asked, workflow.plan(asked))
    return workspace


def test_every_baseline_stands_beside_the_plan_with_its_gain(page, solved):
    text = said(tab(page("plan", solved)))
    asked, planned = solved.get("plan_request", "review"), solved.get("plan", "review")
    baselines = build_baselines(asked, planned)
    assert [baseline.title in text for baseline in baselines] == [True] * 4 and "This plan" in text
    one_gpu = next(baseline for baseline in baselines if baseline.name == "whole_gpu").outcome
    assert one_gpu is not None and {model.throughput_rps for model in one_gpu.models} == {600.0}
    assert "1 200" in text and "made by the named rule and checked alike" in text


def test_a_baseline_opens_as_a_draft_that_is_kept_as_it_is_or_as_a_scenario(page, solved):
    asked, planned = solved.get("plan_request", "review"), solved.get("plan", "review")
    first = build_baselines(asked, planned)[0]
    opened = tab(page("plan", solved))
    press_key(opened, "baseline-draft")
    assert f"baseline: {first.title}" in said(opened)
    assert solved.get("plan", "review") == planned
    opened.button(key="draft-keep").click().run()
    assert first.outcome is not None
    assert not opened.exception and solved.get("plan", "review").gpus == first.outcome.gpus
    assert solved.get("plan_request", "review") == asked
    assert [one.note for one in VersionStore(solved, "review").list()] == [f"baseline: {first.title}", ""]
    opened = tab(opened)
    press_key(opened, "baseline-scenario")
    assert solved.get("plan", f"review, {first.title}").gpus == first.outcome.gpus


def test_a_baseline_that_gives_no_plan_says_why():
    none = Baseline(
        "whole_gpu", "One whole GPU per model", "Every model has one.", None, "More models than GPUs."
    )
    shown = plan_baselines.table(plan(), (none,), request())
    assert "n/a: More models than GPUs." in shown and shown.count('<td class="n">n/a</td>') == 3


def test_without_a_plan_of_this_request_there_is_nothing_beside_it(page, filled):
    filled.put("plan_request", "review", replace(request(), sharing="fractional"))
    assert "answers an earlier request" in said(tab(page("plan", filled)))
    filled.put("plan", "review", plan(status="timeout"))
    assert "Here you will see what the plan gains" in said(tab(page("plan", filled)))

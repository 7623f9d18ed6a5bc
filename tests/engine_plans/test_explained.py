"""Why an LLM's engines are where they are: every answer is that of the planner asked by itself."""

from dataclasses import replace

import pytest

from app.plans.explanation.panel import sections
from tests.engine_plans.test_rates import VARIED
from tests.support.planning.requests import whole_model
from torchsplit_core import workflow
from torchsplit_core.cli.plan_summary import summary_lines
from torchsplit_core.engine_plans.engine_figures import EnginePlace
from torchsplit_core.engine_plans.explained_engines import engine_questions, place_of
from torchsplit_core.planning import plan as plain
from torchsplit_core.planning.explanation.applied_change import apply_effect
from torchsplit_core.values import FleetEntry, PlanModel, PlanRequest, Point

H100 = "H100-SXM5-80GB"
TIGHT = replace(VARIED, max_tpot_ms=18.0)


@pytest.fixture(scope="module")
def request_():
    fleet = (FleetEntry(H100, count=2, layouts=(("4g.40gb", "3g.40gb"), ("1g.10gb",) * 7), mig="either"),)
    return PlanRequest(
        fleet, (PlanModel("chat", llm=replace(TIGHT, tensor_parallel=(1, 2)), demand_rps=1000.0),)
    )


@pytest.fixture(scope="module")
def explained(request_):
    return workflow.plan(request_, explain=True)


@pytest.mark.repeated
def test_every_place_has_a_reason_and_each_trial_is_the_plan_with_all_engines_there(request_, explained):
    resolved = workflow.with_engine_points(request_)
    points = {place_of(point): point for point in resolved.models[0].points}
    reasons = {
        EnginePlace(item.gpu_type, item.profile or "", item.tensor_parallel): item
        for item in explained.explanation.engines
    }
    assert set(points) < set(reasons) and reasons[EnginePlace(H100, "1g.10gb")].reason == "no_engine"
    assert "leave no room" in reasons[EnginePlace(H100, "1g.10gb")].detail
    tried = 0
    for place, point in points.items():
        reason = reasons[place]
        assert reason.rate_rps == point.throughput_rps and reason.binds == point.binds
        if reason.trial is None:
            continue
        (model,) = resolved.models
        stage = replace(model.variants[0].stages[0], points=(point,))
        only = replace(model, variants=(replace(model.variants[0], stages=(stage,)),))
        assert reason.trial.value_after == pytest.approx(
            plain(replace(resolved, models=(only,))).objective.value
        )
        tried += 1
    assert tried >= 2
    assert sum(item.engines for item in reasons.values()) == 2 * sum(
        item.reason == "in_plan" for item in reasons.values()
    )


@pytest.mark.repeated
def test_an_eased_limit_brings_what_its_own_plan_has_and_never_less(request_, explained):
    eased = [item for item in explained.explanation.changes if item.what in ("max_ttft_ms", "max_tpot_ms")]
    assert eased
    for change in eased:
        changed = apply_effect(request_, change)
        assert getattr(changed.models[0].llm, change.what) == change.new == pytest.approx(1.1 * change.old)
        assert change.value_after >= explained.objective.value
        assert change.value_after == pytest.approx(
            plain(workflow.with_engine_points(changed)).objective.value, rel=0.02
        )
        (limit,) = [item for item in explained.explanation.models[0].limits if item.kind == change.what]
        assert limit.binds == {"better": True, "same": False}.get(change.effect)


def test_the_gpu_without_mig_is_tried_where_the_plan_cuts_every_gpu(request_):
    small = replace(VARIED, tensor_parallel=(1,))
    vision = whole_model("vision", (Point(H100, "3g.40gb", 1, 50.0, 5.0),), demand_rps=20.0)
    models = (PlanModel("chat", llm=small, demand_rps=20.0), vision)
    for count in (1, 2):
        request = replace(request_, models=models, gpus=(replace(request_.gpus[0], count=count),))
        outcome = workflow.plan(request, explain=True)
        assert all(item.profile for gpu in outcome.gpus for item in gpu.slices)
        (reason,) = [item for item in outcome.explanation.layouts if not item.layout]
        fleet = [FleetEntry(H100, mig=False), *([replace(request.gpus[0], count=1)] if count == 2 else [])]
        forced = workflow.with_engine_points(replace(request, gpus=tuple(fleet)))
        levels = plain(forced).objective.sorted_normalised
        assert reason.reason == "tried"
        assert reason.trial.value_after == pytest.approx(levels[reason.trial.level - 1])


def test_without_llms_nothing_is_asked_of_engines(request_, explained):
    assert engine_questions(replace(request_, models=()), explained).places == ()


def test_the_page_and_the_command_say_it(request_, explained):
    table = dict(sections(explained.explanation, explained))["Which engines"]
    assert table.count("<tr>") == 1 + len(explained.explanation.engines)
    assert f"{H100} 1g.10gb" in table and "no engine: weights of" in table
    assert f"2 × {H100}" in table
    lines = list(summary_lines(workflow.with_engine_points(request_), explained))
    assert any(line.startswith(f"chat: no engine on {H100} 1g.10gb: weights") for line in lines)
    assert any(line.startswith("chat: all engines on") for line in lines)

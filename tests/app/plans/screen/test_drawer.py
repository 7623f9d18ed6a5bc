"""What the drawer says of a slice: how a model runs on it, its limit, and what else it could run on."""

from dataclasses import replace

import pytest

from app.plans.screen import drawer, model_drawer
from tests.support.app.page import put_plan, turn_to
from tests.support.app.values import request
from tests.support.planning.edits import with_each_model
from torchsplit_core import workflow
from torchsplit_core.values import PlannedGpu, PlannedSlice, PlanOutcome, Tenant


@pytest.fixture(scope="module")
def plan() -> PlanOutcome:
    return workflow.plan(request())


def first(plan: PlanOutcome) -> tuple[PlannedGpu, PlannedSlice, Tenant]:
    gpu = plan.gpus[0]
    item = next(one for one in gpu.slices if one.tenants)
    return gpu, item, item.tenants[0]


def test_a_place_is_found_by_its_gpu_and_start_and_no_other(plan):
    gpu, item, _ = first(plan)
    assert drawer.slice_at(plan, f"{item.start} {gpu.id}") == (gpu, item)
    for place in ("", f"{item.start} gpu99", f"99 {gpu.id}"):
        assert drawer.slice_at(plan, place) is None
    assert drawer.slice_at(None, f"{item.start} {gpu.id}") is None


def test_a_slice_says_its_service_time_and_the_fastest_alternatives_within_the_limit(plan):
    asked, (gpu, item, tenant) = request(), first(plan)
    told = dict(drawer.facts(asked, plan, gpu, item, tenant))
    assert told["service time, p95"].endswith("of 80\u202fms") and "below" not in told["service time, p95"]
    hard = with_each_model(asked, max_latency_ms=0.001)
    assert "below" in dict(drawer.facts(hard, plan, gpu, item, tenant))["service time, p95"]
    free = with_each_model(asked, max_latency_ms=None)
    assert "no limit" in dict(drawer.facts(free, plan, gpu, item, tenant))["service time, p95"]
    # Without its request neither the time nor the limit is known.
    assert dict(drawer.facts(None, plan, gpu, item, tenant))["service time, p95"] == "n/a"
    found = drawer.alternatives(asked, gpu, item, tenant)
    assert found and item.profile not in {point.profile for point in found}
    assert [point.throughput_rps for point in found] == sorted(
        (point.throughput_rps for point in found), reverse=True
    )
    assert len({point.profile for point in found}) == len(found)
    hard = with_each_model(asked, max_latency_ms=0.001)
    assert not drawer.alternatives(hard, gpu, item, tenant)


def test_a_chosen_slice_opens_beside_the_map_and_is_closed_again(page, workspace, plan):
    put_plan(workspace, request(), plan)
    gpu, item, tenant = first(plan)

    def headers(opened):
        return [str(one.value).replace("\\", "") for one in (*opened.header, *opened.subheader)]

    opened = page("plan", workspace)
    assert tenant.model not in headers(opened)
    turn_to(opened, f"chosen slice {workspace.id} review", f"{item.start} {gpu.id}")
    assert tenant.model in headers(opened)
    assert any(head.startswith(f"{gpu.id} · {item.profile}") for head in headers(opened))
    opened.button(key="drawer-close").click().run()
    assert tenant.model not in headers(opened)


def test_a_model_of_the_table_opens_with_its_curve_and_the_points_of_the_plan(page, workspace, plan):
    asked = request()
    put_plan(workspace, asked, plan)
    opened = page("plan", workspace)
    drawer_key = f"chosen slice {workspace.id} review"
    turn_to(opened, drawer_key, "model bert")
    assert "bert" in [element.value for element in opened.header]
    assert any("a line a slice" in element.value for element in opened.caption)
    turn_to(opened, drawer_key, "model of nobody")
    assert not any(element.key == "drawer-close" for element in opened.button)
    bert = next(model for model in plan.models if model.name == "bert")
    by_name = dict(model_drawer.facts(asked.models[0], plan, bert))
    assert by_name["slices"].endswith("A100-80GB") and "below" not in by_name["throughput ÷ demand"]
    assert by_name["service time, p95"].endswith("of 80\u202fms")
    greedy = replace(asked.models[0], demand_rps=10 * bert.throughput_rps)
    assert "below" in dict(model_drawer.facts(greedy, plan, bert))["throughput ÷ demand"]
    alone = dict(model_drawer.facts(None, replace(plan, gpus=()), bert))
    assert (alone["throughput ÷ demand"], alone["demand"], alone["slices"]) == ("n/a", "n/a", "none")

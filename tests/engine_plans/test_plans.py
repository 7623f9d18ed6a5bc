"""Plans with LLMs: limits hold in a simulation of other draws, measured points count first, and limits too low."""

import json
from dataclasses import replace

import pytest

from tests.engine_plans.test_rates import LLM, VARIED
from tests.support.seeds import repeated
from torchsplit_core import workflow
from torchsplit_core.files import read_text, write_text
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import (
    FleetEntry,
    InputFault,
    LlmPoint,
    PlanModel,
    PlanRequest,
    PoissonArrivals,
    tenants_on,
)

H100 = "H100-SXM5-80GB"
HALVES = FleetEntry(H100, count=1, layouts=(("4g.40gb", "3g.40gb"),))


def chat(llm=VARIED, **changes):
    return PlanModel("chat", llm=llm, **changes)


@repeated("demand", [1000.0, 30.0], ids=["far above what they give", "below it"])
def test_engines_of_two_slices_keep_their_limits_in_a_simulation_of_other_draws(demand):
    request = PlanRequest((HALVES,), (chat(demand_rps=demand),))
    plan = workflow.plan(request)
    (model,) = plan.models
    assert plan.status == "optimal" and len(list(tenants_on(plan.gpus))) == 2
    assert model.ttft_ms.low <= model.ttft_ms.value <= model.ttft_ms.high <= VARIED.max_ttft_ms
    assert model.tpot_ms.high <= VARIED.max_tpot_ms
    resolved, load_rps = workflow.with_engine_points(request), min(demand, model.throughput_rps)
    simulation = workflow.simulation_request(plan, resolved, lambda _: PoissonArrivals(load_rps))
    simulation = replace(simulation, requests_per_model=8000, seed=11, replications=4)
    (load,) = workflow.simulate(simulation).models
    assert load.ttft_ms.p95 - load.ttft_ci95_ms.p95 <= VARIED.max_ttft_ms
    assert load.tpot_ms.p95 - load.tpot_ci95_ms.p95 <= VARIED.max_tpot_ms
    assert model.output_tokens_per_s == pytest.approx(load.output_tokens_per_s, rel=0.1)


def test_a_slow_engine_that_breaks_the_limits_beside_a_fast_one_is_left_out_and_the_bound_stays():
    fleet = (FleetEntry(H100, layouts=(("3g.40gb",),)), FleetEntry("A100-80GB", layouts=(("1g.20gb",),)))
    request = PlanRequest(fleet, (chat(demand_rps=1000.0),))
    fast, slow = (workflow.plan(replace(request, gpus=(entry,))) for entry in fleet)
    plan = workflow.plan(request)
    assert [tenant.model for gpu, _, tenant in tenants_on(plan.gpus) if gpu.type == H100] == ["chat"]
    assert plan.status == "feasible" and plan.objective.value == fast.objective.value
    assert plan.objective.bound == pytest.approx(fast.objective.value + slow.objective.value)


def test_a_file_keeps_the_llm_and_not_its_points_and_the_fingerprint_stays():
    request = PlanRequest((HALVES,), (chat(),))
    resolved = workflow.with_engine_points(request)
    assert len(resolved.models[0].points) == 2 and not request.models[0].points
    text = write_text(resolved)
    assert "variants" not in json.loads(text)["models"][0]
    assert read_text(text)[1] == request
    assert request_hash(resolved) == request_hash(request)


def test_a_measured_point_counts_before_the_estimate_and_one_beyond_a_limit_does_not():
    measured = LlmPoint(H100, "4g.40gb", 20.0, 1, 400.0, 40.0, "measured")
    for point, basis in ((measured, "measured"), (replace(measured, ttft_ms=600.0), "estimated")):
        resolved = workflow.with_engine_points(
            PlanRequest((HALVES,), (chat(replace(VARIED, points=(point,))),))
        )
        (large,) = (item for item in resolved.models[0].points if item.profile == "4g.40gb")
        assert large.basis == basis
        assert (large.throughput_rps == 20.0) is (basis == "measured")


def test_points_alone_stand_for_the_simulation():
    llm = replace(LLM, config=None, points=(LlmPoint(H100, "3g.40gb", 4.0, 1, 410.0, 45.0, "measured"),))
    plan = workflow.plan(PlanRequest((HALVES,), (chat(llm, demand_rps=2.0),)))
    (model,) = plan.models
    assert (plan.status, model.throughput_rps) == ("optimal", 4.0)
    assert (model.ttft_ms.value, model.ttft_ms.low, model.tpot_ms.value) == (410.0, None, 45.0)


def test_a_limit_below_one_request_alone_is_infeasible_with_the_least_that_works():
    def planned(limit):
        llm = replace(VARIED, max_tpot_ms=limit)
        return workflow.plan(PlanRequest((HALVES,), (chat(llm, min_throughput_rps=0.01, demand_rps=0.01),)))

    refused = planned(1.0)
    ((demand,),) = (conflict.demands for conflict in refused.conflicts)
    assert (refused.status, demand.demand, demand.model) == ("infeasible", "max_tpot_ms", "chat")
    message = refused.conflicts[0].message
    least = float(message.split("is below the ")[1].split(" ms")[0])
    assert planned(0.95 * least).status == "infeasible"
    assert planned(1.05 * least).status == "optimal"


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (
            [FleetEntry(H100, count=2, mig=False, node="a"), FleetEntry(H100, count=3, mig=False, node="b")],
            f"3 × {H100} on node b, 2 × {H100} on node a",
        ),
        ([FleetEntry(H100, mig=False), FleetEntry("A100-80GB", mig=False)], f"1 × {H100}, 1 × A100-80GB"),
        ([FleetEntry(H100, count=4)], "none may be without MIG"),
    ],
    ids=["two nodes", "two types", "all cut"],
)
def test_a_group_over_two_nodes_or_types_is_refused_with_what_there_is(gpus, words):
    request = PlanRequest(tuple(gpus), (chat(replace(LLM, tensor_parallel=(4,))),))
    with pytest.raises(InputFault, match="take 4 GPUs without MIG of one type on one node") as caught:
        workflow.plan(request)
    assert words in str(caught.value)

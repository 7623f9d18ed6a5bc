"""Plans with engines as manual plans and as starts of what-ifs: the same figures, and a broken group is a fault."""

from dataclasses import replace

import pytest

from tests.engine_plans.test_rates import LLM
from torchsplit_core import workflow
from torchsplit_core.planning import plan as plain
from torchsplit_core.planning.manual.evaluate import evaluate, from_plan
from torchsplit_core.planning.manual.tenants import tenants_for
from torchsplit_core.planning.manual.what_if import better_start, plan_with_starts
from torchsplit_core.values import EnginePoint, FleetEntry, PlanModel, PlanRequest, Stage, Variant
from torchsplit_core.values.plan.llm import PlannedEngine

H100 = "H100-SXM5-80GB"


def point(profile: str, rate_rps: float, gpus: int = 1) -> EnginePoint:
    engine = PlannedEngine(gpus, None, 1000, 16, 64, 2048, 8192, True, (1.0, 0.01, 0.1, 0.0, 0.0))
    return EnginePoint(
        H100, profile, 64, rate_rps, 1.0, memory_gib=20.0, low_rps=0.8 * rate_rps, high_rps=1.2 * rate_rps,
        engine=engine,
    )  # fmt: skip


def request(*points: EnginePoint, count: int = 2) -> PlanRequest:
    model = PlanModel(
        "chat", llm=LLM, variants=(Variant("whole", (Stage("whole", points),)),), demand_rps=5.0
    )
    return PlanRequest((FleetEntry(H100, count=count, mig="either"),), (model,))


@pytest.mark.parametrize(
    "points",
    [
        (point("3g.40gb", 4.0), point("4g.40gb", 5.0)),
        (point("", 12.0),),
        (point("", 30.0, 2), point("", 5.0)),
    ],
    ids=["slices", "whole GPUs", "a group"],
)
def test_a_plan_with_engines_is_the_same_by_hand_and_as_a_start(points):
    asked = request(*points)
    outcome = plain(asked)
    by_hand = evaluate(asked, from_plan(outcome), outcome)
    assert not by_hand.faults and by_hand.outcome is not None
    assert by_hand.outcome.gpus == outcome.gpus and by_hand.objective.value == outcome.objective.value
    more = replace(asked, models=(replace(asked.models[0], demand_rps=6.0),))
    quick = plan_with_starts(more, (outcome,), 0.2)
    assert quick.gpus and quick.objective.value == pytest.approx(outcome.objective.value * 5 / 6)
    worse = replace(quick, status="timeout", gpus=(), models=())
    started = better_start(more, worse, outcome)
    assert started.gpus == outcome.gpus


def test_a_group_without_one_of_its_gpus_is_a_fault_and_no_traceback():
    asked = request(point("", 30.0, 2))
    gpus = from_plan(plain(asked))
    assert [gpu.slices[0].tenants[0].group for gpu in gpus] == ["group0", "group0"]
    broken = evaluate(asked, gpus[:1])
    assert broken.outcome is None and "its engine takes 2" in " ".join(
        fault.problem for fault in broken.faults
    )
    smaller = request(point("", 30.0, 2), count=1)
    assert (
        better_start(smaller, plain(smaller), plain(asked)).objective.value == plain(smaller).objective.value
    )


def test_what_may_be_set_on_a_gpu_by_hand_is_an_engine_of_one():
    asked = request(point("", 30.0, 2), point("", 5.0))
    empty = replace(plain(asked), gpus=())
    (tenant,) = tenants_for(empty, asked, H100, "")["chat"]
    assert tenant.engine is not None and tenant.gpus == 1 and tenant.throughput_rps == 5.0


@pytest.mark.repeated
def test_a_draft_of_another_fleet_starts_from_the_plan_of_an_llm():
    llm = replace(LLM, tensor_parallel=(1, 2))
    asked = PlanRequest(
        (FleetEntry(H100, count=2, mig="either"),), (PlanModel("chat", llm=llm, demand_rps=50.0),)
    )
    resolved = workflow.with_engine_points(asked)
    outcome = plain(resolved)
    larger = workflow.with_engine_points(replace(asked, gpus=(FleetEntry(H100, count=3, mig="either"),)))
    assert evaluate(larger, from_plan(outcome)).faults == ()

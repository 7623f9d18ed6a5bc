"""Engines on cores: measured points beside batch models, and what is said of a number of cores without one."""

import random
from dataclasses import replace

import pytest

from tests.support.planning.oracle import best_plan, levels_of
from tests.support.seeds import in_blocks
from torchsplit_core import workflow
from torchsplit_core.engine_plans.engine_planner import verify_with_engines
from torchsplit_core.files import read_text, write_text
from torchsplit_core.llm.published import published_decoder
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import (
    ConstantTokens,
    FleetEntry,
    InputFault,
    LlmModel,
    LlmPoint,
    PlanModel,
    PlannedEngine,
    PlanRequest,
    Point,
    Stage,
    StepLine,
    Variant,
    tenants_on,
)

LINE = StepLine(3.0, 0.05, 0.3, 0.0002)
ENGINE = PlannedEngine(1, None, 1024, 16, 32, 512, 512, False, (LINE,))
POINT = LlmPoint("CPU", "1c", 4.0, 1, 60.0, 8.0, engine=ENGINE)
CHAT = LlmModel(
    None, ConstantTokens(100), ConstantTokens(40), max_ttft_ms=200.0, max_tpot_ms=20.0, points=(POINT,)
)


def asked(llm, fleet="CPU-4c", **changes):
    return PlanRequest((FleetEntry(fleet),), (PlanModel("chat", llm=llm, **changes),))


def drawn(seed):
    """An LLM and a batch model with points on some numbers of cores of one or two hosts."""
    rng = random.Random(f"cores {seed}")
    counts = rng.sample((1, 2, 3), rng.choice((1, 2)))
    points = tuple(LlmPoint("CPU", f"{count}c", rng.uniform(1, 4) * count, 1, 60.0, 8.0) for count in counts)
    batch = tuple(
        Point("CPU", f"{count}c", 4, rng.uniform(20, 40) * count, 5.0, memory_gib=0.1)
        for count in rng.sample((1, 2, 4), rng.choice((1, 2)))
    )
    least = rng.choice((None, None, rng.uniform(1, 6)))
    models = (
        PlanModel(
            "chat",
            llm=replace(CHAT, points=points),
            demand_rps=rng.uniform(2, 10),
            min_throughput_rps=least,
        ),
        PlanModel("bert", (Variant("whole", (Stage("whole", batch),)),), demand_rps=rng.uniform(20, 90)),
    )
    hosts = (FleetEntry(f"CPU-{rng.choice((3, 4, 5))}c"), FleetEntry("CPU-2c"))
    return PlanRequest(hosts[: rng.choice((1, 2))], models)


@in_blocks("seed", range(60), kept=30)
def test_plans_with_engines_on_cores_equal_every_plan_looked_at(seed):
    request = drawn(seed)
    best = best_plan(workflow.with_engine_points(request))
    plan = workflow.plan(request)
    assert plan.status == ("infeasible" if best is None else "optimal")
    if best is not None:
        verify_with_engines(request, plan)
        assert levels_of(request, plan) == pytest.approx(best[0], rel=1e-6, abs=1e-9)


def test_a_point_is_planned_with_its_engine_and_simulated_by_its_steps():
    sizes = published_decoder("llama-3.1-8b")
    alone, simulated = (workflow.plan(asked(replace(CHAT, config=config))) for config in (None, sizes))
    for plan, steps in ((alone, None), (simulated, (LINE,))):
        tenants = [tenant for *_, tenant in tenants_on(plan.gpus)]
        assert [(tenant.throughput_rps, tenant.basis) for tenant in tenants] == [(4.0, "measured")] * 4
        assert {tenant.engine for tenant in tenants} == {replace(ENGINE, step=steps)}
        assert {tenant.batch_size for tenant in tenants} == {32}
    # Of the point, against a simulation of one request/s: 100 prompt tokens in one step, and one sequence a step.
    assert alone.models[0].ttft_ms.value == 60.0
    assert simulated.models[0].ttft_ms.p50 == pytest.approx(8.0)
    assert simulated.models[0].tpot_ms.p50 == pytest.approx(3.324, abs=0.01)


def test_steps_that_do_not_keep_the_measured_rate_are_scaled_and_others_are_not():
    sizes = published_decoder("llama-3.1-8b")
    (slow,) = workflow.with_engine_points(
        asked(replace(CHAT, config=sizes, points=(replace(POINT, throughput_rps=90.0),)))
    ).models[0].points  # fmt: skip
    assert slow.engine.step[0].base_ms < LINE.base_ms and slow.throughput_rps == 90.0
    plan = workflow.plan(
        asked(replace(CHAT, config=sizes, points=(replace(POINT, throughput_rps=90.0),)), "CPU-1c")
    )
    assert plan.status == "optimal" and plan.models[0].throughput_rps == 90.0


def test_a_file_has_the_engine_of_a_point_and_none_where_there_is_none():
    request = asked(CHAT)
    assert read_text(write_text(request))[1] == request
    bare = asked(replace(CHAT, points=(replace(POINT, engine=None),)))
    assert '"engine"' not in write_text(bare).partition('"points"')[2]
    assert request_hash(bare) != request_hash(request)


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (replace(POINT, profile="8c"), "no engine on CPU-4c: engines on cores are not estimated"),
        (replace(POINT, ttft_ms=300.0), "no engine on CPU 1c: its point breaks a limit"),
        (replace(POINT, gpu_type="A30-24GB", profile="4g.24gb"), "no engine on CPU-4c: engines on cores are"),
    ],
)
def test_cores_without_a_point_have_no_engine_whatever_the_sizes(point, words):
    llm = replace(CHAT, config=published_decoder("llama-3.1-8b"), points=(point,))
    with pytest.raises(InputFault, match=words) as fault:
        workflow.plan(asked(llm))
    assert "torchsplit profile-llm" in fault.value.remedy

"""Rates of an LLM's engines: longer simulations keep the limits at them, and limits that no engine keeps are named."""

from dataclasses import replace

import pytest

from tests.support.seeds import repeated
from torchsplit_core import workflow
from torchsplit_core.engine_plans.engine_check import check_model
from torchsplit_core.engine_plans.engine_figures import (
    EnginePlace,
    engine_requests,
    engine_server,
    estimated_point,
)
from torchsplit_core.llm.published import published_decoder
from torchsplit_core.simulation import simulate
from torchsplit_core.values import (
    ConstantTokens,
    EnginePoint,
    FleetEntry,
    InputFault,
    LlmModel,
    LognormalTokens,
    PlanModel,
    PlanRequest,
    PoissonArrivals,
)

LLM = LlmModel(
    published_decoder("Llama-3.1-8B"),
    ConstantTokens(512),
    ConstantTokens(128),
    max_ttft_ms=500.0,
    max_tpot_ms=50.0,
)
VARIED = replace(LLM, output_tokens=LognormalTokens(128.0, 0.6))
FLEET = (FleetEntry("H100-SXM5-80GB", count=2),)


def point_of(llm, place):
    assert llm.config is not None
    point = estimated_point(llm.config, llm.engine, engine_requests(llm, 0), place)
    assert isinstance(point, EnginePoint)
    return point


@repeated(
    ("llm", "place"),
    [
        (LLM, EnginePlace("H100-SXM5-80GB", "", 2)),
        (LLM, EnginePlace("A100-80GB", "7g.80gb")),
        (VARIED, EnginePlace("H100-SXM5-80GB", "1g.20gb")),
    ],
    kept=2,
    ids=["near its capacity", "near its time per token", "short of blocks"],
)
def test_a_longer_simulation_of_other_draws_keeps_the_limits_at_an_engines_rate(llm, place):
    point = point_of(llm, place)
    request = engine_requests(llm, 0).simulation("llm", (engine_server("llm", point.engine),), 8000)
    model = replace(request.models[0], arrivals=PoissonArrivals(point.throughput_rps))
    (load,) = simulate(replace(request, models=(model,), replications=4, seed=7)).models
    assert load.ttft_ms.p95 is not None
    assert load.ttft_ms.p95 <= llm.max_ttft_ms
    assert load.tpot_ms.p95 <= llm.max_tpot_ms


@pytest.mark.parametrize("llm", [LLM, VARIED, replace(LLM, max_ttft_ms=None)])
def test_an_engine_alone_passes_the_plans_check_at_its_rate(llm):
    point = point_of(llm, EnginePlace("H100-SXM5-80GB", "3g.40gb"))
    request = PlanRequest(FLEET, (PlanModel("chat", llm=llm),))
    checked = check_model(request, request.models[0], (point.engine,), point.throughput_rps)
    assert checked.broken == ()
    assert checked.tpot_ms is not None


def test_an_llm_that_fits_nowhere_is_refused_with_what_it_lacks():
    large = replace(LLM, config=published_decoder("Llama-3.1-70B"))
    with pytest.raises(InputFault, match=r"no engine fits on this fleet\. chat: .*weights of 131 GiB"):
        workflow.plan(PlanRequest(FLEET, (PlanModel("chat", llm=large),)))


def test_without_any_engine_within_the_limits_the_least_limit_is_named_with_or_without_a_minimum():
    tight = PlanModel("chat", demand_rps=5.0, llm=replace(LLM, max_ttft_ms=2.0))
    for model in (tight, replace(tight, min_throughput_rps=1.0)):
        outcome = workflow.plan(PlanRequest(FLEET, (model,)))
        assert outcome.status == "infeasible"
        (conflict,) = outcome.conflicts
        assert conflict.demands[0].demand == "max_ttft_ms"
        assert "max_ttft_ms 2 is below the" in conflict.message

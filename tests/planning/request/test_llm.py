"""LLMs of a request: what is refused, and how."""

from dataclasses import replace

import pytest

from torchsplit_core.planning.request.validate import validate
from torchsplit_core.values import (
    ConstantTokens,
    FleetEntry,
    InputFault,
    ListedTokens,
    LlmModel,
    LlmPoint,
    LognormalTokens,
    PlanModel,
    PlannedEngine,
    PlanRequest,
    Point,
    Stage,
    StepLine,
    TraceArrivals,
    Variant,
)
from torchsplit_core.values.llm.decoder import DecoderSizes
from torchsplit_core.values.plan.llm import LlmEngineOptions

SIZES = DecoderSizes(32, 4096, 14336, 32, 8, 128, 128256, max_model_len=8192)
CHAT = LlmModel(SIZES, ConstantTokens(512), ConstantTokens(128), max_ttft_ms=500.0, max_tpot_ms=40.0)
MEASURED = LlmPoint("H100-SXM5-80GB", "", 9.0, 2, ttft_ms=100.0, tpot_ms=20.0)


ENGINE = PlannedEngine(1, None, 1024, 16, 32, 512, 2048, False, (StepLine(3.0),))
ON_CORES = LlmPoint("CPU", "4c", 2.0, 1, 100.0, 20.0, engine=ENGINE)


def with_engine(**changes):
    return replace(ON_CORES, engine=replace(ENGINE, **changes))


def asked(llm, **changes):
    return PlanRequest(
        (FleetEntry("H100-SXM5-80GB", count=4, mig="either"),), (PlanModel("chat", llm=llm, **changes),)
    )


def test_an_llm_in_place_of_variants_is_valid():
    validate(asked(CHAT))
    validate(asked(replace(CHAT, points=(MEASURED, replace(MEASURED, profile="3g.40gb", tensor_parallel=1)))))
    validate(asked(LlmModel(None, points=(MEASURED,))))
    validate(asked(replace(CHAT, points=(MEASURED, ON_CORES, replace(ON_CORES, profile="8c", engine=None)))))


@pytest.mark.parametrize(
    ("llm", "said"),
    [
        (LlmModel(None), "neither config nor points"),
        (replace(CHAT, output_tokens=None), r"output_tokens: is missing"),
        (replace(CHAT, tensor_parallel=(3,)), "has 3, and engines take 1, 2, 4 or 8 GPUs"),
        (replace(CHAT, tensor_parallel=()), "tensor_parallel: is empty"),
        (replace(CHAT, max_tpot_ms=0.0), "max_tpot_ms: is 0"),
        (replace(CHAT, engine=LlmEngineOptions(gpu_memory_utilization=1.5)), "is 1.5, not a share"),
        (
            replace(CHAT, points=(replace(MEASURED, ttft_ms=None),)),
            r"points\[0\].ttft_ms: is missing, and max_ttft_ms",
        ),
        (replace(CHAT, points=(replace(MEASURED, profile="3g.40gb"),)), "groups are of GPUs without MIG"),
        (replace(CHAT, points=(replace(MEASURED, profile="3g.20gb"),)), "unknown profile '3g.20gb'"),
        (replace(CHAT, points=(replace(MEASURED, gpu_type="H100"),)), "unknown GPU type 'H100'"),
        (replace(CHAT, points=(MEASURED, MEASURED)), r"points\[1\]: is of the same"),
        (
            replace(CHAT, points=(replace(ON_CORES, profile="1g"),)),
            "'1g' is not a number of cores, 1c to 512c",
        ),
        (replace(CHAT, points=(replace(ON_CORES, profile=""),)), "'whole GPU' is not a number of cores"),
        (replace(CHAT, points=(replace(ON_CORES, gpu_type="CPU-8c"),)), "which is a host. Write CPU"),
        (replace(CHAT, points=(replace(ON_CORES, tensor_parallel=2),)), "is of 1 GPUs in the group None"),
        (
            replace(CHAT, points=(with_engine(kv_blocks=None),)),
            r"engine.kv_blocks: is missing, and its steps",
        ),
        (replace(CHAT, points=(with_engine(step=(StepLine(0.0),)),)), r"engine.step: takes no time"),
        (
            replace(CHAT, points=(with_engine(group="pair"),)),
            "in the group 'pair', and the point of 1 in none",
        ),
    ],
)
def test_what_is_wrong_with_an_llm_is_named(llm, said):
    with pytest.raises(InputFault, match=said):
        validate(asked(llm))


@pytest.mark.parametrize(
    ("llm", "said"),
    [
        (replace(CHAT, prompt_tokens=ConstantTokens(0)), "llm.prompt_tokens.value: is 0"),
        (replace(CHAT, output_tokens=ListedTokens((5, 0))), r"llm.output_tokens.values\[1\]: is 0"),
        (replace(CHAT, cached_prompt_tokens=ConstantTokens(-1)), "cached_prompt_tokens.value: is -1"),
        (replace(CHAT, output_tokens=LognormalTokens(128.0, 0.0)), "llm.output_tokens.cv: is 0"),
        (replace(CHAT, prompt_tokens=ConstantTokens(8065)), "requests of 8,193 tokens, and llm.config"),
        (replace(CHAT, engine=LlmEngineOptions(max_model_len=600)), "requests of 640 tokens, and llm.engine"),
        (replace(CHAT, arrivals=TraceArrivals((1.0,))), "llm.arrivals: have one time alone"),
        (replace(CHAT, arrivals=TraceArrivals((2.0, 2.0))), "llm.arrivals: have one time alone"),
    ],
)
def test_requests_that_no_engine_could_take_are_named(llm, said):
    with pytest.raises(InputFault, match=said):
        validate(asked(llm))


def test_listed_lengths_meet_by_their_index():
    # Of 4 prompts and 2 outputs the long ones never meet; of 3 prompts and 2 outputs all do.
    apart = replace(
        CHAT, prompt_tokens=ListedTokens((8000, 10, 100, 10)), output_tokens=ListedTokens((100, 8000))
    )
    validate(asked(apart))
    with pytest.raises(InputFault, match="requests of 16,000 tokens"):
        validate(asked(replace(apart, prompt_tokens=ListedTokens((8000, 10, 10)))))
    validate(
        asked(
            replace(CHAT, prompt_tokens=LognormalTokens(9000.0, 0.5), cached_prompt_tokens=ConstantTokens(0))
        )
    )


def test_limits_of_other_models_are_not_those_of_an_llm():
    for name in ("max_latency_ms", "max_response_ms"):
        with pytest.raises(
            InputFault, match=rf"{name}: is given, and the model is an LLM. Give llm.max_ttft_ms"
        ):
            validate(asked(CHAT, **{name: 100.0}))
    point = Point("H100-SXM5-80GB", "", 1, 1.0, 1.0)
    with pytest.raises(InputFault, match="has both variants and llm"):
        validate(asked(CHAT, variants=(Variant("whole", (Stage("whole", (point,)),)),)))
    with pytest.raises(InputFault, match="has no variant"):
        validate(PlanRequest((FleetEntry("H100-SXM5-80GB"),), (PlanModel("bert"),)))


def test_an_llm_shares_no_slice():
    with pytest.raises(InputFault, match="the LLM chat has its slices to itself"):
        validate(replace(asked(CHAT), sharing="fractional"))

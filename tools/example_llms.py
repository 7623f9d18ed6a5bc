"""Plan requests of examples/llm: chats, encoders and vision models on one fleet, 70B on groups, four LLMs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchsplit_core.llm.published import published_decoder
from torchsplit_core.profiling.library import mix_request
from torchsplit_core.values import (
    FleetEntry,
    LlmModel,
    LognormalTokens,
    PlanModel,
    PlanRequest,
    SolverOptions,
    Stage,
    Variant,
)
from torchsplit_core.workflow import with_estimated_points

H100 = "H100-SXM5-80GB"
VISION = ("bert", "resnet50", "inceptionv3", "mobilenetv2")
"""Models of the measured mix beside the chat model of the door."""


def _llm(
    name: str,
    decoder: str,
    rate_rps: float,
    prompt: float,
    output: float,
    ttft_ms: float,
    tpot_ms: float,
    source: str,
) -> PlanModel:
    llm = LlmModel(
        published_decoder(decoder), LognormalTokens(prompt, 0.6), LognormalTokens(output, 0.6),
        max_ttft_ms=ttft_ms, max_tpot_ms=tpot_ms,
    )  # fmt: skip
    return PlanModel(name, demand_rps=rate_rps, llm=llm, source=source)


CHAT = _llm("chat", "llama-3.1-8b", 20.0, 1024.0, 256.0, 500.0, 50.0, "hf:meta-llama/Llama-3.1-8B-Instruct")


def _on(model: PlanModel, kind: str) -> PlanModel:
    """The model with its points on one GPU type alone."""

    def only(stage: Stage) -> Stage:
        return replace(stage, points=tuple(point for point in stage.points if point.gpu_type == kind))

    variants: tuple[Variant, ...] = tuple(
        replace(variant, stages=tuple(map(only, variant.stages))) for variant in model.variants
    )
    return replace(model, variants=variants)


def llm_requests() -> Mapping[str, PlanRequest]:
    """The requests by the names of their files."""
    mix = mix_request("S3")
    measured = tuple(replace(model, source=f"library:{model.name}") for model in mix.models)
    few = tuple(model for model in measured if model.name in VISION)
    on_h100, _ = with_estimated_points(PlanRequest((FleetEntry(H100),), few), (H100,))
    twenty_s = SolverOptions(20.0)
    either = FleetEntry(H100, count=4, node="host", mig="either")
    large = _llm(
        "large", "llama-3.1-70b", 2.0, 1500.0, 300.0, 2000.0, 60.0, "hf:meta-llama/Llama-3.1-70B-Instruct"
    )
    four = (
        CHAT,
        _llm("code", "qwen2.5-7b", 6.0, 2048.0, 128.0, 350.0, 30.0, "hf:Qwen/Qwen2.5-Coder-7B-Instruct"),
        _llm(
            "summary",
            "mistral-nemo-12b",
            2.0,
            4096.0,
            256.0,
            2000.0,
            80.0,
            "hf:mistralai/Mistral-Nemo-Instruct-2407",
        ),
        large,
    )
    return {
        "chat_and_vision": PlanRequest(
            (either,), (CHAT, *(_on(model, H100) for model in on_h100.models)), solver=twenty_s
        ),
        "chat_beside_measured_mix": PlanRequest(
            (FleetEntry("A100-80GB", count=8, node="host", mig="either"),), (CHAT, *measured), solver=twenty_s
        ),
        "70b_on_groups": PlanRequest(
            (FleetEntry(H100, count=8, node="host", mig=False),),
            (replace(large, demand_rps=10.0),),
            solver=twenty_s,
        ),
        "four_llms": PlanRequest((replace(either, count=8),), four, solver=twenty_s),
    }

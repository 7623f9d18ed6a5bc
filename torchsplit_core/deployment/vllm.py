"""The engines of LLMs as vLLM servers: image, entry point and arguments. Untested on hardware."""

from __future__ import annotations

from torchsplit_core.values import PlanModel, Tenant

IMAGE = "vllm/vllm-openai:v0.28.0"
ENTRY_POINT = ("vllm", "serve")
"""Named, since which entry point the image has, and how it takes the model, changed between versions."""
READY_PATH, LIVE_PATH, METRICS_PATH = "/v1/models", "/health", "/metrics"
"""The models are listed once the weights are loaded; /health answers earlier."""
STARTUP_S = 1800
"""Most seconds until an engine has loaded its weights."""
UNKNOWN_MODEL = "SET-ME/{name}"
"""Of an LLM whose source the request does not name."""
NOT_MODELLED = "speculative decoding, LoRA, prefill apart from decode, groups of GPUs over several nodes"


def model_id(model: PlanModel) -> str | None:
    """What vLLM loads: `hf:ORG/NAME` as ORG/NAME, or a folder; None where the request has no source."""
    source = model.source
    if source is None or source.startswith(("library:", "import:")):
        return None
    return source.removeprefix("hf:")


def arguments(model: PlanModel, tenant: Tenant, port: int) -> tuple[str, ...]:
    """Arguments of `vllm serve` for the engine of a tenant."""
    llm, engine = model.llm, tenant.engine
    assert llm is not None
    assert engine is not None
    options: dict[str, object] = {
        "served-model-name": model.name,
        "port": port,
        "tensor-parallel-size": engine.tensor_parallel,
        "max-num-seqs": engine.max_num_seqs,
        "max-num-batched-tokens": engine.max_num_batched_tokens,
        "gpu-memory-utilization": f"{llm.engine.gpu_memory_utilization:g}",
        "block-size": engine.block_tokens,
    }
    longest = llm.engine.max_model_len or engine.max_model_len
    if longest is not None:
        options["max-model-len"] = longest
    if llm.config is not None and llm.config.kv_dtype == "fp8":
        options["kv-cache-dtype"] = "fp8"
    texts = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return (model_id(model) or UNKNOWN_MODEL.format(name=model.name), *texts)

"""The engines of LLMs as vLLM servers: image, entry point and arguments. Untested on hardware."""

from __future__ import annotations

from torchsplit_core.values import PlanModel, Tenant

IMAGE = "vllm/vllm-openai:v0.28.0"
ENTRY_POINT = ("vllm", "serve")
"""Named, since which entry point the image has, and how it takes the model, changed between versions."""
STARTED_PATH, HEALTH_PATH = "/v1/models", "/health"
"""The first lists the model once its weights are loaded; the second fails once the engine has died."""
STARTUP_S = 1800
"""Most seconds until an engine has loaded its weights."""
UNKNOWN_MODEL = "SET-ME/{name}"
"""Of an LLM whose source the request does not name."""
TOKEN = "HF_TOKEN"
"""The variable with the reader's token for models that Hugging Face gives to some only."""
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""vLLM's names. A quantised checkpoint says itself what it is."""
_FRONT_CORES = 2
"""Cores of an engine's front and scheduler, beside one for each GPU, as vLLM's documentation counts them."""
NOT_MODELLED = "speculative decoding, LoRA, prefill apart from decode, groups of GPUs over several nodes"


def model_id(model: PlanModel) -> str | None:
    """What vLLM loads: `hf:ORG/NAME` as ORG/NAME, or the full path of a folder; None where the source is neither."""
    source = model.source or ""
    return source.removeprefix("hf:") if source.startswith("hf:") else model_folder(model)


def model_folder(model: PlanModel) -> str | None:
    """The folder with the model, which a container needs at the same path; None of a model by name."""
    source = model.source or ""
    return source if source.startswith("/") else None


def cores(tenant: Tenant) -> int:
    """Cores that the engine of a tenant keeps busy."""
    return tenant.gpus + _FRONT_CORES


def options(model: PlanModel, tenant: Tenant) -> dict[str, int | float | str]:
    """What vLLM is given of the engine of a tenant, by the names of its options."""
    llm, engine = model.llm, tenant.engine
    assert llm is not None
    assert engine is not None
    given: dict[str, int | float | str] = {
        "tensor-parallel-size": engine.tensor_parallel,
        "max-num-seqs": engine.max_num_seqs,
        "max-num-batched-tokens": engine.max_num_batched_tokens,
        "gpu-memory-utilization": llm.engine.gpu_memory_utilization,
    }
    longest = llm.engine.max_model_len or engine.max_model_len
    if longest is not None:
        given["max-model-len"] = longest
    if llm.config is not None and llm.config.dtype in _DTYPES:
        given["dtype"] = _DTYPES[llm.config.dtype]
    if llm.config is not None and llm.config.kv_dtype == "fp8":
        given["kv-cache-dtype"] = "fp8"
    return given


def arguments(model: PlanModel, tenant: Tenant, port: int) -> tuple[str, ...]:
    """Arguments of `vllm serve` for the engine of a tenant."""
    named: dict[str, object] = {"served-model-name": model.name, "port": port, **options(model, tenant)}
    texts = [text for name, value in named.items() for text in (f"--{name}", f"{value}")]
    return (model_id(model) or UNKNOWN_MODEL.format(name=model.name), *texts)

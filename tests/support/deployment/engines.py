"""A plan with engines of LLMs: one on a slice, one on two GPUs without MIG, beside an encoder on slices."""

from dataclasses import replace
from typing import Any

from tests.support.deployment.asked import Asked, asked
from tests.support.deployment.helpers import plan_of, planned_gpu, tenant
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import WHOLE_GPU, Tenant
from torchsplit_core.values.llm.decoder import DecoderSizes
from torchsplit_core.values.plan.llm import LlmModel, PlannedEngine
from torchsplit_core.values.simulation.engine import ConstantTokens

SIZES = DecoderSizes(32, 4096, 14336, 32, 8, 128, 128256)
CHAT = "hf:meta-llama/Llama-3.1-8B-Instruct"


def engine_tenant(model: str, group: str | None = None, gpus: int = 1) -> Tenant:
    engine = PlannedEngine(gpus, group, 9000, 16, 96, 4096, 8192, True, None)
    return tenant(model, batch_size=96, throughput_rps=6.0 / gpus, memory_gib=36.0, engine=engine)


def with_engines(source: str | None = CHAT, config: DecoderSizes | None = SIZES, **changes: Any) -> Asked:
    """`chat` on a slice of n/gpu0 and on n/gpu2 with n/gpu3, `bert` on slices of n/gpu0 and n/gpu1."""
    member = engine_tenant("chat", "pair", 2)
    pair = [
        replace(planned_gpu(name, "H100-SXM5-80GB", [(WHOLE_GPU, 0, member)]), mig=False, group="pair")
        for name in ("n/gpu2", "n/gpu3")
    ]
    plan = plan_of(
        planned_gpu(
            "n/gpu0", "H100-SXM5-80GB", [("3g.40gb", 0, engine_tenant("chat")), ("1g.10gb", 4, "bert")]
        ),
        planned_gpu("n/gpu1", "H100-SXM5-80GB", [("2g.20gb", 0, "bert")]),
        *pair,
    )
    requested = asked(plan)
    llm = LlmModel(config, ConstantTokens(512), ConstantTokens(128), max_ttft_ms=500.0, max_tpot_ms=50.0)
    models = tuple(
        replace(model, variants=(), source=source, llm=replace(llm, **changes))
        if model.name == "chat"
        else model
        for model in requested.request.models
    )
    request = replace(requested.request, models=models)
    return Asked(replace(plan, request_sha256=request_hash(request)), request, requested.manifests)

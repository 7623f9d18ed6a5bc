"""Plans of an LLM's engines on cores, and the smallest decoder that serves them."""

import json
from dataclasses import replace
from pathlib import Path

from torchsplit_core import workflow
from torchsplit_core.values import (
    ConstantTokens,
    FleetEntry,
    LlmModel,
    LlmPoint,
    PlanModel,
    PlannedEngine,
    PlanOutcome,
    PlanRequest,
    StepLine,
)
from torchsplit_core.values.llm.decoder import DecoderSizes

DECODER = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 300,
    "max_position_embeddings": 512, "torch_dtype": "bfloat16",
}  # fmt: skip
SIZES = DecoderSizes(2, 32, 64, 2, 1, 16, 300, max_model_len=512)
LINE = StepLine(2.0, 0.05, 0.1)
ENGINE = PlannedEngine(1, None, 64, 16, 4, 64, 512, False, (LINE,))
POINT = LlmPoint("CPU", "1c", 8.0, 1, 60.0, 9.0, engine=ENGINE)
LLM = LlmModel(
    SIZES, ConstantTokens(30), ConstantTokens(6), max_ttft_ms=200.0, max_tpot_ms=50.0, points=(POINT,)
)


def decoder_in(folder: Path) -> str:
    """The path of its config.json, written there."""
    path = folder / "config.json"
    path.write_text(json.dumps(DECODER))
    return str(path)


def llm_plan(
    source: str | None, *, cores: int = 2, demand_rps: float = 12.0, config: bool = True
) -> tuple[PlanOutcome, PlanRequest]:
    """`chat` on each core of a host, and the request."""
    llm = LLM if config else replace(LLM, config=None)
    model = PlanModel("chat", demand_rps=demand_rps, source=source, llm=llm)
    request = PlanRequest((FleetEntry(f"CPU-{cores}c", id="host0"),), (model,))
    return workflow.plan(request), request

"""LLMs from their sizes: config.json, the memory of an engine, the times of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.llm.config import read_config
    from torchsplit_core.llm.constants import EngineConstants
    from torchsplit_core.llm.device import EngineDevice, check_parallel, engine_device
    from torchsplit_core.llm.memory import EngineMemory, engine_memory
    from torchsplit_core.llm.published import decoder_names, published_decoder, quantized
    from torchsplit_core.llm.step_times import EngineStepEstimate, step_estimate, step_lines

__all__ = [
    "EngineConstants",
    "EngineDevice",
    "EngineMemory",
    "EngineStepEstimate",
    "check_parallel",
    "decoder_names",
    "engine_device",
    "engine_memory",
    "published_decoder",
    "quantized",
    "read_config",
    "step_estimate",
    "step_lines",
]

__getattr__ = on_demand(
    __name__,
    {
        "config": "read_config",
        "constants": "EngineConstants",
        "device": "EngineDevice check_parallel engine_device",
        "memory": "EngineMemory engine_memory",
        "published": "decoder_names published_decoder quantized",
        "step_times": "EngineStepEstimate step_estimate step_lines",
    },
)

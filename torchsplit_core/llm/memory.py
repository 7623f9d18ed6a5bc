"""The memory of an engine, in vLLM's four parts: weights, activations, its own, and the blocks of its KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchsplit_core.llm.constants import EngineConstants
from torchsplit_core.llm.device import EngineDevice
from torchsplit_core.values.llm.decoder import BYTES_OF_TYPE, DecoderSizes
from torchsplit_core.values.units import GIB

UTILIZATION = 0.9
"""vLLM's gpu_memory_utilization where it is not given."""
BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """GiB of one GPU of the engine's; `kv_gib` is below 0 where the others do not fit."""

    total_gib: float
    weights_gib: float
    activations_gib: float
    engine_gib: float
    kv_gib: float
    kv_blocks: int
    """Blocks that requests can use; vLLM keeps one more, which nothing uses. 0 where nothing is left."""

    @property
    def fits(self) -> bool:
        return self.kv_blocks > 0


def engine_memory(
    sizes: DecoderSizes,
    device: EngineDevice,
    *,
    max_num_seqs: int = 128,
    max_num_batched_tokens: int = 2048,
    gpu_memory_utilization: float = UTILIZATION,
    block_tokens: int = BLOCK_TOKENS,
    expert_gpus: int | None = None,
    constants: EngineConstants | None = None,
) -> EngineMemory:
    """The parts as vLLM's profiling step finds them: the keys have what the others leave of
    gpu_memory_utilization · memory. `expert_gpus`: GPUs over which experts are spread (default: tensor_parallel).
    """
    constants = constants or EngineConstants()
    total = device.memory_gib * gpu_memory_utilization
    weights = weight_bytes(sizes, device.tensor_parallel, expert_gpus) / GIB
    activations = _activation_bytes(sizes, device.tensor_parallel, max_num_batched_tokens) / GIB
    activations += max_num_seqs * sizes.vocab_size * constants.logit_bytes / GIB
    process = constants.engine_gib + (constants.group_gib if device.tensor_parallel > 1 else 0)
    process += constants.image_gib if sizes.other_parameters else 0
    kv_gib = total - weights - activations - process
    block = block_tokens * kv_bytes(sizes, device.tensor_parallel)
    blocks = max(math.floor(kv_gib * GIB / block) - 1, 0)
    return EngineMemory(total, weights, activations, process, kv_gib, blocks)


def weight_bytes(sizes: DecoderSizes, tensor_parallel: int, expert_gpus: int | None = None) -> float:
    """Bytes of the weights that one GPU holds."""
    plain = BYTES_OF_TYPE["fp32" if sizes.dtype == "fp32" else "bf16"]
    kind = BYTES_OF_TYPE[sizes.dtype]
    experts = sizes.layers_with_experts
    attention = (
        sizes.layers * sizes.attention_parameters * BYTES_OF_TYPE[sizes.attention_dtype or sizes.dtype]
    )
    dense = (sizes.layers - experts) * sizes.dense_parameters + experts * sizes.shared_parameters
    spread = experts * sizes.experts * sizes.expert_parameters
    tables = (1 if sizes.tied_embeddings else 2) * sizes.vocabulary_parameters
    rest = (
        sizes.position_embeddings * sizes.hidden_size
        + sizes.other_parameters
        + 2 * sizes.layers * sizes.hidden_size
    )
    return (attention + kind * dense + plain * (tables + rest)) / tensor_parallel + kind * spread / (
        expert_gpus or tensor_parallel
    )


def kv_bytes(sizes: DecoderSizes, tensor_parallel: int) -> float:
    """Bytes of a token's keys and values on one GPU; fewer heads than GPUs stand on several."""
    return sizes.kv_bytes_per_token / min(tensor_parallel, sizes.kv_heads)


def _activation_bytes(sizes: DecoderSizes, tensor_parallel: int, tokens: int) -> float:
    """Bytes at the fullest moment of a layer: residual, normalised input, output and sum; the two products and the
    activation of the feed-forward network.
    """
    widest = max(
        sizes.ffn_size, sizes.shared_expert_ffn_size, sizes.experts_per_token * sizes.expert_ffn_size
    )
    return tokens * 2.0 * (4 * sizes.hidden_size + 3 * widest / tensor_parallel)

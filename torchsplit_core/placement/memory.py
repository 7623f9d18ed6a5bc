"""The memory that a GPU of a segment needs, in GB of 2^30 bytes."""

from __future__ import annotations

from itertools import groupby

from torchsplit_core.placement.speed import GB, key_value_gb
from torchsplit_core.values import PlacementRequest, RooflineThroughput

ACTIVATION_OVERHEAD = 1.15
"""What is kept beside the activations themselves (the published formulation's figure)."""


def decodes(request: PlacementRequest) -> bool:
    """Whether keys and values of the whole batch stay in memory: only a roofline tells the phases apart."""
    return isinstance(request.throughput, RooflineThroughput) and request.throughput.phase == "decode"


def sequence_gb(request: PlacementRequest, layers: int) -> float:
    """GB that one sequence adds on a GPU with these layers: activations, in decode keys and values too."""
    model = request.model
    elements = ACTIVATION_OVERHEAD * model.sequence_length * (3 * model.hidden_size + model.ffn_size)
    kept = layers * key_value_gb(model) if decodes(request) else 0.0
    return elements * model.bytes_per_element / GB + kept


def needed_gb(request: PlacementRequest, layers: int, part: float) -> float:
    """GB that a GPU with these layers and a part of the batch (sequences) needs."""
    return layers * request.model.layer_weight_gb + part * sequence_gb(request, layers)


def largest_part(request: PlacementRequest, layers: int, memory_gb: float) -> float:
    """The most sequences that fit beside the layers' weights; 0 or less where not even these fit."""
    return (memory_gb - layers * request.model.layer_weight_gb) / sequence_gb(request, layers)


def missing_memory(request: PlacementRequest) -> str | None:
    """Why no set of GPUs of a permitted size holds a single layer, in words; None where one does."""
    gpus = sorted(request.gpus, key=lambda gpu: (gpu.type, -gpu.memory_gb))
    pools = [list(pool) for _, pool in groupby(gpus, key=lambda gpu: gpu.type)]
    if not request.same_type_segments:
        pools = [sorted(gpus, key=lambda gpu: -gpu.memory_gb)]
    batch = float(request.model.batch_size)
    largest = min(request.max_gpus_per_segment, len(gpus))
    for pool in pools:
        for count in range(1, min(largest, len(pool)) + 1):
            # Those with the most memory: where these do not hold a layer, no others do.
            chosen = pool[:count]
            if request.split == "proportional" and count > 1:
                parts = [largest_part(request, 1, gpu.memory_gb) for gpu in chosen]
                if min(parts) > 0 and sum(parts) >= batch:
                    return None
            elif needed_gb(request, 1, batch / count) <= chosen[-1].memory_gb:
                return None
    part = batch / max(min(largest, len(pool)) for pool in pools)
    best = max(request.gpus, key=lambda gpu: gpu.memory_gb)
    needed = needed_gb(request, 1, part)
    return (
        f"One layer on GPU {best.id} ({best.type}) needs {needed:.4g} GB with {part:g} of {batch:g} sequences, and "
        f"the GPU has {best.memory_gb:g} GB: {max(0.0, needed - best.memory_gb):.4g} GB are missing, and no other "
        "set of GPUs holds a layer either. Use GPUs with more memory, a smaller batch or sequence, or more GPUs in "
        "a segment."
    )

"""The memory that a GPU of a segment needs."""

from __future__ import annotations

from itertools import groupby

from torchsplit_core.placement.model.speed import key_value_gib
from torchsplit_core.values import PlacementRequest, RooflineThroughput
from torchsplit_core.values.units import GIB

ACTIVATION_OVERHEAD = 1.15
"""What is kept beside the activations themselves (the published formulation's figure)."""


def decodes(request: PlacementRequest) -> bool:
    """Whether keys and values of the whole batch stay in memory: only a roofline tells the phases apart."""
    return isinstance(request.throughput, RooflineThroughput) and request.throughput.phase == "decode"


def sequence_gib(request: PlacementRequest, layers: int) -> float:
    """GiB that one sequence adds on a GPU with these layers: activations, in decode keys and values too."""
    model = request.model
    elements = ACTIVATION_OVERHEAD * model.sequence_length * (3 * model.hidden_size + model.ffn_size)
    kept = layers * key_value_gib(model) if decodes(request) else 0.0
    return elements * model.bytes_per_element / GIB + kept


def needed_gib(request: PlacementRequest, layers: int, part: float) -> float:
    """GiB that a GPU with these layers and a part of the batch (sequences) needs."""
    return layers * request.model.layer_weight_gib + part * sequence_gib(request, layers)


def largest_part(request: PlacementRequest, layers: int, memory_gib: float) -> float:
    """The most sequences that fit beside the layers' weights; 0 or less where not even these fit."""
    return (memory_gib - layers * request.model.layer_weight_gib) / sequence_gib(request, layers)


def missing_memory(request: PlacementRequest) -> str | None:
    """Why no set of GPUs of a permitted size holds a single layer, in words; None where one does."""
    gpus = sorted(request.gpus, key=lambda gpu: (gpu.type, -gpu.memory_gib))
    pools = [list(pool) for _, pool in groupby(gpus, key=lambda gpu: gpu.type)]
    if not request.same_type_segments:
        pools = [sorted(gpus, key=lambda gpu: -gpu.memory_gib)]
    batch = float(request.model.batch_size)
    largest = min(request.max_gpus_per_segment, len(gpus))
    for pool in pools:
        for count in range(1, min(largest, len(pool)) + 1):
            # Those with the most memory: where these do not hold a layer, no others do.
            chosen = pool[:count]
            if request.split == "proportional" and count > 1:
                parts = [largest_part(request, 1, gpu.memory_gib) for gpu in chosen]
                if min(parts) > 0 and sum(parts) >= batch:
                    return None
            elif needed_gib(request, 1, batch / count) <= chosen[-1].memory_gib:
                return None
    part = batch / max(min(largest, len(pool)) for pool in pools)
    best = max(request.gpus, key=lambda gpu: gpu.memory_gib)
    needed = needed_gib(request, 1, part)
    return (
        f"One layer on GPU {best.id} ({best.type}) needs {needed:.4g} GiB with {part:g} of {batch:g} sequences, and "
        f"the GPU has {best.memory_gib:g} GiB: {max(0.0, needed - best.memory_gib):.4g} GiB are missing, and no other "
        "set of GPUs holds a layer either. Use GPUs with more memory, a smaller batch or sequence, or more GPUs in "
        "a segment."
    )

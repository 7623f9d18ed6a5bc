"""The memory that a GPU of a segment needs."""

from __future__ import annotations

from itertools import groupby

from torchsplit_core.placement.model.speed import key_value_gib
from torchsplit_core.values import PlacementRequest, RooflineThroughput
from torchsplit_core.values.units import GIB

ACTIVATION_OVERHEAD = 1.15
"""Memory of activations including overhead, as a factor (the published formulation's figure)."""


def is_decode(request: PlacementRequest) -> bool:
    """Whether keys and values of sequences in flight stay in memory: only a roofline request has phases."""
    return isinstance(request.throughput, RooflineThroughput) and request.throughput.phase == "decode"


def in_flight(request: PlacementRequest, segments: int) -> int:
    """Sequences in flight in a pipeline of so many segments: as requested, else a batch for each segment."""
    requested = request.model.sequences_in_flight
    return segments * request.model.batch_size if requested is None else requested


def sequence_gib(request: PlacementRequest, layers: float, segments: int = 1) -> float:
    """GiB that a sequence of the batch adds on a GPU with these layers.

    Its activations; in decode also its part of the keys and values of the sequences in flight. layers: a fraction if
    several GPUs share a layer. segments: of the pipeline.
    """
    model = request.model
    tokens, key_value_cache_gib = model.sequence_length, 0.0
    if is_decode(request):
        tokens = model.prefill_chunk or 1
        key_value_cache_gib = (
            layers * key_value_gib(model) * (in_flight(request, segments) / model.batch_size)
        )
    elements = ACTIVATION_OVERHEAD * tokens * (3 * model.hidden_size + model.ffn_size)
    return elements * model.bytes_per_element / GIB + key_value_cache_gib


def needed_gib(request: PlacementRequest, layers: float, part: float, segments: int = 1) -> float:
    """GiB that a GPU with these layers and a part of the batch (sequences) needs, in a pipeline of so many segments."""
    return layers * request.model.layer_weight_gib + part * sequence_gib(request, layers, segments)


def largest_part(request: PlacementRequest, layers: int, memory_gib: float, segments: int = 1) -> float:
    """The most sequences of the batch that fit beside the layers' weights; 0 or less if not even these fit."""
    return (memory_gib - layers * request.model.layer_weight_gib) / sequence_gib(request, layers, segments)


def missing_memory(request: PlacementRequest) -> str | None:
    """Why no set of GPUs of a permitted size holds a single layer, in words; None if one does."""
    gpus = sorted(request.gpus, key=lambda gpu: (gpu.type, -gpu.memory_gib))
    pools = [list(pool) for _, pool in groupby(gpus, key=lambda gpu: gpu.type)]
    if not request.same_type_segments:
        pools = [sorted(gpus, key=lambda gpu: -gpu.memory_gib)]
    batch = float(request.model.batch_size)
    largest = min(request.max_gpus_per_segment, len(gpus))
    for pool in pools:
        for count in range(1, min(largest, len(pool)) + 1):
            # Those with the most memory: if these cannot hold a layer, no others can.
            chosen = pool[:count]
            if request.split == "proportional" and count > 1:
                parts = [largest_part(request, 1, gpu.memory_gib) for gpu in chosen]
                if min(parts) > 0 and sum(parts) >= batch:
                    return None
            elif needed_gib(request, *_share(request, 1, count)) <= chosen[-1].memory_gib:
                return None
    count = max(min(largest, len(pool)) for pool in pools)
    layers, part = _share(request, 1, count)
    best = max(request.gpus, key=lambda gpu: gpu.memory_gib)
    needed = needed_gib(request, layers, part)
    under_way = f" and {in_flight(request, 1)} in flight" if is_decode(request) else ""
    fewer = "fewer sequences in flight, " if request.model.sequences_in_flight is not None else ""
    held = "One layer" if layers == 1 else f"A layer over {count} GPUs"
    return (
        f"{held} on GPU {best.id} ({best.type}) needs {needed:.4g} GiB with {part:g} of {batch:g} sequences"
        f"{under_way}, and the GPU has {best.memory_gib:g} GiB: {max(0.0, needed - best.memory_gib):.4g} GiB are "
        f"missing, and no other set of GPUs holds a layer either. Use GPUs with more memory, {fewer}a smaller batch or "
        "sequence, or more GPUs in a segment."
    )


def _share(request: PlacementRequest, layers: int, gpus: int) -> tuple[float, float]:
    """Layers and sequences of the batch on each GPU of a segment, unless parts are proportional."""
    batch = float(request.model.batch_size)
    return (layers / gpus, batch) if request.split == "tensor" else (layers, batch / gpus)

"""The memory that a GPU of a segment needs, in GB of 2^30 bytes."""

from __future__ import annotations

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

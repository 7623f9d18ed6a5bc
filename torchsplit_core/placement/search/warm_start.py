"""An earlier outcome as a search's first pipeline."""

from __future__ import annotations

from torchsplit_core.placement.model.instance import SearchResult
from torchsplit_core.values import PlacementOutcome, PlacementRequest


def warm_start_from(request: PlacementRequest, outcome: PlacementOutcome) -> SearchResult | None:
    """The outcome's pipeline on the GPUs of the request; None if one of them is missing or the layers differ.

    The search computes its value.
    """
    index_of = {gpu.id: index for index, gpu in enumerate(request.gpus)}
    segments = []
    for part in outcome.segments:
        if any(gpu not in index_of for gpu in part.gpu_ids):
            return None
        gpus = tuple(sorted(index_of[gpu] for gpu in part.gpu_ids))
        segments.append((part.end_layer - part.start_layer + 1, gpus))
    if sum(count for count, _ in segments) != request.model.layers:
        return None
    return SearchResult(0.0, float("inf"), False, tuple(segments), {})

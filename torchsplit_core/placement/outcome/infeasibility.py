"""Why no placement exists, in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from torchsplit_core.placement.latency.in_flight import best_pipeline
from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.model.memory import is_decode
from torchsplit_core.placement.model.segments import SegmentModel

EXPLAINING_S = 5.0
"""Most seconds for explaining why no placement exists, after that is proven."""


def explain_infeasibility(model: SegmentModel, instance: ProblemInstance) -> str:
    """Why there is no placement: missing links, or memory."""
    layers = instance.layers
    free = replace(instance, links=np.full_like(instance.links, 1e30))
    unlinked_result = best_pipeline(free, time_limit_s=EXPLAINING_S)
    if unlinked_result.segments:
        return (
            f"The missing links stand in the way: memory holds all {layers} layers in "
            f"{len(unlinked_result.segments)} segments, but links of 0 leave no way through any such pipeline."
        )
    alone = []
    for name, memory in dict.fromkeys(zip(model.types, model.memory_gib, strict=True)):
        kinds = {
            kind
            for kind, sort in enumerate(zip(model.types, model.memory_gib, strict=True))
            if sort == (name, memory)
        }
        longest = max((n for n in range(1, layers + 1) if model.value((min(kinds),), n) > 0), default=0)
        count = sum(kind in kinds for kind in model.kinds)
        alone.append(f"{longest} on {count} × {name} ({memory:g} GiB)")
    requested = model.request.model.sequences_in_flight
    under_way = f", with {requested} sequences in flight" if requested is not None else ""
    if is_decode(model.request) and requested is None:
        under_way = f", with {model.request.model.batch_size} sequences in flight for each of its segments"
    return (
        f"No pipeline holds all {layers} layers in the memory of these GPUs{under_way}, with at most "
        f"{instance.max_gpus} in a segment. Layers that one GPU alone holds: {', '.join(alone)}."
    )

"""Why no placement exists, in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from torchsplit_core.placement.latency.in_flight import best_pipeline
from torchsplit_core.placement.model.instance import Instance
from torchsplit_core.placement.model.memory import decodes
from torchsplit_core.placement.model.segments import SegmentModel

EXPLAINING_S = 5.0
"""Most seconds for telling why no placement exists; the proof that none does stands by then."""


def why_infeasible(model: SegmentModel, instance: Instance) -> str:
    """Why there is no placement: links that are missing, or memory."""
    layers = instance.layers
    free = replace(instance, links=np.full_like(instance.links, 1e30))
    joined = best_pipeline(free, time_limit_s=EXPLAINING_S)
    if joined.segments:
        return (
            f"The missing links stand in the way: memory holds all {layers} layers in "
            f"{len(joined.segments)} segments, but links of 0 leave no way through any such pipeline."
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
    asked = model.request.model.sequences_in_flight
    under_way = f", with {asked} sequences in flight" if asked is not None else ""
    if decodes(model.request) and asked is None:
        under_way = f", with {model.request.model.batch_size} sequences in flight for each of its segments"
    return (
        f"No pipeline holds all {layers} layers in the memory of these GPUs{under_way}, with at most "
        f"{instance.max_gpus} in a segment. Layers that one GPU alone holds: {', '.join(alone)}."
    )

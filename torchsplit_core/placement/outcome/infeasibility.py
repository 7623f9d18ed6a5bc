"""Why no placement exists, in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from torchsplit_core.placement.model.instance import Instance
from torchsplit_core.placement.model.segments import SegmentModel
from torchsplit_core.placement.search import search

EXPLAINING_S = 5.0
"""Most seconds for telling why no placement exists; the proof that none does stands by then."""


def why_infeasible(model: SegmentModel, instance: Instance) -> str:
    """Why there is no placement: links that are missing, or memory."""
    layers = instance.layers
    joined = search(replace(instance, links=np.full_like(instance.links, 1e30)), time_limit_s=EXPLAINING_S)
    if joined.segments:
        return (
            f"The missing links stand in the way: memory holds all {layers} layers in "
            f"{len(joined.segments)} segments, but links of 0 leave no way through any such pipeline."
        )
    alone = []
    for kind, name in enumerate(model.types):
        longest = max((n for n in range(1, layers + 1) if model.value((kind,), n) > 0), default=0)
        count = model.kinds.count(kind)
        alone.append(f"{longest} on {count} × {name} ({model.memory_gib[kind]:g} GiB)")
    return (
        f"No pipeline holds all {layers} layers in the memory of these GPUs, with at most {instance.max_gpus} "
        f"in a segment. Layers that one GPU alone holds: {', '.join(alone)}."
    )

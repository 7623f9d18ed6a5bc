"""What a search found as segments and links with their figures."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from torchsplit_core.placement.model.instance import Instance
from torchsplit_core.placement.model.memory import needed_gib
from torchsplit_core.placement.model.segments import SegmentModel
from torchsplit_core.values import PlacedLink, PlacedSegment


def placed(
    model: SegmentModel, instance: Instance, found: tuple[tuple[int, tuple[int, ...]], ...]
) -> tuple[tuple[PlacedSegment, ...], tuple[PlacedLink, ...]]:
    """The segments and links of a pipeline that is given as (layer count, GPU indices ascending) in its order."""
    segments: list[PlacedSegment] = []
    start = 1
    for count, gpus in found:
        segments.append(_segment(model, start, count, gpus))
        start += count
    links = tuple(
        PlacedLink(index, index + 1, float(instance.links[np.ix_(first[1], second[1])].min()))
        for index, (first, second) in enumerate(pairwise(found))
    )
    return tuple(segments), links


def _segment(model: SegmentModel, start: int, count: int, gpus: tuple[int, ...]) -> PlacedSegment:
    """The segment with its figures; parts go to GPUs of their kind in the order of the fleet."""
    request = model.request
    by_kind = sorted(gpus, key=lambda gpu: (model.kinds[gpu], gpu))
    division = model.division(tuple(model.kinds[gpu] for gpu in by_kind), count)
    assert division is not None, "a search chose a segment that is forbidden"
    part_of = dict(zip(by_kind, division.parts, strict=True))
    parts = tuple(part_of[gpu] for gpu in gpus)
    return PlacedSegment(
        start_layer=start,
        end_layer=start + count - 1,
        gpu_ids=tuple(request.gpus[gpu].id for gpu in gpus),
        throughput=division.throughput,
        batch_per_gpu=parts[0] if request.split == "equal" else parts,
        memory_gib=tuple(needed_gib(request, count, part) for part in parts),
    )

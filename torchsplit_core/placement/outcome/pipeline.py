"""Segments and links with their figures, from the result of a search."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance, Segments
from torchsplit_core.placement.model.latency import latency_s
from torchsplit_core.placement.model.memory import in_flight, is_decode, needed_gib
from torchsplit_core.placement.model.segments import SegmentModel
from torchsplit_core.values import PlacedLink, PlacedSegment


@dataclass(frozen=True)
class PlacedPipeline:
    """A pipeline with its figures; see PlacementOutcome."""

    throughput: float
    latency_s: float
    segments: tuple[PlacedSegment, ...]
    links: tuple[PlacedLink, ...]
    sequences_in_flight: int | None


def build_pipeline(model: SegmentModel, instance: ProblemInstance, chosen: Segments) -> PlacedPipeline:
    """Build a pipeline from its (layer count, GPU indices ascending) in order."""
    request = model.request
    segments: list[PlacedSegment] = []
    start = 1
    for count, gpus in chosen:
        segments.append(_placed_segment(model.for_pipeline(len(chosen)), start, count, gpus, len(chosen)))
        start += count
    links = tuple(
        PlacedLink(index, index + 1, float(instance.links[np.ix_(first[1], second[1])].min()))
        for index, (first, second) in enumerate(pairwise(chosen))
    )
    seconds = latency_s(request, segments, links)
    value = min([part.throughput for part in segments] + [link.throughput for link in links])
    under_way = in_flight(request, len(chosen)) if is_decode(request) else None
    if under_way is not None:
        value = min(value, under_way / seconds)
    return PlacedPipeline(value, seconds, tuple(segments), links, under_way)


def _placed_segment(
    model: SegmentModel, start: int, count: int, gpus: tuple[int, ...], segments: int
) -> PlacedSegment:
    """The segment with its figures; parts are assigned to GPUs of their kind in the order of the fleet."""
    request = model.request
    by_kind = sorted(gpus, key=lambda gpu: (model.kinds[gpu], gpu))
    division = model.division(tuple(model.kinds[gpu] for gpu in by_kind), count)
    assert division is not None, "a search chose a segment that is forbidden"
    part_of = dict(zip(by_kind, division.parts, strict=True))
    parts = tuple(part_of[gpu] for gpu in gpus)
    workload = parts if request.split == "proportional" else parts[0]
    held = count / len(gpus) if request.split == "tensor" else count
    return PlacedSegment(
        start_layer=start,
        end_layer=start + count - 1,
        gpu_ids=tuple(request.gpus[gpu].id for gpu in gpus),
        throughput=division.throughput,
        batch_per_gpu=workload,
        memory_gib=tuple(needed_gib(request, held, part, segments) for part in parts),
        gpu_types=dict(Counter(request.gpus[gpu].type for gpu in gpus)),
        num_gpus=len(gpus),
        workload_per_gpu=workload,
    )

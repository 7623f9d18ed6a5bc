"""From items on GPUs in pipeline order to segments with layer counts, and their throughput."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from torchsplit_core.placement.model.instance import ProblemInstance, Segments, evaluate_pipeline
from torchsplit_core.placement.search.segment_table import Items, SegmentTable

Steps = Sequence[tuple[int, tuple[int, ...]]]
"""(item, GPU indices ascending), in pipeline order."""


def pipeline_throughput(instance: ProblemInstance, segments: Segments) -> float:
    """The throughput of a pipeline, computed from the instance alone; 0.0 if it breaks a rule."""
    evaluated = evaluate_pipeline(instance, segments)
    return evaluated.value if evaluated is not None else 0.0


def assign_layers(table: SegmentTable, items: Items, steps: Steps, layers: int) -> Segments:
    """Give every segment layers of its interval, each next one to the segment that stays fastest."""
    counts = distribute_layers(
        [(int(items.low[item]), int(items.high[item])) for item, _ in steps],
        lambda index, count: float(table.values[items.multiset[steps[index][0]], count - 1]),
        layers,
    )
    return tuple((count, gpus) for count, (_, gpus) in zip(counts, steps, strict=True))


def distribute_layers(
    intervals: Sequence[tuple[int, int]], value: Callable[[int, int], float], layers: int
) -> tuple[int, ...]:
    """Layer counts within the intervals that add up to `layers`, which the intervals allow.

    value(index, count): the throughput of the segment of this index with so many layers.
    """
    counts = [low for low, _ in intervals]
    heap: list[tuple[float, int]] = []

    def push(index: int) -> None:
        if counts[index] < intervals[index][1]:
            heapq.heappush(heap, (-value(index, counts[index] + 1), index))

    for index in range(len(counts)):
        push(index)
    for _ in range(layers - sum(counts)):
        index = heapq.heappop(heap)[1]
        counts[index] += 1
        push(index)
    return tuple(counts)

"""From items on GPUs in pipeline order to segments with layer counts, and what they are worth."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from torchsplit_core.placement.instance import Instance
from torchsplit_core.placement.search.table import Items, Table

Segments = tuple[tuple[int, tuple[int, ...]], ...]
"""(layer count, GPU indices ascending), in pipeline order."""
Steps = Sequence[tuple[int, tuple[int, ...]]]
"""(item, GPU indices ascending), in pipeline order."""


def worth(instance: Instance, segments: Segments) -> float:
    """The throughput of a pipeline, reckoned from the instance alone; 0.0 where it breaks a rule."""
    gpus = [gpu for _, chosen in segments for gpu in chosen]
    if len(set(gpus)) != len(gpus) or sum(count for count, _ in segments) != instance.layers:
        return 0.0
    values = []
    for count, chosen in segments:
        if count < 1 or not 1 <= len(chosen) <= instance.max_gpus:
            return 0.0
        values.append(instance.value(tuple(sorted(instance.kinds[gpu] for gpu in chosen)), count))
    for (_, left), (_, right) in pairwise(segments):
        values.append(float(instance.links[np.ix_(left, right)].min()))
    return min(values)


def deal_layers(table: Table, items: Items, steps: Steps, layers: int) -> Segments:
    """Give every segment layers of its interval, one more each time to the one that stays fastest."""
    counts = [int(items.low[item]) for item, _ in steps]
    heap: list[tuple[float, int]] = []

    def offer(place: int) -> None:
        item = steps[place][0]
        if counts[place] < items.high[item]:
            heapq.heappush(heap, (-float(table.values[items.multiset[item], counts[place]]), place))

    for place in range(len(steps)):
        offer(place)
    for _ in range(layers - sum(counts)):
        place = heapq.heappop(heap)[1]
        counts[place] += 1
        offer(place)
    return tuple((count, gpus) for count, (_, gpus) in zip(counts, steps, strict=True))

"""From sets of blocks to candidates with their figures, and keeping the best distinct ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torchsplit_core.partitioning.blocks import BlockGraph
from torchsplit_core.values import PartitionCandidate


def loads_of(graph: BlockGraph, parts: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """The load of each part: its time, every distinct value that enters, every one of its own that leaves."""
    home = {b: i for i, part in enumerate(parts) for b in part}
    loads = [math.fsum(graph.blocks[b].time_ms for b in part) for part in parts]
    for source in graph.sources:
        here = home[source.block]
        elsewhere = {home[reader] for reader in source.readers} - {here}
        if elsewhere:
            loads[here] += source.transfer_ms
            for there in elsewhere:
                loads[there] += source.transfer_ms
    return tuple(loads)


def fits_memory(graph: BlockGraph, parts: Iterable[Iterable[int]]) -> bool:
    """No part holds more than a device."""
    limit = graph.request.devices.memory_bytes
    return limit is None or all(sum(graph.blocks[b].memory_bytes for b in part) <= limit for part in parts)


def make_candidate(graph: BlockGraph, parts: Sequence[Sequence[int]]) -> PartitionCandidate:
    """The candidate whose stages are these parts, in this order."""
    nodes = graph.request.nodes
    stages = graph.stages(parts)
    loads = loads_of(graph, parts)
    home = {name: i for i, stage in enumerate(stages) for name in stage}
    size = {node.id: node.output_bytes for node in nodes}
    leaving: list[set[str]] = [set() for _ in stages]
    for edge in graph.request.edges:
        if home[edge.source] != home[edge.target]:
            leaving[home[edge.source]].add(edge.source)
    return PartitionCandidate(
        stages=stages,
        loads_ms=loads,
        max_load_ms=max(loads),
        cut_bytes=tuple(sum(size[name] for name in names) for names in leaving[:-1]),
        peak_memory_bytes=tuple(sum(graph.blocks[b].memory_bytes for b in part) for part in parts),
    )


def best_distinct(found: Iterable[PartitionCandidate], top_k: int) -> tuple[PartitionCandidate, ...]:
    """The best by largest load, then fewest stages, then fewest bytes across cuts."""
    distinct = {candidate.stages: candidate for candidate in found}
    ranked = sorted(
        distinct.values(), key=lambda c: (c.max_load_ms, len(c.stages), sum(c.cut_bytes), c.stages)
    )
    return tuple(ranked[:top_k])

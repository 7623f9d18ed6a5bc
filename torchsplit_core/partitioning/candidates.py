"""Candidates with their figures from sets of blocks, and the best distinct ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from torchsplit_core.partitioning.blocks.block_graph import BlockGraph
from torchsplit_core.partitioning.verify import RELATIVE
from torchsplit_core.values import PartitionCandidate, PartitionOutcome
from torchsplit_core.values.partition import Objective


def stage_loads(
    graph: BlockGraph, parts: Sequence[Sequence[int]], devices: Sequence[int] = ()
) -> tuple[float, ...]:
    """The load of each part: its time, every distinct value that enters, and every one of its own that leaves.

    `devices`: the device of each part, if speeds differ.
    """
    home = {b: i for i, part in enumerate(parts) for b in part}
    loads = _stage_times(graph, parts, devices)
    for source in graph.sources:
        producer = home[source.block]
        consumers = {home[reader] for reader in source.readers} - {producer}
        if consumers:
            loads[producer] += source.transfer_ms
            for consumer in consumers:
                loads[consumer] += source.transfer_ms
    return tuple(loads)


def pipeline_latency(graph: BlockGraph, parts: Sequence[Sequence[int]], devices: Sequence[int] = ()) -> float:
    """All times, plus every value's transfer into each other part that reads it."""
    home = {b: i for i, part in enumerate(parts) for b in part}
    moved = (s.transfer_ms * len({home[r] for r in s.readers} - {home[s.block]}) for s in graph.sources)
    return math.fsum((*_stage_times(graph, parts, devices), *moved))


def _stage_times(graph: BlockGraph, parts: Sequence[Sequence[int]], devices: Sequence[int]) -> list[float]:
    factors = graph.request.devices.time_factors
    slow = [1.0] * len(parts) if factors is None else [factors[d] for d in devices]
    return [
        math.fsum(graph.blocks[b].time_ms for b in part) * factor
        for part, factor in zip(parts, slow, strict=True)
    ]


def fits_memory(graph: BlockGraph, parts: Iterable[Iterable[int]]) -> bool:
    """Whether every part fits a device."""
    limit = graph.request.devices.memory_bytes
    return limit is None or all(sum(graph.blocks[b].memory_bytes for b in part) <= limit for part in parts)


def make_candidate(
    graph: BlockGraph, parts: Sequence[Sequence[int]], devices: Sequence[int] = ()
) -> PartitionCandidate:
    """The candidate with these parts as stages, in order, on these devices if speeds differ."""
    nodes = graph.request.nodes
    stages = graph.stages(parts)
    loads = stage_loads(graph, parts, devices)
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
        latency_ms=pipeline_latency(graph, parts, devices),
        devices=tuple(devices),
    )


def objective_value(candidate: PartitionCandidate, objective: Objective) -> float:
    """What the objective minimises, in ms."""
    return candidate.max_load_ms if objective == "throughput" else (candidate.latency_ms or 0.0)


def replace_candidates(
    outcome: PartitionOutcome, candidates: Sequence[PartitionCandidate]
) -> PartitionOutcome:
    """The outcome with other candidates of the same request, best first; its bound holds for them too."""
    value = objective_value(candidates[0], outcome.objective)
    bound = outcome.bound_ms or 0.0
    gap = (value - bound) / value if value > 0 else 0.0
    status: Literal["optimal", "feasible"] = "optimal" if gap <= RELATIVE else "feasible"
    return replace(outcome, candidates=tuple(candidates), gap=max(gap, 0.0), status=status)


def stage_sets(candidate: PartitionCandidate) -> frozenset[frozenset[str]]:
    """The stages without their order: candidates that are equal in it are the same cut."""
    return frozenset(map(frozenset, candidate.stages))


def rank_distinct(
    candidates: Iterable[PartitionCandidate], top_k: int, objective: Objective = "throughput"
) -> tuple[PartitionCandidate, ...]:
    """The best by the objective, then by largest load, fewest stages, fewest bytes across cuts.

    Of the same stages in another order or on other devices only the best one.
    """
    ranked = sorted(
        candidates,
        key=lambda c: (
            objective_value(c, objective),
            c.max_load_ms,
            len(c.stages),
            sum(c.cut_bytes),
            c.stages,
        ),
    )
    distinct: dict[frozenset[frozenset[str]], PartitionCandidate] = {}
    for candidate in ranked:
        distinct.setdefault(stage_sets(candidate), candidate)
    return tuple(distinct.values())[:top_k]

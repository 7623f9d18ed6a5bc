"""Layers cut among GPUs on large fleets: blocks of GPUs as units, with a bound that assumes the fastest links.

A segment's throughput depends on the links among its own GPUs. If these make too many multisets to list, exchangeable
GPUs are divided into blocks of one size (with a smaller one for the rest), and a segment is a block: pipelines of
blocks are pipelines. The bound assumes that all links within segments are the fastest of the fleet, so GPUs of one type
and memory are of one kind; links between segments stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from torchsplit_core.placement.latency.in_flight import best_pipeline
from torchsplit_core.placement.model.instance import (
    BatchShares,
    InFlightLimit,
    ProblemInstance,
    SearchResult,
    Segments,
    SegmentValue,
)
from torchsplit_core.placement.model.segments import SegmentModel, build_instance
from torchsplit_core.placement.replicas import PipelineSetResult, search_pipelines
from torchsplit_core.placement.replicas.pipelines import EQUAL, sum_and_order
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.segment_table import count_multisets

MOST_VALUES = 200_000
"""Throughputs (multisets × layer counts) up to which every multiset is examined. Chosen, not measured."""

BOUND_PART = 0.4
"""Most of the time for the bound. Chosen, not measured."""

Tell = Callable[[float, float], None]
Block = tuple[int, ...]


def exceeds_enumeration(model: SegmentModel, instance: ProblemInstance) -> bool:
    """Whether layers are cut among too many multisets of GPUs to list."""
    return model.request.split == "tensor" and count_multisets(instance) * instance.layers > MOST_VALUES


def search_blocks(
    model: SegmentModel, instance: ProblemInstance, *, time_limit_s: float, progress: Tell
) -> SearchResult | PipelineSetResult:
    """The best pipelines of blocks, as many as the request allows, and the bound; proven if they are equal."""
    clock = SearchClock.start(time_limit_s)
    most = model.request.max_replicas
    relaxed = best_pipeline(_relaxed_instance(model, instance), time_limit_s=BOUND_PART * time_limit_s)
    bound = most * relaxed.bound
    value, best = sum_and_order(instance, ())
    sizes = _sizes(instance.max_gpus)
    for number, size in enumerate(sizes):
        blocks = _blocks(instance, size)
        seconds = clock.left_s() / (len(sizes) - number)
        block_result = search_pipelines(
            _block_instance(model, instance, blocks), most, time_limit_s=seconds, progress=_ignore_progress
        )
        # A pipeline of blocks is evaluated on the GPUs themselves.
        mapped = sum_and_order(
            instance, [_expand_blocks(pipeline, blocks) for pipeline in block_result.pipelines]
        )
        if mapped[0] > value:
            value, best = mapped
            progress(value, bound)
    proven = value >= bound * (1 - EQUAL)
    statistics = {**clock.counts, "search_s": clock.passed_s()}
    if most > 1:
        return PipelineSetResult(value, value if proven else max(value, bound), proven, best, statistics)
    return SearchResult(
        value, value if proven else max(value, bound), proven, best[0] if best else (), statistics
    )


def _sizes(most: int) -> list[int]:
    """Powers of two below the most GPUs of a segment, and that number; the largest first."""
    return sorted(
        {most, *(1 << power for power in range(most.bit_length()) if 1 << power <= most)}, reverse=True
    )


def _blocks(instance: ProblemInstance, size: int) -> list[Block]:
    members: dict[int, list[int]] = {}
    for gpu, kind in enumerate(instance.kinds):
        members.setdefault(kind, []).append(gpu)
    return [
        tuple(gpus[start : start + size]) for gpus in members.values() for start in range(0, len(gpus), size)
    ]


def _block_instance(
    model: SegmentModel, instance: ProblemInstance, blocks: Sequence[Block]
) -> ProblemInstance:
    """Every block as one GPU; blocks of one type, memory, inside link and size are of one kind."""
    sorts: dict[tuple[str, float, float, int], int] = {}
    kinds, kinds_of_blocks = [], []
    for block in blocks:
        kind = instance.kinds[block[0]]
        inside = float(instance.links[block[0], block[-1]]) if len(block) > 1 else 0.0
        sort = (model.types[kind], model.memory_gib[kind], inside, len(block))
        if sort not in sorts:
            kinds_of_blocks.append((kind,) * len(block))
        kinds.append(sorts.setdefault(sort, len(sorts)))

    def block_value(value: SegmentValue) -> SegmentValue:
        return lambda blocks_of_segment, count: value(kinds_of_blocks[blocks_of_segment[0]], count)

    links = np.array([[instance.links[np.ix_(a, b)].min() for b in blocks] for a in blocks])
    flight = instance.flight
    if flight is not None:
        at = flight.for_segments

        def of_pipeline(segments: int) -> tuple[SegmentValue, BatchShares | None]:
            return block_value(at(segments)[0]), None

        flight = InFlightLimit(flight.tokens, flight.link_tokens, flight.sequences, of_pipeline)
    return ProblemInstance(
        instance.layers, tuple(kinds), links, 1, block_value(instance.value), flight=flight
    )


def _relaxed_instance(model: SegmentModel, instance: ProblemInstance) -> ProblemInstance:
    fastest = max(max(row) for row in model.request.bandwidth_gib_per_s)
    every = ((fastest,) * len(instance.kinds),) * len(instance.kinds)
    free = build_instance(SegmentModel(replace(model.request, bandwidth_gib_per_s=every)))
    return replace(free, links=instance.links)


def _expand_blocks(segments: Segments, blocks: Sequence[Block]) -> Segments:
    return tuple((count, tuple(sorted(blocks[segment_blocks[0]]))) for count, segment_blocks in segments)


def _ignore_progress(value: float, bound: float) -> None:
    """Results of a block size are reported when it is done."""

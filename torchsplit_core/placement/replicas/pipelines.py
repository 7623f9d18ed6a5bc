"""Several pipelines at once: the result of a search, and a part of the fleet as an instance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchsplit_core.placement.latency.in_flight import best_pipeline
from torchsplit_core.placement.model.instance import ProblemInstance, SearchResult, Segments
from torchsplit_core.placement.search.layer_assignment import pipeline_throughput
from torchsplit_core.placement.search.segment_table import SegmentTable
from torchsplit_core.values import InternalFault

EQUAL = 1e-9
"""Relative distance within which sums are equal: they are added in different orders."""


@dataclass(frozen=True)
class PipelineSetResult:
    """Disjoint pipelines, each of all layers, the fastest first.

    value: the sum of their throughputs. bound: no permitted set of pipelines has a larger sum. proven: value equals
    bound. Without pipelines none was found; if proven, with bound 0, none exists.
    """

    value: float
    bound: float
    proven: bool
    pipelines: tuple[Segments, ...]
    statistics: Mapping[str, float]


def sum_and_order(
    instance: ProblemInstance, pipelines: Iterable[Segments]
) -> tuple[float, tuple[Segments, ...]]:
    """The sum of the throughputs, computed from the instance, and the pipelines with the fastest first.

    Raises InternalFault if one breaks a rule or two share a GPU.
    """
    valued = [(pipeline_throughput(instance, pipeline), pipeline) for pipeline in pipelines]
    gpus = [gpu for _, pipeline in valued for _, chosen in pipeline for gpu in chosen]
    if len(set(gpus)) < len(gpus) or any(value <= 0 for value, _ in valued):
        raise InternalFault("The search for several pipelines made some that cannot run at once.")
    valued.sort(key=lambda pair: (-pair[0], pair[1]))
    return sum(value for value, _ in valued), tuple(pipeline for _, pipeline in valued)


def sub_instance(instance: ProblemInstance, gpus: Sequence[int]) -> ProblemInstance:
    """The instance with only these GPUs, numbered in the given order."""
    chosen = list(gpus)
    return replace(
        instance,
        kinds=tuple(instance.kinds[gpu] for gpu in chosen),
        links=instance.links[np.ix_(chosen, chosen)],
        max_gpus=min(instance.max_gpus, len(chosen)),
    )


def restrict_table(table: SegmentTable, part: ProblemInstance) -> SegmentTable:
    """The rows of the whole fleet's table for which a part of it has the GPUs."""
    fleet = np.bincount(np.array(part.kinds), minlength=table.counts.shape[1])
    fits = np.flatnonzero((table.counts <= fleet).all(axis=1))
    multisets = tuple(table.multisets[row] for row in fits.tolist())
    return SegmentTable(multisets, table.counts[fits], table.values[fits], table.complete)


def to_fleet_indices(segments: Segments, gpus: Sequence[int]) -> Segments:
    """Segments of a part of the fleet with the GPUs' indices in the whole fleet."""
    return tuple((count, tuple(sorted(gpus[index] for index in chosen))) for count, chosen in segments)


def best_single(instance: ProblemInstance, seconds: float) -> SearchResult:
    """The best single pipeline."""
    return best_pipeline(instance, time_limit_s=seconds)

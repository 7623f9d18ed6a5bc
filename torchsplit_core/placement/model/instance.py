"""The core of a placement problem: the input and output of the exact search.

No file format, no model of a GPU, no unit of memory: a segment's throughput is a function of its GPUs' kinds and its
layer count, a link's a number, both in one unit of throughput.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

Segments = tuple[tuple[int, tuple[int, ...]], ...]
"""(layer count, GPU indices ascending), in pipeline order."""
SegmentValue = Callable[[tuple[int, ...], int], float]
"""The throughput of a segment by its kinds, ascending, and its layer count; 0.0 if it is forbidden."""
BatchShares = Callable[[float, int], np.ndarray]


@dataclass(frozen=True)
class InFlightLimit:
    """The limit of a pipeline as a whole by its sequences in flight: their memory, and the time of a pass.

    tokens: those of a pass (P). link_tokens: tokens/s of a link value of 1. sequences: in flight; None: P for each
    segment. at(k): value and shares, as in ProblemInstance, of segments of a pipeline of k segments; a value never
    rises with k. A pipeline gives at most (sequences in flight) / (seconds of a pass) tokens/s.
    """

    tokens: float
    link_tokens: float
    sequences: float | None
    for_segments: Callable[[int], tuple[SegmentValue, BatchShares | None]]

    def under_way(self, segments: int) -> float:
        """Sequences in flight in a pipeline of so many segments."""
        return segments * self.tokens if self.sequences is None else self.sequences


@dataclass(frozen=True)
class ProblemInstance:
    """One placement problem.

    layers: their number (M). kinds[g]: the kind of GPU g (GPUs of one kind differ in nothing but links). links: float64
    (N, N), the value of a link from GPU i to GPU j in units of throughput (0: no link; the diagonal is ignored).
    max_gpus: the most GPUs of a segment. value(kinds, count): the throughput of a segment of `count` layers on a
    multiset of kinds, given ascending; 0.0 if memory or a rule forbids it. It is pure and deterministic, and need not
    be monotone in `count`.

    shares(t, size), if given: float64 (kinds, M), the largest share of a batch that a GPU of each kind can take in a
    segment of `size` GPUs and 1 … M layers that reaches t; 0 if it must not take part. A segment that reaches t has no
    GPU of share 0, and its shares sum to 1 or more. If kinds are of several groups, those of a segment are of one. This
    bounds large segments without listing their multisets.

    counts: the least and the most segments of a pipeline; None: any number. flight: the limit of a pipeline as a whole;
    `value` and `shares` are then those of a pipeline of one segment, which no pipeline exceeds.
    """

    layers: int
    kinds: tuple[int, ...]
    links: np.ndarray
    max_gpus: int
    value: SegmentValue
    shares: BatchShares | None = None
    groups: tuple[int, ...] | None = None
    counts: tuple[int, int] | None = None
    flight: InFlightLimit | None = None

    def allows(self, segments: int) -> bool:
        """Whether a pipeline may have so many segments."""
        return self.counts is None or self.counts[0] <= segments <= self.counts[1]

    def with_segment_range(self, least: int, most: int) -> ProblemInstance:
        """The instance of pipelines of `least` to `most` segments without the limit of the whole.

        There no such pipeline has a lower throughput, and one of `least` segments keeps the memory limits.
        """
        counts = None if (least, most) == (1, self.max_segments()) else (least, most)
        if self.flight is None:
            return replace(self, counts=counts)
        value, shares = self.flight.for_segments(least)
        return replace(self, value=value, shares=shares, counts=counts, flight=None)

    def max_segments(self) -> int:
        """The most segments that a pipeline can have."""
        return min(self.layers, len(self.kinds))


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    segments: in pipeline order, each (layer count, GPU indices ascending). value: the least throughput of segments and
    links between neighbours. bound: no plan is better. proven: value equals bound. Without segments none was found; if
    proven, with bound 0, none exists.
    """

    value: float
    bound: float
    proven: bool
    segments: tuple[tuple[int, tuple[int, ...]], ...]
    statistics: Mapping[str, float]


@dataclass(frozen=True)
class PipelineFigures:
    """Throughputs of a pipeline. segments, links: of each, in pipeline order. pass_s: seconds of a pass if sequences in
    flight limit it, else None. value: of the whole."""

    segments: tuple[float, ...]
    links: tuple[float, ...]
    pass_s: float | None
    value: float


def evaluate_pipeline(instance: ProblemInstance, segments: Segments) -> PipelineFigures | None:
    """The figures of a pipeline, computed from the instance alone; None if it breaks a rule."""
    gpus = [gpu for _, chosen in segments for gpu in chosen]
    if len(set(gpus)) != len(gpus) or sum(count for count, _ in segments) != instance.layers:
        return None
    if not segments or not instance.allows(len(segments)):
        return None
    flight = instance.flight
    value_of = instance.value if flight is None else flight.for_segments(len(segments))[0]
    values = []
    for count, chosen in segments:
        if count < 1 or not 1 <= len(chosen) <= instance.max_gpus:
            return None
        values.append(value_of(tuple(sorted(instance.kinds[gpu] for gpu in chosen)), count))
    links = [float(instance.links[np.ix_(left, right)].min()) for (_, left), (_, right) in pairwise(segments)]
    worth = min([*values, *links])
    if worth <= 0:
        return None
    pass_s = None
    if flight is not None:
        pass_s = math.fsum(flight.tokens / rate for rate in values)
        pass_s += math.fsum(flight.tokens / (rate * flight.link_tokens) for rate in links)
        worth = min(worth, flight.under_way(len(segments)) / pass_s)
    return PipelineFigures(tuple(values), tuple(links), pass_s, worth)

"""The best single pipeline of any instance: by the threshold search, then within the limits of sequences in flight.

The limits only lower throughputs, so the optimum without them is a bound, and stays optimal if its pipeline keeps
them. Else the range of segment counts is split if memory rules out the pipeline found, and then thresholds above the
incumbent are searched for the least latency (min_latency), until one just above it is refuted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf, isfinite

from torchsplit_core.placement.latency.in_flight.min_latency import InFlightMinLatency, Range
from torchsplit_core.placement.model.instance import (
    InFlightLimit,
    ProblemInstance,
    SearchResult,
    Segments,
    evaluate_pipeline,
)
from torchsplit_core.placement.search import search_thresholds
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.exhaustive import search_exhaustively
from torchsplit_core.placement.search.layer_assignment import pipeline_throughput

STEP = 1e-7
"""Relative step above the incumbent that must be refuted: a tenth of the tolerance. Chosen, not measured."""

PARTS_SHARE, PART = 0.8, 0.4
"""Part of the time for the optimum without these limits, and of the rest of it for one range of segments. Chosen, not
measured."""

COARSE = 1e-3
"""Relative distance below which undecided thresholds are not separated. Chosen, not measured."""

Progress = Callable[[float, float], None]


def best_pipeline(
    instance: ProblemInstance,
    *,
    time_limit_s: float,
    progress: Progress | None = None,
    warm_start: SearchResult | None = None,
) -> SearchResult:
    """The pipeline of highest throughput; with the fewest GPUs among these if nothing limits it as a whole.

    progress and warm_start as in `search_thresholds`.
    """
    enumerated = search_exhaustively(instance)
    if enumerated is not None:
        return enumerated
    if instance.flight is None:
        return search_thresholds(
            instance, time_limit_s=time_limit_s, progress=progress, warm_start=warm_start
        )
    clock = SearchClock.start(time_limit_s)
    return _InFlightSearch(instance, instance.flight, clock, progress or _ignore_progress).run(warm_start)


def _ignore_progress(value: float, bound: float) -> None:
    """Report to nobody."""


class _InFlightSearch:
    """State: `segments` have throughput `value`; no pipeline exceeds `bound`."""

    def __init__(
        self, instance: ProblemInstance, flight: InFlightLimit, clock: SearchClock, tell: Progress
    ) -> None:
        self._instance, self._flight, self._clock, self._report = instance, flight, clock, tell
        self._value, self._bound = 0.0, inf
        self._segments: Segments = ()

    def run(self, warm_start: SearchResult | None) -> SearchResult:
        """The result within the time."""
        if warm_start is not None:
            self._update_incumbent(warm_start.segments)
        self._bound_by_ranges(warm_start)
        self._raise_threshold()
        self._clock.count("search_s", self._clock.passed_s())
        proven = self._proven()
        bound = self._value if proven else self._bound
        return SearchResult(self._value, bound, proven, self._segments, dict(self._clock.counts))

    def _bound_by_ranges(self, warm_start: SearchResult | None) -> None:
        """The optimum without the limit by the time of a pass: its bound, and the pipelines found on the way."""
        clock = self._clock.part(PARTS_SHARE * self._clock.left_s())
        # Negated bounds, so that the highest comes first.
        heap: list[tuple[float, Range]] = [(-inf, (1, self._instance.max_segments()))]
        closed = 0.0
        while heap and -heap[0][0] > max(closed, self._value) and not clock.over():
            bound, (low, high) = heapq.heappop(heap)
            plain = self._instance.with_segment_range(low, high)
            result = search_thresholds(plain, time_limit_s=PART * clock.left_s(), warm_start=warm_start)
            self._clock.count("ranges")
            self._update_incumbent(result.segments)
            bound = max(bound, -result.bound)
            count = len(result.segments)
            if count > low and evaluate_pipeline(self._instance, result.segments) is None:
                # Half way to its count: the memory of the upper part then rules out most pipelines of that length.
                middle = (low + count + 1) // 2
                heapq.heappush(heap, (bound, (low, middle - 1)))
                heapq.heappush(heap, (bound, (middle, high)))
            elif result.segments or not result.proven:
                # The best of this range within memory is found, or only its bound is known.
                closed = max(closed, -bound)
            self._tighten_bound(max([closed, self._value, *(-other for other, _ in heap[:1])]))

    def _raise_threshold(self) -> None:
        """Search for pipelines above the incumbent, and half way to the bound, until the two meet."""
        if self._proven() or not isfinite(self._bound):
            return
        least = InFlightMinLatency(self._instance, self._flight, self._clock)
        undecided, halves = 0.0, False
        while not self._proven() and not self._clock.over():
            low = max(self._value * (1 + STEP), self._bound * 1e-12, undecided)
            if undecided and self._bound - low <= COARSE * self._bound:
                return
            threshold = (low + self._bound) / 2 if halves or undecided else low
            self._clock.count("thresholds")
            fastest = least.min_latency(threshold)
            if fastest.plan is not None:
                self._update_incumbent(fastest.plan.segments)
                halves = not halves
            elif fastest.bound_s == inf:
                self._tighten_bound(threshold)
                halves = False
            else:
                undecided = threshold

    def _proven(self) -> bool:
        return self._bound <= 0 or self._value >= self._bound * (1 - 2 * STEP)

    def _update_incumbent(self, segments: Segments) -> None:
        value = pipeline_throughput(self._instance, segments) if segments else 0.0
        if value > self._value:
            self._value, self._segments = value, segments
            self._report(self._value, self._bound)

    def _tighten_bound(self, bound: float) -> None:
        if bound < self._bound:
            self._bound = bound
            self._report(self._value, self._bound)

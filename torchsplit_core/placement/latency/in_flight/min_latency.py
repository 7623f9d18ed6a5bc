"""The least latency of pipelines that reach a threshold, if sequences in flight limit them as a whole.

Let every segment and link reach t, and n(k) / (seconds of a pass) reach it, with n(k) the sequences in flight in a
pipeline of k segments, which take its memory. No pipeline of low to high segments is faster than the fastest with the
memory of n(low), found by the curve's programs with one more row for the number of segments. If that takes longer than
n(high) / t, there is none. If its pipeline keeps the limits with its own number of segments k, it is optimal; else the
ranges low … k − 1 and k … high are searched separately, the lowest bound first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from torchsplit_core.placement.latency.pipeline_plan import (
    SAME,
    MinLatency,
    PassCosts,
    PipelinePlan,
    evaluate_plan,
    is_better,
)
from torchsplit_core.placement.latency.programs import LatencyPrograms
from torchsplit_core.placement.model.instance import InFlightLimit, ProblemInstance
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.segment_table import build_table, count_multisets

MOST_VALUES = 1_000_000
"""Throughputs (multisets of kinds × layer counts) of a table, which takes seconds. Chosen, not measured."""

Range = tuple[int, int]
"""The least and the most segments of a pipeline."""


class InFlightMinLatency:
    """One instance with sequences in flight, ready for any threshold."""

    def __init__(self, instance: ProblemInstance, flight: InFlightLimit, clock: SearchClock) -> None:
        self._instance, self._flight, self._clock = instance, flight, clock
        self._costs = PassCosts(flight.tokens, flight.link_tokens)
        self._programs: dict[int, LatencyPrograms | None] = {}

    def min_latency(self, threshold: float) -> MinLatency:
        """The fastest pipeline found that reaches the threshold, and a bound for all of them."""
        best: PipelinePlan | None = None
        open_s = float("inf")
        heap: list[tuple[float, Range]] = [(0.0, (1, self._instance.max_segments()))]
        while heap:
            bound_s, (low, high) = heapq.heappop(heap)
            if best is not None and bound_s >= best.latency_s * (1 - SAME):
                break
            programs = None if self._clock.over() else self._programs_for(low)
            if programs is None:
                open_s = min(open_s, bound_s)
                continue
            self._clock.count("ranges")
            minimum = programs.within(low, high).min_latency(threshold)
            bound_s = max(bound_s, minimum.bound_s)
            if bound_s > self._flight.under_way(high) / threshold * (1 + SAME):
                continue
            plan = evaluate_plan(self._instance, self._costs, minimum.plan.segments) if minimum.plan else None
            if plan is not None and plan.throughput >= threshold:
                best = plan if is_better(plan, best) else best
                if not minimum.proven:
                    open_s = min(open_s, bound_s)
                continue
            parts = list(self._split_range(low, high, minimum))
            if not parts:
                # A single count: its fastest pipeline breaks the limits, and, if proven so, do all others.
                open_s = open_s if minimum.proven else min(open_s, bound_s)
            for part in parts:
                heapq.heappush(heap, (bound_s, part))
        return MinLatency(best, min(open_s, best.latency_s if best is not None else open_s))

    def _split_range(self, low: int, high: int, minimum: MinLatency) -> Iterator[Range]:
        """Split the range without what is refuted: its fastest pipeline breaks the limits with its own segments."""
        if low == high or (self._flight.sequences is not None and not minimum.proven):
            return
        if minimum.plan is None:
            middle = (low + high) // 2
            yield from ((low, middle), (middle + 1, high))
            return
        count = len(minimum.plan.segments)
        if count > low:
            yield from ((low, count - 1), (count, high))
            return
        if not minimum.proven:
            yield (low, low)
        yield (low + 1, high)

    def _programs_for(self, low: int) -> LatencyPrograms | None:
        """The programs with the memory of a pipeline of `low` segments; None if they are too many or time runs out."""
        key = low if self._flight.sequences is None else 1
        if key not in self._programs:
            plain = self._instance.with_segment_range(key, self._instance.max_segments())
            few = count_multisets(plain) * plain.layers <= MOST_VALUES
            table = build_table(plain, self._clock) if few else None
            self._programs[key] = LatencyPrograms(plain, self._costs, table, self._clock) if table else None
        return self._programs[key]

"""The best single pipeline of any instance: by the search over thresholds, and what sequences under way leave of it.

Without the limits of the whole no pipeline is worth more, so that optimum is a bound, and where its pipeline keeps
them the answer. Else the numbers of segments are parted where memory refuses the pipeline found, and then thresholds
above the best so far are asked for the least latency (least.py), until one just above it is refuted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf, isfinite

from torchsplit_core.placement.latency.in_flight.least import LeastInFlight, Range
from torchsplit_core.placement.model.instance import Found, InFlight, Instance, Segments, figures
from torchsplit_core.placement.search import search
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.exhaustive import search_exhaustively
from torchsplit_core.placement.search.segments import worth

STEP = 1e-7
"""How far above the best, relatively, nothing is to be: a tenth of what is told apart. Chosen, not measured."""

PARTS_SHARE, PART = 0.8, 0.4
"""Of the time, for the optimum without the limits of the whole, and of what is left of it for one range of segments.
Chosen, not measured."""

COARSE = 1e-3
"""Thresholds that were not decided are not told apart more finely, relatively. Chosen, not measured."""

Progress = Callable[[float, float], None]


def best_pipeline(
    instance: Instance,
    *,
    time_limit_s: float,
    progress: Progress | None = None,
    warm_start: Found | None = None,
) -> Found:
    """The pipeline of the highest throughput; of the fewest GPUs among these where nothing limits it as a whole.

    progress and warm_start as in `search`.
    """
    found = search_exhaustively(instance)
    if found is not None:
        return found
    if instance.flight is None:
        return search(instance, time_limit_s=time_limit_s, progress=progress, warm_start=warm_start)
    clock = Clock.start(time_limit_s)
    return _Search(instance, instance.flight, clock, progress or _ignore).run(warm_start)


def _ignore(value: float, bound: float) -> None:
    """Nobody listens."""


class _Search:
    """State: `segments` are worth `value`; no pipeline is worth more than `bound`."""

    def __init__(self, instance: Instance, flight: InFlight, clock: Clock, tell: Progress) -> None:
        self._instance, self._flight, self._clock, self._tell = instance, flight, clock, tell
        self._value, self._bound = 0.0, inf
        self._segments: Segments = ()

    def run(self, warm_start: Found | None) -> Found:
        """The outcome, as far as the time goes."""
        if warm_start is not None:
            self._reach(warm_start.segments)
        self._parts(warm_start)
        self._limits()
        self._clock.count("search_s", self._clock.passed_s())
        proven = self._proven()
        bound = self._value if proven else self._bound
        return Found(self._value, bound, proven, self._segments, dict(self._clock.counts))

    def _parts(self, warm_start: Found | None) -> None:
        """The optimum without the limit by the time of a pass: its bound, the pipelines met on the way."""
        clock = self._clock.part(PARTS_SHARE * self._clock.left_s())
        # Bounds are negative, so that the highest comes first.
        heap: list[tuple[float, Range]] = [(-inf, (1, self._instance.longest()))]
        closed = 0.0
        while heap and -heap[0][0] > max(closed, self._value) and not clock.over():
            bound, (low, high) = heapq.heappop(heap)
            plain = self._instance.within(low, high)
            found = search(plain, time_limit_s=PART * clock.left_s(), warm_start=warm_start)
            self._clock.count("ranges")
            self._reach(found.segments)
            bound = max(bound, -found.bound)
            count = len(found.segments)
            if count > low and figures(self._instance, found.segments) is None:
                # Half way to its count: the memory of the upper part then refuses most that is as long.
                middle = (low + count + 1) // 2
                heapq.heappush(heap, (bound, (low, middle - 1)))
                heapq.heappush(heap, (bound, (middle, high)))
            elif found.segments or not found.proven:
                # What memory allows of this range is found, or its bound is all that is known.
                closed = max(closed, -bound)
            self._lower(max([closed, self._value, *(-other for other, _ in heap[:1])]))

    def _limits(self) -> None:
        """Ask for pipelines above the best, and half way to the bound, until the two meet."""
        if self._proven() or not isfinite(self._bound):
            return
        least = LeastInFlight(self._instance, self._flight, self._clock)
        undecided, halves = 0.0, False
        while not self._proven() and not self._clock.over():
            low = max(self._value * (1 + STEP), self._bound * 1e-12, undecided)
            if undecided and self._bound - low <= COARSE * self._bound:
                return
            threshold = (low + self._bound) / 2 if halves or undecided else low
            self._clock.count("thresholds")
            found = least.least(threshold)
            if found.plan is not None:
                self._reach(found.plan.segments)
                halves = not halves
            elif found.bound_s == inf:
                self._lower(threshold)
                halves = False
            else:
                undecided = threshold

    def _proven(self) -> bool:
        return self._bound <= 0 or self._value >= self._bound * (1 - 2 * STEP)

    def _reach(self, segments: Segments) -> None:
        value = worth(self._instance, segments) if segments else 0.0
        if value > self._value:
            self._value, self._segments = value, segments
            self._tell(self._value, self._bound)

    def _lower(self, bound: float) -> None:
        if bound < self._bound:
            self._bound = bound
            self._tell(self._value, self._bound)

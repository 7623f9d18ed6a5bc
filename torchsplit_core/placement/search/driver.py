"""The search over thresholds: the optimum is one of finitely many values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from torchsplit_core.placement.instance import Found, Instance
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.decide import Threshold
from torchsplit_core.placement.search.segments import Segments, worth
from torchsplit_core.placement.search.table import Table, build_table, candidates

Progress = Callable[[float, float], None]


def search(
    instance: Instance, *, time_limit_s: float, progress: Progress | None = None, start: Found | None = None
) -> Found:
    """The pipeline of the highest throughput, and of the fewest GPUs among these.

    progress: called with (value, bound) whenever one of them improves. start: what was found for a similar
    instance; its pipeline is tried first. The same instance gives the same outcome whenever it is proven.
    """
    clock = Clock.start(time_limit_s)
    table = build_table(instance, clock)
    if table is None:
        return Found(0.0, float("inf"), False, (), dict(clock.counts))
    return _Search(instance, table, clock, progress).run(start)


class _Search:
    """State: values[low] is reached by `segments` (low -1: by none), values[high] and above are refuted."""

    def __init__(self, instance: Instance, table: Table, clock: Clock, progress: Progress | None) -> None:
        self._instance, self._table, self._clock, self._progress = instance, table, clock, progress
        self._values = candidates(instance, table)
        clock.count("candidates", len(self._values))
        self._low, self._high = -1, len(self._values)
        self._segments: Segments = ()

    def run(self, start: Found | None) -> Found:
        if start is not None and start.segments and self._belongs(start.segments):
            self._reached(start.segments)
        self._relax()
        self._settle()
        if self._low + 1 == self._high and self._low >= 0:
            self._save_gpus()
        return self._found()

    def _belongs(self, segments: Segments) -> bool:
        return all(0 <= gpu < len(self._instance.kinds) for _, gpus in segments for gpu in gpus)

    def _at(self, place: int) -> Threshold:
        return Threshold(self._instance, self._table, float(self._values[place]), self._clock)

    def _relax(self) -> None:
        """Lower the bound by packings that look at no link inside a component."""
        low, high = self._low, self._high
        while low + 1 < high and not self._clock.over():
            middle = (low + high) // 2
            if self._at(middle).relaxed() == "none":
                high = middle
                self._refuted(middle)
            else:
                low = middle

    def _settle(self) -> None:
        """Close the interval: at its upper end first, then by halves."""
        place = self._high - 1
        while self._low + 1 < self._high and not self._clock.over():
            decision = self._at(place).decide()
            if decision.status == "found":
                self._reached(decision.segments)
            elif decision.status == "none":
                self._refuted(place)
            else:
                return
            place = (self._low + self._high) // 2

    def _save_gpus(self) -> None:
        decision = self._at(self._low).fewest()
        self._clock.count("fewest_proven", decision.status == "found")
        if decision.segments:
            self._segments = decision.segments

    def _reached(self, segments: Segments) -> None:
        value = worth(self._instance, segments)
        place = bisect_left(self._values, value)
        if value > 0 and place > self._low:
            self._low, self._segments = place, segments
            self._tell()

    def _refuted(self, place: int) -> None:
        if place < self._high:
            self._high = place
            self._tell()

    def _value(self) -> float:
        return float(self._values[self._low]) if self._low >= 0 else 0.0

    def _bound(self) -> float:
        return float(self._values[self._high - 1]) if self._high > 0 else 0.0

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._value(), self._bound())

    def _found(self) -> Found:
        self._clock.count("search_s", self._clock.passed_s())
        proven = self._low + 1 == self._high
        return Found(self._value(), self._bound(), proven, self._segments, dict(self._clock.counts))

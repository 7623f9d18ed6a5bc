"""The search over thresholds: the optimum is one of finitely many values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from torchsplit_core.placement.instance import Found, Instance
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.decide import Threshold
from torchsplit_core.placement.search.segments import Segments, worth
from torchsplit_core.placement.search.table import Table, build_table, candidates
from torchsplit_core.values import InternalFault

_ENOUGH = 8
_PART, _LEAST_PART_S = 0.05, 0.5
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
            self._reach(start.segments)
        most = self._instance.max_gpus
        self._refuted(self._relaxed(most))
        if self._low + 1 < self._high:
            self._reach(self._at(self._high - 1, most).easy().segments)
        for size in sorted({1, most}):
            self._stage(size)
        if self._low + 1 == self._high and self._low >= 0:
            self._save_gpus()
        return self._found()

    def _belongs(self, segments: Segments) -> bool:
        return all(0 <= gpu < len(self._instance.kinds) for _, gpus in segments for gpu in gpus)

    def _at(self, place: int, most: int) -> Threshold:
        return Threshold(self._instance, self._table, float(self._values[place]), most, self._clock)

    def _relaxed(self, most: int) -> int:
        """The first place that packings refute which look at no link inside a component."""
        low, high = self._low, self._high
        while low + 1 < high and not self._clock.over():
            middle = (low + high) // 2
            if self._at(middle, most).relaxed() == "none":
                high = middle
            else:
                low = middle
        return high

    def _stage(self, most: int) -> None:
        """Close the interval with segments of at most `most` GPUs, each try in a part of the time.

        Fast links are few near the upper end, and the programs small: from there down in doubling steps until
        something is found, then by halves, while that is a good part of the interval. What was not decided is
        tried again with more time.
        """
        part_s = max(_LEAST_PART_S, self._clock.left_s() * _PART)
        last = most == self._instance.max_gpus
        while self._low + 1 < self._high and not self._clock.over():
            ceiling, step = self._relaxed(most), 1
            while self._low + 1 < ceiling and not self._clock.over():
                if last and _ENOUGH * (ceiling - self._low) < self._high - self._low:
                    break
                place = max(ceiling - step, self._low + 1) if step else (self._low + ceiling) // 2
                decision = self._at(place, most).decide(part_s)
                if decision.status == "found":
                    self._reach(decision.segments)
                    step = 0
                else:
                    if last and decision.status == "none":
                        self._refuted(place)
                    ceiling, step = place, 2 * step
            if not last:
                return
            part_s *= 4

    def _save_gpus(self) -> None:
        decision = self._at(self._low, self._instance.max_gpus).fewest(self._segments)
        self._clock.count("fewest_proven", decision.status == "found")
        if decision.segments:
            self._segments = decision.segments

    def _reach(self, segments: Segments) -> None:
        value = worth(self._instance, segments) if segments else 0.0
        place = bisect_left(self._values, value)
        if value > 0 and place >= self._high:
            raise InternalFault("The placement search found a pipeline at a threshold that it had refuted.")
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

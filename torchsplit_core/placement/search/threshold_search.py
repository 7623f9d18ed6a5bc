"""The search over thresholds: the optimum is one of finitely many values."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from math import inf

from torchsplit_core.placement.model.instance import ProblemInstance, SearchResult, Segments
from torchsplit_core.placement.search.clock import LEAST_TRY_S, TRY_PART, SearchClock
from torchsplit_core.placement.search.large_segments.cover_search import BoundedPipeline, LargeSegmentSearch
from torchsplit_core.placement.search.layer_assignment import pipeline_throughput
from torchsplit_core.placement.search.segment_table import (
    SegmentTable,
    build_table,
    candidate_values,
    count_multisets,
)
from torchsplit_core.placement.search.threshold_problem import ThresholdProblem
from torchsplit_core.values import InternalFault

_ENOUGH = 8
"""If less than one in so many of the open thresholds is between the value and the lowest undecided one, the undecided
get more time first. In benchmarks/placement_constants.py 2 and 32 make no difference beyond the noise (a third)."""

_REST, _SHORT_S = 0.9, 0.4
"""For segments of several GPUs, but the largest size: share of the time left to the next size, and seconds of a try. In
benchmarks/placement_constants.py 0.6 to 0.975 and 0.1 to 1.6 s make no difference beyond the noise (a third)."""

_WIDE = 20_000
"""Throughputs (multisets of kinds × layer counts) above which the search begins with covers, without a table: they
prove "five types, 16 and 64" of benchmarks/placement_search.py within 1.3 s. Chosen, not measured."""

_FEW_MULTISETS, _MOST_MULTISETS = 100, 2_000
"""Multisets of the small and the large table on which covers fall back. Chosen, not measured."""

_WIDE_PART, _SMALL_PART, _TABLE_PART = 0.3, 0.2, 0.5
"""Shares of the remaining time: for covers, a small table, a large one. Chosen, not measured."""

Progress = Callable[[float, float], None]


def search_thresholds(
    instance: ProblemInstance,
    *,
    time_limit_s: float,
    progress: Progress | None = None,
    warm_start: SearchResult | None = None,
) -> SearchResult:
    """The pipeline of the highest throughput, and of the fewest GPUs among these.

    progress: called with (value, bound) whenever one of them improves. warm_start: the result of a similar instance,
    whose pipeline is tried first. Proven results are deterministic.
    """
    assert instance.flight is None, "thresholds know nothing of a pipeline as a whole: best_pipeline does"
    clock = SearchClock.start(time_limit_s)
    tell = progress or _ignore_progress
    known = warm_start.segments if warm_start is not None and _fits_instance(instance, warm_start) else ()
    if known and not pipeline_throughput(instance, known):
        known = ()
    if instance.shares is not None and count_multisets(instance) * instance.layers > _WIDE:
        result = _search_large_segments(instance, clock, tell, known)
    else:
        table = build_table(instance, clock)
        if table is None:
            result = BoundedPipeline(pipeline_throughput(instance, known) if known else 0.0, inf, known)
        else:
            result = _ThresholdSearch(instance, table, clock, tell).run(known)
    clock.count("search_s", clock.passed_s())
    proven = result.proven()
    return SearchResult(
        result.value, result.value if proven else result.bound, proven, result.segments, dict(clock.counts)
    )


def _search_large_segments(
    instance: ProblemInstance, clock: SearchClock, tell: Progress, known: Segments
) -> BoundedPipeline:
    """By covers first, which need no table. If links bind: a small table for an early pipeline, beam searches with
    covers, a large table; and covers again if that is incomplete."""
    large_search = LargeSegmentSearch(instance, tell)
    result = large_search.run(clock.part(_WIDE_PART * clock.left_s()), known, walks=False)
    few = count_multisets(instance) <= _MOST_MULTISETS
    if result.proven():
        if result.fewest or not result.segments or not few:
            return result
        # If links bind, covers do not prove the fewest GPUs.
        table = build_table(instance, clock.part(_SMALL_PART * clock.left_s()))
        return (
            _ThresholdSearch(instance, table, clock, tell, result.bound).run(result.segments)
            if table
            else result
        )
    for part, most in ((_SMALL_PART, _FEW_MULTISETS), (_TABLE_PART, _MOST_MULTISETS)):
        table = build_table(instance, clock.part(part * clock.left_s()), part=most)
        if table is None:
            return result
        limit = clock if table.complete else clock.part(part * clock.left_s())
        result = _ThresholdSearch(instance, table, limit, tell, result.bound).run(result.segments)
        if table.complete or result.proven():
            return result
        result = large_search.run(clock.part(_WIDE_PART * clock.left_s()), result.segments)
        if result.proven():
            return result
    return large_search.run(clock, result.segments)


def _fits_instance(instance: ProblemInstance, warm_start: SearchResult) -> bool:
    return all(0 <= gpu < len(instance.kinds) for _, gpus in warm_start.segments for gpu in gpus)


def _ignore_progress(value: float, bound: float) -> None:
    """Report to nobody."""


class _ThresholdSearch:
    """State: `segments` reach `value`, values[low] is the last that is not above it (low -1: no pipeline yet);
    values[high] and above are refuted, for segments of the table. No pipeline is above `certified`."""

    def __init__(
        self,
        instance: ProblemInstance,
        table: SegmentTable,
        clock: SearchClock,
        tell: Progress,
        certified: float = inf,
    ) -> None:
        self._instance, self._table, self._clock, self._progress = instance, table, clock, tell
        self._values = candidate_values(instance, table)
        clock.count("candidates", len(self._values))
        self._certified = certified
        self._low, self._high = -1, bisect_right(self._values, certified)
        self._value = 0.0
        self._segments: Segments = ()

    def run(self, known: Segments) -> BoundedPipeline:
        """known: a pipeline to begin with, on GPUs of the instance."""
        self._update_incumbent(known)
        most = self._instance.max_gpus
        self._tighten_bound(self._relaxed_bound(most))
        if self._low + 1 < self._high:
            self._update_incumbent(self._threshold_at(self._high - 1, most).solve_easy().segments)
        largest, size = int(self._table.counts.sum(axis=1).max()), 1
        while size < largest:
            self._close_interval(size)
            size *= 2
        self._close_interval(most)
        if self._table.complete and self._low + 1 == self._high and self._low >= 0:
            self._minimize_gpus()
        return self._result()

    def _threshold_at(self, index: int, most: int) -> ThresholdProblem:
        return ThresholdProblem(self._instance, self._table, float(self._values[index]), most, self._clock)

    def _relaxed_bound(self, most: int) -> int:
        """The first index that packings refute, ignoring links inside a component."""
        low, high = self._low, self._high
        while low + 1 < high and not self._clock.over():
            middle = (low + high) // 2
            if self._threshold_at(middle, most).relaxation_status() == "none":
                high = middle
            else:
                low = middle
        return high

    def _close_interval(self, most: int) -> None:
        """Close the interval with segments of at most `most` GPUs, each try in a part of the time.

        Small segments come first, 1, 2, 4, …: among few a pipeline is found soon. Sizes above one GPU get a tenth of
        the time, in short tries, until all had their turn. Near the upper end fast links are few and programs small:
        from there down in doubling steps until something is found, then by bisection, while that is a good part of the
        interval. Undecided thresholds are tried again with more time.
        """
        last = most == self._instance.max_gpus
        brief = not last and most > 1
        part_s = _SHORT_S if brief else max(LEAST_TRY_S, self._clock.left_s() * TRY_PART)
        until_s = self._clock.left_s() * _REST if brief else 0.0
        while self._low + 1 < self._high and not self._clock.over():
            upper, step = self._relaxed_bound(most), 1
            if last:
                self._tighten_bound(upper)
            while self._low + 1 < upper and self._clock.left_s() > until_s:
                if last and _ENOUGH * (upper - self._low) < self._high - self._low:
                    break
                index = max(upper - step, self._low + 1) if step else (self._low + upper) // 2
                decision = self._threshold_at(index, most).decide(part_s)
                if decision.status == "found":
                    self._update_incumbent(decision.segments)
                    step = 0
                else:
                    if last and decision.status == "none":
                        self._tighten_bound(index)
                    upper, step = index, 2 * step
            if not last:
                return
            part_s *= 4  # as TRY_PART says

    def _minimize_gpus(self) -> None:
        decision = self._threshold_at(self._low, self._instance.max_gpus).minimize_gpus(self._segments)
        self._clock.count("fewest_proven", decision.status == "found")
        if decision.segments:
            self._segments = decision.segments

    def _update_incumbent(self, segments: Segments) -> None:
        value = pipeline_throughput(self._instance, segments) if segments else 0.0
        if value <= self._value:
            return
        if value > self._certified or (self._table.complete and value > self._bound()):
            raise InternalFault("The placement search found a pipeline at a threshold that it had refuted.")
        self._value, self._segments = value, segments
        self._low = max(self._low, min(bisect_right(self._values, value), self._high) - 1)
        self._report()

    def _tighten_bound(self, index: int) -> None:
        if index < self._high:
            self._high = index
            self._report()

    def _bound(self) -> float:
        if not self._table.complete:
            return self._certified
        return float(self._values[self._high - 1]) if self._high > 0 else 0.0

    def _report(self) -> None:
        self._progress(self._value, self._bound())

    def _result(self) -> BoundedPipeline:
        return BoundedPipeline(self._value, self._bound(), self._segments)

"""The order of thresholds on the Pareto curve, and what the results prove of it.

The result at a threshold is the least latency of the pipelines that reach it. The throughput of its plan is often
higher; no threshold between the two need be searched. An interval of candidate values between two results is closed
once it is empty, or once the lower end's bound leaves no gain on the upper end's plan.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.latency.pipeline_plan import (
    PROVEN,
    SAME,
    MinLatency,
    PipelinePlan,
    is_better,
    nondominated,
)
from torchsplit_core.placement.search.clock import SearchClock

SPREAD = 8
"""Results spread over the curve before every second one must close an interval. Chosen, not measured."""

MOST_TRIES = 3
"""Searches of one threshold, where other plans or more time may prove what the last left open. Chosen, not measured."""

Query = Callable[[float, PipelinePlan | None], MinLatency]
Tell = Callable[["Curve"], None]
TellPoints = Callable[[tuple["CurvePoint", ...]], None]


@dataclass(frozen=True)
class CurvePoint:
    """A plan of the curve, and the least latency of pipelines with at least its throughput."""

    plan: PipelinePlan
    bound_s: float

    @property
    def proven(self) -> bool:
        """Whether no pipeline of this throughput has a lower latency."""
        return self.plan.latency_s <= self.bound_s * (1 + PROVEN)


@dataclass(frozen=True)
class FrontierResult:
    """points: by ascending throughput. throughput_bound: no pipeline has more; infinite if unknown, 0 if provably no
    pipeline exists. top_proven: the last point reaches the bound. closed: every point is proven, and none is missing
    between the first and the last."""

    points: tuple[CurvePoint, ...]
    throughput_bound: float
    top_proven: bool
    closed: bool
    statistics: Mapping[str, float]

    @property
    def complete(self) -> bool:
        """Whether this is proven to be the whole curve."""
        return self.top_proven and self.closed


@dataclass(frozen=True)
class _ThresholdResult:
    """The result at candidate `low`; its plan reaches candidate `high` (both indices)."""

    low: int
    high: int
    least: MinLatency


class Curve:
    """The results so far. `values`: all possible throughputs of a pipeline, ascending."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values
        self._results: list[_ThresholdResult] = []
        self._plans: list[PipelinePlan] = []
        self._tried: dict[int, int] = {}

    def add_plan(self, plan: PipelinePlan) -> None:
        """Add a plan found by other means."""
        self._plans.append(plan)

    def query(self, low: int, minimize: Query) -> MinLatency:
        """Search at the candidate of this index, and store the result with the best plan known for it."""
        threshold = float(self._values[low])
        least = minimize(threshold, self.best_at(threshold))
        if least.plan is not None:
            self._plans.append(least.plan)
        same = [result for result in self._results if result.low == low]
        bound_s = max([least.bound_s, *(result.least.bound_s for result in same)])
        self._results = [result for result in self._results if result.low != low]
        self._results.append(_ThresholdResult(low, low, MinLatency(least.plan, bound_s)))
        self._tried[low] = self._tried.get(low, 0) + 1
        self._results.sort(key=lambda result: result.low)
        self._results = [self._with_best(result) for result in self._results]
        return least

    def _with_best(self, result: _ThresholdResult) -> _ThresholdResult:
        """The result with the best plan known for its threshold, which a later search may have found."""
        known = self.best_at(float(self._values[result.low]))
        high = result.low if known is None else bisect_left(self._values, known.throughput)
        return _ThresholdResult(result.low, high, MinLatency(known, result.least.bound_s))

    def best_at(self, threshold: float) -> PipelinePlan | None:
        """The plan of least latency that reaches the threshold."""
        best = None
        for plan in self._plans:
            if plan.throughput >= threshold and is_better(plan, best):
                best = plan
        return best

    def next_threshold(self) -> int | None:
        """The next candidate: in the largest open interval, its middle or its first; None if all are closed."""
        best, index = 0.0, None
        top, quickest = self._values[-1], 0.0
        # The first value of an interval closes it, or has the next point of the curve.
        finish = len(self._results) >= SPREAD and len(self._results) % 2 == 1
        for below, above in zip(self._results, self._results[1:], strict=False):
            quickest = max(quickest, below.least.bound_s)
            first, last = below.high + 1, above.low - 1
            if first > last or above.least.plan is None:
                continue
            slowest = above.least.plan.latency_s
            if quickest >= slowest * (1 - SAME):
                continue
            width = float(self._values[above.low] - self._values[below.high]) / top
            size = width * (slowest - quickest) / slowest
            if index is None or size > best:
                middle = (self._values[first] + self._values[last]) / 2
                best, index = (
                    size,
                    first if finish else max(first, min(last, bisect_left(self._values, middle))),
                )
        return index

    def next_unproven(self) -> int | None:
        """The result that is to be searched again: not proven, the least often tried, the lowest."""
        unproven = [
            (self._tried[result.low], result.low)
            for result in self._results
            if not result.least.proven and self._tried[result.low] < MOST_TRIES
        ]
        return min(unproven)[1] if unproven else None

    def points(self) -> tuple[CurvePoint, ...]:
        """The nondominated plans by ascending throughput, each with its bound."""
        return tuple(CurvePoint(plan, self._bound_s(plan)) for plan in nondominated(self._plans))

    def is_complete(self) -> bool:
        """Whether no pipeline is missing between the lowest and the highest result."""
        return self.next_threshold() is None and all(result.least.proven for result in self._results)

    def _bound_s(self, plan: PipelinePlan) -> float:
        bounds = [
            result.least.bound_s
            for result in self._results
            if self._values[result.low] <= plan.throughput and math.isfinite(result.least.bound_s)
        ]
        return min(plan.latency_s, max(bounds, default=0.0))


def close_intervals(curve: Curve, minimize: Query, clock: SearchClock, most: float, tell: Tell) -> None:
    """Search until every interval is closed and every result proven, there are `most` points, or time is over."""
    while not clock.over() and len(curve.points()) < most:
        index = curve.next_threshold()
        if index is None:
            index = curve.next_unproven()
        if index is None:
            return
        curve.query(index, minimize)
        clock.count("thresholds")
        tell(curve)

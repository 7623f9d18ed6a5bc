"""Throughput against latency if sequences in flight limit a pipeline as a whole.

The result at a threshold is the least latency of the pipelines that reach it. A pipeline's throughput is any number
here, not a value of a segment or link; so the interval between a result's throughput and the next threshold stays open
until it is narrower than a step, or both have the same latency. With all intervals closed and proven the curve is
complete.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

from torchsplit_core.placement.frontier.curve import CurvePoint, FrontierResult, TellPoints
from torchsplit_core.placement.latency.in_flight.min_latency import InFlightMinLatency
from torchsplit_core.placement.latency.in_flight.pareto_enumeration import enumerate_pareto_front
from torchsplit_core.placement.latency.in_flight.pipeline_search import STEP, best_pipeline
from torchsplit_core.placement.latency.pipeline_plan import (
    SAME,
    MinLatency,
    PassCosts,
    PipelinePlan,
    evaluate_plan,
    is_better,
    nondominated,
)
from torchsplit_core.placement.model.instance import InFlightLimit, ProblemInstance
from torchsplit_core.placement.search.clock import SearchClock

TOP_SHARE = 0.4
"""Most of the time for the highest throughput. Chosen, not measured."""

MOST_ANSWERS, SPREAD = 60, 8
"""Most thresholds, and how many before every second one must close an interval. Chosen, not measured."""


@dataclass(frozen=True, order=True)
class _ThresholdResult:
    """At a threshold: the best plan known, and a bound of the latency of pipelines that reach it."""

    threshold: float
    plan: PipelinePlan
    bound_s: float

    @property
    def proven(self) -> bool:
        return CurvePoint(self.plan, self.bound_s).proven


def trace_in_flight(
    instance: ProblemInstance,
    flight: InFlightLimit,
    time_limit_s: float,
    tell: TellPoints | None,
    tell_top: Callable[[float, float], None] | None,
) -> FrontierResult:
    """The nondominated pipelines in throughput and latency, as for `trace_frontier`."""
    clock = SearchClock.start(time_limit_s)
    costs = PassCosts(flight.tokens, flight.link_tokens)
    every = enumerate_pareto_front(instance, costs)
    if every is not None:
        points = tuple(CurvePoint(plan, plan.latency_s) for plan in every)
        top = points[-1].plan.throughput if points else 0.0
        if points and tell is not None:
            tell(points)
        return FrontierResult(points, top, True, True, {"trace_s": clock.passed_s()})
    best = best_pipeline(instance, time_limit_s=TOP_SHARE * time_limit_s, progress=tell_top)
    plan = evaluate_plan(instance, costs, best.segments) if best.segments else None
    if plan is None:
        return FrontierResult((), best.bound, best.proven, best.proven, {"trace_s": clock.passed_s()})
    results = _ThresholdResults(plan, InFlightMinLatency(instance, flight, clock))
    results.query(plan.throughput * STEP)
    results.query(plan.throughput)
    while not clock.over() and len(results.results) < MOST_ANSWERS:
        threshold = results.next_threshold()
        if threshold is None:
            break
        results.query(threshold)
        clock.count("thresholds")
        if tell is not None:
            tell(results.points())
    closed = results.next_threshold() is None and all(result.proven for result in results.results)
    clock.count("trace_s", clock.passed_s())
    return FrontierResult(results.points(), best.bound, best.proven, closed, dict(clock.counts))


class _ThresholdResults:
    """The results so far by ascending threshold, and every plan seen."""

    def __init__(self, top: PipelinePlan, least: InFlightMinLatency) -> None:
        self.results: list[_ThresholdResult] = []
        self._plans, self._least, self._top = [top], least, top

    def query(self, threshold: float) -> None:
        """Search for the least latency at a threshold that the top plan reaches."""
        minimum: MinLatency = self._least.min_latency(threshold)
        if minimum.plan is not None:
            self._plans.append(minimum.plan)
        best = self._top
        for plan in self._plans:
            if plan.throughput >= threshold and is_better(plan, best):
                best = plan
        insort(
            self.results,
            _ThresholdResult(threshold, best, min(minimum.bound_s, best.latency_s)),
            key=_threshold,
        )

    def next_threshold(self) -> float | None:
        """The next threshold: in the widest open interval, its middle or its start."""
        size, chosen = 0.0, None
        quickest_s = 0.0
        start = len(self.results) >= SPREAD and len(self.results) % 2 == 1
        for below, above in zip(self.results, self.results[1:], strict=False):
            quickest_s = max(quickest_s, below.bound_s)
            low, high = below.plan.throughput * (1 + STEP), above.threshold
            slow_s = above.plan.latency_s
            if low >= high or quickest_s >= slow_s * (1 - SAME):
                continue
            wide = (high - low) * (slow_s - quickest_s)
            if chosen is None or wide > size:
                size, chosen = wide, low if start else (low + high) / 2
        return chosen

    def points(self) -> tuple[CurvePoint, ...]:
        """The nondominated plans by ascending throughput, each with its bound."""
        return tuple(
            CurvePoint(
                plan,
                min(
                    plan.latency_s,
                    max(
                        (result.bound_s for result in self.results if result.threshold <= plan.throughput),
                        default=0.0,
                    ),
                ),
            )
            for plan in nondominated(self._plans)
        )


def _threshold(result: _ThresholdResult) -> float:
    return result.threshold

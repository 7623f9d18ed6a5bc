"""Throughput against latency where sequences under way limit a pipeline as a whole.

The answer at a threshold is the least latency of the pipelines that are worth it. What a pipeline is worth is no value
of a segment or a link here, but any number; so what lies between an answer's worth and the next threshold asked is
open until it is no wider than a step, or the two are as quick. With all closed and proven the curve is complete.
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
"""Of the time, at most, for the highest throughput. Chosen, not measured."""

MOST_ANSWERS, SPREAD = 60, 8
"""Thresholds asked, and how many before every other one is to close what is open. Chosen, not measured."""


@dataclass(frozen=True, order=True)
class _ThresholdResult:
    """At this threshold: the best plan known, and what no pipeline worth it is faster than."""

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
    """The pipelines that no other beats in throughput and latency, as `trace_frontier` has it."""
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
    """The answers so far, by rising threshold, and every plan met."""

    def __init__(self, top: PipelinePlan, least: InFlightMinLatency) -> None:
        self.results: list[_ThresholdResult] = []
        self._plans, self._least, self._top = [top], least, top

    def query(self, threshold: float) -> None:
        """Ask for the least latency at a threshold that the top plan reaches."""
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
        """The threshold to ask at next: in the widest of what is open, its middle or its start."""
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
        """The plans that no other beats, by rising throughput, each with its bound."""
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

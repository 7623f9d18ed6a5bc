"""Throughput against latency where sequences under way limit a pipeline as a whole.

The answer at a threshold is the least latency of the pipelines that are worth it. What a pipeline is worth is no value
of a segment or a link here, but any number; so what lies between an answer's worth and the next threshold asked is
open until it is no wider than a step, or the two are as quick. With all closed and proven the curve is complete.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

from torchsplit_core.placement.frontier.curve import Point, TellPoints, Traced
from torchsplit_core.placement.latency.in_flight.best import STEP, best_pipeline
from torchsplit_core.placement.latency.in_flight.every import list_unbeaten
from torchsplit_core.placement.latency.in_flight.least import LeastInFlight
from torchsplit_core.placement.latency.plan import SAME, Least, PassCosts, Plan, better, plan_of, unbeaten
from torchsplit_core.placement.model.instance import InFlight, Instance
from torchsplit_core.placement.search.clock import Clock

TOP_SHARE = 0.4
"""Of the time, at most, for the highest throughput. Chosen, not measured."""

MOST_ANSWERS, SPREAD = 60, 8
"""Thresholds asked, and how many before every other one is to close what is open. Chosen, not measured."""


@dataclass(frozen=True, order=True)
class _Answer:
    """At this threshold: the best plan known, and what no pipeline worth it is faster than."""

    threshold: float
    plan: Plan
    bound_s: float

    @property
    def proven(self) -> bool:
        return Point(self.plan, self.bound_s).proven


def trace_in_flight(
    instance: Instance,
    flight: InFlight,
    time_limit_s: float,
    tell: TellPoints | None,
    tell_top: Callable[[float, float], None] | None,
) -> Traced:
    """The pipelines that no other beats in throughput and latency, as `trace` has it."""
    clock = Clock.start(time_limit_s)
    costs = PassCosts(flight.tokens, flight.link_tokens)
    every = list_unbeaten(instance, costs)
    if every is not None:
        points = tuple(Point(plan, plan.latency_s) for plan in every)
        top = points[-1].plan.throughput if points else 0.0
        if points and tell is not None:
            tell(points)
        return Traced(points, top, True, True, {"trace_s": clock.passed_s()})
    best = best_pipeline(instance, time_limit_s=TOP_SHARE * time_limit_s, progress=tell_top)
    plan = plan_of(instance, costs, best.segments) if best.segments else None
    if plan is None:
        return Traced((), best.bound, best.proven, best.proven, {"trace_s": clock.passed_s()})
    answers = _Answers(plan, LeastInFlight(instance, flight, clock))
    answers.ask(plan.throughput * STEP)
    answers.ask(plan.throughput)
    while not clock.over() and len(answers.found) < MOST_ANSWERS:
        threshold = answers.next()
        if threshold is None:
            break
        answers.ask(threshold)
        clock.count("thresholds")
        if tell is not None:
            tell(answers.points())
    closed = answers.next() is None and all(one.proven for one in answers.found)
    clock.count("trace_s", clock.passed_s())
    return Traced(answers.points(), best.bound, best.proven, closed, dict(clock.counts))


class _Answers:
    """The answers so far, by rising threshold, and every plan met."""

    def __init__(self, top: Plan, least: LeastInFlight) -> None:
        self.found: list[_Answer] = []
        self._plans, self._least, self._top = [top], least, top

    def ask(self, threshold: float) -> None:
        """Ask for the least latency at a threshold that the top plan reaches."""
        found: Least = self._least.least(threshold)
        if found.plan is not None:
            self._plans.append(found.plan)
        best = self._top
        for plan in self._plans:
            if plan.throughput >= threshold and better(plan, best):
                best = plan
        insort(self.found, _Answer(threshold, best, min(found.bound_s, best.latency_s)), key=_threshold)

    def next(self) -> float | None:
        """The threshold to ask at next: in the widest of what is open, its middle or its start."""
        size, chosen = 0.0, None
        quickest_s = 0.0
        start = len(self.found) >= SPREAD and len(self.found) % 2 == 1
        for below, above in zip(self.found, self.found[1:], strict=False):
            quickest_s = max(quickest_s, below.bound_s)
            low, high = below.plan.throughput * (1 + STEP), above.threshold
            slow_s = above.plan.latency_s
            if low >= high or quickest_s >= slow_s * (1 - SAME):
                continue
            wide = (high - low) * (slow_s - quickest_s)
            if chosen is None or wide > size:
                size, chosen = wide, low if start else (low + high) / 2
        return chosen

    def points(self) -> tuple[Point, ...]:
        """The plans that no other beats, by rising throughput, each with its bound."""
        return tuple(
            Point(
                plan,
                min(
                    plan.latency_s,
                    max((one.bound_s for one in self.found if one.threshold <= plan.throughput), default=0.0),
                ),
            )
            for plan in unbeaten(self._plans)
        )


def _threshold(answer: _Answer) -> float:
    return answer.threshold

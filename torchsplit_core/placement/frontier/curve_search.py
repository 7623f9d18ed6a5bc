"""The Pareto curve of one instance: its ends first, then points between them until time is over."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from math import inf

from torchsplit_core.placement.frontier.curve import (
    Curve,
    CurvePoint,
    FrontierResult,
    Query,
    TellPoints,
    close_intervals,
)
from torchsplit_core.placement.frontier.in_flight import trace_in_flight
from torchsplit_core.placement.latency.dynamic_program import build_dynamic_program
from torchsplit_core.placement.latency.in_flight import best_pipeline
from torchsplit_core.placement.latency.pipeline_plan import MinLatency, PassCosts, PipelinePlan, evaluate_plan
from torchsplit_core.placement.latency.programs import LatencyPrograms
from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.segment_table import SegmentTable, build_table, candidate_values

TOP_SHARE = 0.4
"""Most of the time for the highest throughput. Chosen, not measured."""

TABLE_SHARE = 0.3
"""Most of the remaining time for the throughputs of all segments. Chosen, not measured."""

LEAST_TABLE_S = 0.2
"""Least seconds for them: without the table nothing is known of the latency. Chosen, not measured."""

MOST_POINTS = 40
"""Points of a curve whose every result takes a program. Chosen, not measured."""

QUICK_WORK, WORK_PER_S = 1e6, 3e7
"""Elementary steps up to which the dynamic program replaces integer programs, and its least steps per second."""


def trace_frontier(
    instance: ProblemInstance,
    costs: PassCosts,
    *,
    time_limit_s: float,
    tell: TellPoints | None = None,
    tell_top: Callable[[float, float], None] | None = None,
) -> FrontierResult:
    """The nondominated pipelines in throughput and latency. tell: called with the points when they grow.

    tell_top: called with the highest throughput so far and its bound, before there are points.
    """
    if instance.flight is not None:
        return trace_in_flight(instance, instance.flight, time_limit_s, tell, tell_top)
    clock = SearchClock.start(time_limit_s)
    top = best_pipeline(instance, time_limit_s=TOP_SHARE * time_limit_s, progress=tell_top)
    best = evaluate_plan(instance, costs, top.segments) if top.segments else None
    if best is None:
        return FrontierResult((), top.bound, top.proven, top.proven, _statistics(clock))
    table = build_table(instance, SearchClock.start(max(LEAST_TABLE_S, TABLE_SHARE * clock.left_s())))
    if table is None:
        return FrontierResult((CurvePoint(best, 0.0),), top.bound, top.proven, False, _statistics(clock))
    values = candidate_values(instance, table)
    curve = Curve(values)
    curve.add_plan(best)
    minimize, most = _make_query(instance, costs, table, clock)

    def report(curve: Curve) -> None:
        if tell is not None:
            tell(curve.points())

    curve.query(0, minimize)
    report(curve)
    if not clock.over():
        curve.query(bisect_left(values, best.throughput), minimize)
        report(curve)
        close_intervals(curve, minimize, clock, most, report)
    return FrontierResult(curve.points(), top.bound, top.proven, curve.is_complete(), _statistics(clock))


def _make_query(
    instance: ProblemInstance, costs: PassCosts, table: SegmentTable, clock: SearchClock
) -> tuple[Query, float]:
    """The function that searches at a threshold, and the most points."""
    dynamic_program = build_dynamic_program(instance, costs)
    if dynamic_program is not None and dynamic_program.work <= QUICK_WORK:
        return dynamic_program.min_latency, inf
    programs = LatencyPrograms(instance, costs, table, clock)

    def minimize(threshold: float, known: PipelinePlan | None) -> MinLatency:
        result = programs.min_latency(threshold, known)
        if result.proven or dynamic_program is None or dynamic_program.work / WORK_PER_S > clock.left_s() / 2:
            return result
        clock.count("sweeps")
        return dynamic_program.min_latency(threshold)

    return minimize, MOST_POINTS


def _statistics(clock: SearchClock) -> dict[str, float]:
    clock.count("trace_s", clock.passed_s())
    return dict(clock.counts)

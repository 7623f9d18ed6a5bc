"""The curve of one instance: its ends first, then what lies between, as far as the time goes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from math import inf

from torchsplit_core.placement.frontier.curve import Ask, Curve, Point, TellPoints, Traced, sweep
from torchsplit_core.placement.frontier.in_flight import trace_in_flight
from torchsplit_core.placement.latency.in_flight import best_pipeline
from torchsplit_core.placement.latency.plan import Least, PassCosts, Plan, plan_of
from torchsplit_core.placement.latency.programs import Programs
from torchsplit_core.placement.latency.sweep import build_sweep
from torchsplit_core.placement.model.instance import Instance
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.table import Table, build_table, candidates

TOP_SHARE = 0.4
"""Of the time, at most, for the highest throughput. Chosen, not measured."""

TABLE_SHARE = 0.3
"""Of what is then left, at most, for the throughput of every segment. Chosen, not measured."""

LEAST_TABLE_S = 0.2
"""For it, however little is left: without it nothing is known of the latency. Chosen, not
measured."""

MOST_POINTS = 40
"""Of a curve whose every answer takes its time. Chosen, not measured."""

QUICK_WORK, WORK_PER_S = 1e6, 3e7
"""Elementary steps of a sweep over all states that need no program before it, and those of a second, at least."""


def trace(
    instance: Instance,
    costs: PassCosts,
    *,
    time_limit_s: float,
    tell: TellPoints | None = None,
    tell_top: Callable[[float, float], None] | None = None,
) -> Traced:
    """The pipelines that no other beats in throughput and latency. tell: called with the points when they grow.

    tell_top: called with the highest throughput so far and its bound, before there are points.
    """
    if instance.flight is not None:
        return trace_in_flight(instance, instance.flight, time_limit_s, tell, tell_top)
    clock = Clock.start(time_limit_s)
    top = best_pipeline(instance, time_limit_s=TOP_SHARE * time_limit_s, progress=tell_top)
    best = plan_of(instance, costs, top.segments) if top.segments else None
    if best is None:
        return Traced((), top.bound, top.proven, top.proven, _told(clock))
    table = build_table(instance, Clock.start(max(LEAST_TABLE_S, TABLE_SHARE * clock.left_s())))
    if table is None:
        return Traced((Point(best, 0.0),), top.bound, top.proven, False, _told(clock))
    values = candidates(instance, table)
    curve = Curve(values)
    curve.know(best)
    ask, most = _asker(instance, costs, table, clock)

    def told(curve: Curve) -> None:
        if tell is not None:
            tell(curve.points())

    curve.ask(0, ask)
    told(curve)
    if not clock.over():
        curve.ask(bisect_left(values, best.throughput), ask)
        told(curve)
        sweep(curve, ask, clock, most, told)
    return Traced(curve.points(), top.bound, top.proven, curve.complete(), _told(clock))


def _asker(instance: Instance, costs: PassCosts, table: Table, clock: Clock) -> tuple[Ask, float]:
    """What answers at a threshold, and how many points there are to be at most."""
    sweep = build_sweep(instance, costs)
    if sweep is not None and sweep.work <= QUICK_WORK:
        return sweep.least, inf
    programs = Programs(instance, costs, table, clock)

    def ask(threshold: float, known: Plan | None) -> Least:
        found = programs.least(threshold, known)
        if found.proven or sweep is None or sweep.work / WORK_PER_S > clock.left_s() / 2:
            return found
        clock.count("sweeps")
        return sweep.least(threshold)

    return ask, MOST_POINTS


def _told(clock: Clock) -> dict[str, float]:
    clock.count("trace_s", clock.passed_s())
    return dict(clock.counts)

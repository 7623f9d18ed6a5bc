"""A trace against planned days: at which moments its demand is above what its window's plan serves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchsplit_core.day_plans.window_requests import windows_of
from torchsplit_core.tables.demand_trace.trace_csv import DAY_S, DemandTrace
from torchsplit_core.values import DayOutcome, PlanRequest
from torchsplit_core.values.plan.demand_over_day import DAY_MINUTES

ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class TraceCheck:
    """Of `moments` with a value of every model of the trace those at which all are served (`held`).

    `worst_ratio`: the largest demand ÷ throughput (infinite where the window serves none), of `worst_model` at
    `worst_minute` of the day, UTC.
    """

    moments: int
    held: int
    worst_ratio: float
    worst_model: str
    worst_minute: int


def check_trace(request: PlanRequest, outcome: DayOutcome, trace: DemandTrace) -> TraceCheck | None:
    """The trace, whose names are models of the request, against the day's plans; None without a moment to check."""
    window_at = [0] * DAY_MINUTES
    for number, window in enumerate(windows_of(request)):
        first, length = window.minutes
        for minute in range(first, first + length):
            window_at[minute % DAY_MINUTES] = number
    rates = [
        {model.name: model.throughput_rps for model in planned.plan.models} for planned in outcome.windows
    ]
    worst = (0.0, next(iter(trace.rates)), 0)
    moments = held = 0
    for number, values in enumerate(zip(*trace.rates.values(), strict=True)):
        if None in values:
            continue
        minute = (trace.first_s + number * trace.step_s) % DAY_S // 60
        served = rates[window_at[minute]]
        ratios = [
            (_ratio(value or 0.0, served.get(name, 0.0)), name, minute)
            for name, value in zip(trace.rates, values, strict=True)
        ]
        moments += 1
        held += max(ratios)[0] <= 1 + ROUNDING
        worst = max(worst, max(ratios))
    return TraceCheck(moments, held, *worst) if moments else None


def _ratio(demand_rps: float, served_rps: float) -> float:
    if not demand_rps:
        return 0.0
    return demand_rps / served_rps if served_rps else math.inf


def describe_check(check: TraceCheck) -> str:
    """The check in a sentence."""
    where = f"{check.worst_minute // 60:02}:{check.worst_minute % 60:02} UTC"
    if check.held == check.moments:
        return (
            f"The plans serve the trace at each of its {check.moments:,} moments; nearest to its plan: "
            f"{check.worst_model} at {where}, {check.worst_ratio:.0%} of it."
        )
    beyond = f"{check.worst_ratio:.3g} × what its window serves"
    if math.isinf(check.worst_ratio):
        beyond = "which its window does not serve"
    return (
        f"At {check.moments - check.held:,} of the trace's {check.moments:,} moments demand is above what its window "
        f"serves ({check.held / check.moments:.2%} held); furthest: {check.worst_model} at {where}, {beyond}. "
        "Plan the day again from this trace, or leave more room."
    )

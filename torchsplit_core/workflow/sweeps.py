"""Sweeps one parameter of a request over a range: one plan per value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torchsplit_core.planning.request.validate import check_minima
from torchsplit_core.planning.sweep.points import (
    SHARES,
    SweepPoint,
    SweepRequest,
    request_at,
    sweep_points,
    sweep_requests,
    visiting_order,
)
from torchsplit_core.values import PlanOutcome, PlanRequest, Progress, ignore_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchsplit_core.latency_slo.worst_response import WorstResponse


TIME_LIMIT_S = 60.0
"""Default time limit of a whole sweep."""


def sweep(
    request: PlanRequest,
    what: SweepRequest,
    *,
    time_limit_s: float = TIME_LIMIT_S,
    known: Mapping[float, PlanOutcome] | None = None,
    on_plan: Callable[[float, PlanOutcome, float], None] | None = None,
    progress: Progress = ignore_progress,
) -> tuple[SweepPoint, ...]:
    """Plan the request at every value, two at a time, and compare the plans.

    Each point may search for its share of `time_limit_s` but never longer than the request's own limit.
    `known` plans are reused; `on_plan` gets each new one as (value, outcome, its search limit in
    seconds), and again where the plan of a stricter limit of touched GPUs is better.
    Raises InputFault for an invalid request, target or value.
    """
    from torchsplit_core.planning.sweep.stricter_limit import stricter_plans
    from torchsplit_core.planning.sweep.workers import plan_all, point_time_limit_s

    requests = dict(sweep_requests(request, what))
    # A swept minimum may begin at 0, so check the last value.
    check_minima(requests[what.values[-1]])
    outcomes = dict(known or {})
    open_values = [
        what.values[at] for at in visiting_order(len(what.values)) if what.values[at] not in outcomes
    ]
    limit_s = point_time_limit_s(request, time_limit_s, len(what.values))

    def record(position: int, outcome: PlanOutcome) -> None:
        value = open_values[position]
        outcomes[value] = outcome
        better = stricter_plans(requests, outcomes) if what.parameter == "touched_gpus" else {}
        outcomes.update(better)
        if on_plan is not None:
            for changed in dict.fromkeys((value, *better)):
                on_plan(changed, outcomes[changed], limit_s)
        progress(len(outcomes) / len(what.values), _progress_text(what, len(outcomes)))

    progress(len(outcomes) / len(what.values), _progress_text(what, len(outcomes)))
    plan_all([requests[value] for value in open_values], limit_s, record)
    return sweep_points(request, what, outcomes)


def attainment_curve(
    request: PlanRequest,
    shares: Sequence[float] = SHARES,
    *,
    time_limit_s: float = TIME_LIMIT_S,
    progress: Progress = ignore_progress,
) -> tuple[SweepPoint, ...]:
    """What holding each of these shares of the request's demand samples takes: the fewest GPUs, or the least cost.

    Raises InputFault for a request without samples, and for shares that are not ascending, above 0 and at most 1.
    """
    what = SweepRequest("attainment", "", tuple(shares))
    return sweep(request, what, time_limit_s=time_limit_s, progress=progress)


def worst_responses(
    request: PlanRequest,
    what: SweepRequest,
    points: Sequence[SweepPoint],
    *,
    progress: Progress = ignore_progress,
) -> dict[float, WorstResponse | None]:
    """By value, a quick simulated p95 response of the plan's worst model, see `latency_slo.worst_response`."""
    from torchsplit_core.latency_slo.worst_response import worst_response

    worst = {}
    for done, point in enumerate(points):
        progress(done / len(points), f"simulating the plan at {point.value:g}")
        worst[point.value] = worst_response(point.outcome, request_at(request, what, point.value))
    return worst


def _progress_text(what: SweepRequest, done: int) -> str:
    return f"{done} of {len(what.values)} points"

"""What changing saves against what it loses: the day under ever looser limits of touched GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.values import DayOutcome, InputFault, PlanRequest

MOST_POINTS = 32
"""Points of a curve; each is a day."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A day on which at most `most_touched` GPUs change between windows (None: any number).

    `outcome` None: no plans were found that follow from one another so.
    """

    most_touched: int | None
    outcome: DayOutcome | None

    @property
    def saved_gpu_hours(self) -> float | None:
        """GPU-hours a day fewer than one plan takes; None where a side has no plan."""
        if self.outcome is None:
            return None
        hours = self.outcome.gpu_hours
        return None if hours.windows is None or hours.static is None else hours.static - hours.windows

    @property
    def lost_requests(self) -> float | None:
        """Requests a day that the transitions leave unserved, estimated; None where one is missing."""
        return None if self.outcome is None else self.outcome.lost_requests


def change_curve(
    request: PlanRequest,
    limits: Sequence[int | None],
    plan_day: Callable[[PlanRequest], DayOutcome],
    *,
    on_point: Callable[[ChangePoint], None] | None = None,
) -> tuple[ChangePoint, ...]:
    """A point for each limit of touched GPUs, in their order; each may search for an equal part of the time limit.

    `on_point` gets each as it is found. Raises InputFault for an invalid request, and unless there are 1 to 32 limits.
    """
    if not 1 <= len(limits) <= MOST_POINTS:
        raise InputFault(
            "limits", f"has {len(limits)} limits of touched GPUs, not 1 to {MOST_POINTS}", "Ask for fewer."
        )
    seconds = request.solver.time_limit_s / len(limits)
    points = []
    for limit in limits:
        asked = replace(
            request,
            objective=replace(request.objective, max_touched_gpus=limit),
            solver=replace(request.solver, time_limit_s=seconds),
        )
        points.append(ChangePoint(limit, _day_within(asked, plan_day)))
        if on_point is not None:
            on_point(points[-1])
    return tuple(points)


def _day_within(request: PlanRequest, plan_day: Callable[[PlanRequest], DayOutcome]) -> DayOutcome | None:
    try:
        return plan_day(request)
    except InputFault as fault:
        if fault.where != "objective.max_touched_gpus" or request.objective.max_touched_gpus is None:
            raise
        return None

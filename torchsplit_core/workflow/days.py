"""Plans over the windows of a day, and for samples of its demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torchsplit_core.transition import ChangeTimes
from torchsplit_core.values import DayOutcome, PlanOutcome, PlanRequest, Progress, ignore_progress
from torchsplit_core.workflow.steps import plan, with_engine_points

if TYPE_CHECKING:
    from torchsplit_core.day_plans.change_curve import ChangePoint
    from torchsplit_core.day_plans.replay.sides import ReplaySettings
    from torchsplit_core.planning.sample_plans.holdout import HeldOutPoint
    from torchsplit_core.tables.demand_trace.trace_csv import DemandTrace
    from torchsplit_core.values import DayReplay


def plan_day(
    request: PlanRequest, *, times: ChangeTimes | None = None, progress: Progress = ignore_progress
) -> DayOutcome:
    """The verified plans of a request's demand windows, see `day_plans.day_planner.plan_day`.

    Response-time limits and LLMs are planned as `plan` does. Raises InputFault as it does, and without windows.
    """
    from torchsplit_core.day_plans.day_planner import plan_day as solve

    def plan_window(window: PlanRequest, report: Progress) -> PlanOutcome:
        return plan(window, progress=report)

    return solve(with_engine_points(request, progress), plan_window, times=times, progress=progress)


def day_curve(
    request: PlanRequest,
    limits: Sequence[int | None],
    *,
    times: ChangeTimes | None = None,
    on_point: Callable[[ChangePoint], None] | None = None,
    progress: Progress = ignore_progress,
) -> tuple[ChangePoint, ...]:
    """What changing saves and loses under each limit of touched GPUs, see `day_plans.change_curve`."""
    from torchsplit_core.day_plans.change_curve import change_curve

    count = iter(range(len(limits)))

    def plan_limited(asked: PlanRequest) -> DayOutcome:
        begun = next(count) / len(limits)
        return plan_day(
            asked,
            times=times,
            progress=lambda share, text: progress(begun + share / len(limits), text),
        )

    return change_curve(with_engine_points(request), limits, plan_limited, on_point=on_point)


def held_out_curve(
    request: PlanRequest, shares: Sequence[float], *, progress: Progress = ignore_progress
) -> tuple[HeldOutPoint, ...]:
    """What shares of every second demand sample are worth on the others, see `planning.sample_plans.holdout`."""
    from torchsplit_core.planning.sample_plans.holdout import held_out_curve as solve

    def plan_share(asked: PlanRequest, report: Progress) -> PlanOutcome:
        return plan(asked, progress=report)

    return solve(with_engine_points(request, progress), shares, plan_share, progress=progress)


def replay_day(
    request: PlanRequest,
    outcome: DayOutcome,
    trace: DemandTrace,
    settings: ReplaySettings | None = None,
    progress: Progress = ignore_progress,
) -> DayReplay:
    """A planned day simulated over one day of a trace, see `day_plans.replay.sides.replay_day`."""
    from torchsplit_core.day_plans.replay.sides import replay_day as run

    return run(with_engine_points(request), outcome, trace, settings, progress)

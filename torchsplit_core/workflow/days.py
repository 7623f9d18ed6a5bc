"""Plans over the windows of a day."""

from __future__ import annotations

from torchsplit_core.transition import ChangeTimes
from torchsplit_core.values import DayOutcome, PlanOutcome, PlanRequest, Progress, ignore_progress
from torchsplit_core.workflow.steps import plan, with_engine_points


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

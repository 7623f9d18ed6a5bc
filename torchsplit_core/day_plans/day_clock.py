"""The time of a day shared out among its plans: one plan in its part of it, then one as good that changes less."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from torchsplit_core.day_plans.least_change import with_least_change
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, Progress, ignore_progress

DayPlanner = Callable[[PlanRequest, Progress], PlanOutcome]
"""Plans one request within its time limit, verified."""

SEARCH_SHARE = 0.75
"""Of the time: for all plans; transitions and checks get the rest."""

CHANGE_SHARE = 0.5
"""Of the time of a window's plan: the search for one that is as good and changes less; it gets what planning leaves,
too."""


class DayClock:
    """Shares the time of a day out among its plans."""

    def __init__(self, request: PlanRequest, plans: int, planner: DayPlanner, progress: Progress) -> None:
        self.seconds, self.plans = request.solver.time_limit_s, plans
        self.planner, self.progress = planner, progress
        self.restart()

    def restart(self) -> None:
        """Begin the day's time again."""
        self.deadline, self.left = time.perf_counter() + SEARCH_SHARE * self.seconds, self.plans

    def plan(self, request: PlanRequest, what: str, before: PlanOutcome | None) -> PlanOutcome:
        """The plan of one request in its part of the time, as an outcome of that request as it is."""
        now = time.perf_counter()
        seconds = max((self.deadline - now) / max(self.left, 1), 0.01 * self.seconds)
        done = (self.plans - self.left) / self.plans
        share = 1 / self.plans
        self.left -= 1

        def report(part: float, message: str) -> None:
            self.progress(min(1.0, done + share * part), f"{what}: {message}")

        limit = seconds if before is None else (1 - CHANGE_SHARE) * seconds
        limited = replace(request, solver=replace(request.solver, time_limit_s=limit))
        try:
            plan = replace(self.planner(limited, report), request_sha256=request_hash(request))
        except InputFault as fault:
            raise fault.within(what) from fault
        if before is not None:
            until = max(now + seconds, time.perf_counter() + 0.5 * CHANGE_SHARE * seconds)
            plan = self._near(request, plan, before, until)
        return plan

    def changed_less(
        self, request: PlanRequest, plan: PlanOutcome, before: PlanOutcome, plans: int
    ) -> PlanOutcome:
        """The plan, or one as good that changes less, in a part of the time left that leaves each of so many plans as
        much."""
        now = time.perf_counter()
        return self._near(request, plan, before, now + (self.deadline - now) / plans)

    def _near(
        self, request: PlanRequest, plan: PlanOutcome, before: PlanOutcome, until: float
    ) -> PlanOutcome:
        def quietly(asked: PlanRequest) -> PlanOutcome:
            return self.planner(asked, ignore_progress)

        return with_least_change(request, plan, before, until, quietly)

"""Plans a day: window after window, each from the plan before it, and one plan that holds through all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from torchsplit_core.day_plans.day_figures import lost_in, with_figures
from torchsplit_core.day_plans.least_change import answering, same_if_as_good, with_least_change
from torchsplit_core.day_plans.verification import verify_day
from torchsplit_core.day_plans.window_requests import (
    check_day_request,
    request_of_window,
    static_request,
    windows_of,
    with_demands_of,
)
from torchsplit_core.planning.outcome.near_current import near_current
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.transition import ChangeTimes, plan_transition, state_of_plan
from torchsplit_core.values import (
    BothSides,
    DayOutcome,
    DayWindow,
    InputFault,
    PlanOutcome,
    PlanRequest,
    Progress,
    Transition,
    ignore_progress,
)

DayPlanner = Callable[[PlanRequest, Progress], PlanOutcome]
"""Plans one request within its time limit, verified."""

MOST_ROUNDS = 4
"""Times round the day in search of windows that follow from one another with few changes."""

SEARCH_SHARE = 0.9
"""Of the time: for all plans; transitions and checks get the rest."""

MOST_TRIES, LEAST_TRIES = 60_000, 2_500
"""Tries for the orders of all transitions of a day, and of one: enough for any order of eight parts."""

CHANGE_SHARE = 0.5
"""Of the time of a window's plan: the search for one that is as good and changes less; it gets what planning leaves,
too."""


def plan_day(
    request: PlanRequest,
    planner: DayPlanner,
    *,
    times: ChangeTimes | None = None,
    progress: Progress = ignore_progress,
) -> DayOutcome:
    """The verified plans of a request's windows, the transitions between them, and the static plan.

    `solver.time_limit_s` is that of the whole day: each plan gets an equal part of what is left, and one that needs
    less leaves it to the others. Windows after one that has no plan follow from the last that has one.
    `objective.max_touched_gpus` limits each transition, that from the last window to the first included; from
    `current` to the first where the request has one. `times`: of transitions.
    Raises InputFault for an invalid request, one without windows, and where no plans were found that follow from one
    another within that limit.
    """
    check_day_request(request)
    names = [window.name for window in windows_of(request)]
    clock = _Clock(request, len(names) + 1, planner, progress)
    static = clock.plan(static_request(request), "all day", None)
    plans = _follow(request, names, clock, _first_plan(request, names[0], static, clock))
    plans = _closed(request, names, _round_again(request, names, plans, clock), clock)
    windows = tuple(
        _window(request, names, plans, number, times or ChangeTimes()) for number in range(len(names))
    )
    unknown = BothSides(None, None)
    outcome = DayOutcome(windows, static, unknown, unknown, request_sha256=request_hash(request))
    outcome = with_figures(request, outcome)
    verify_day(request, outcome)
    return outcome


class _Clock:
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


def _first_plan(request: PlanRequest, name: str, static: PlanOutcome, clock: _Clock) -> PlanOutcome:
    """The first window's plan: the static one where that is as good, since it may be as good in others too."""
    window = request_of_window(request, name)
    if static.request_sha256 == request_hash(window):
        return static
    plan = clock.plan(window, f"window {name}", None)
    return plan if request.current is not None else same_if_as_good(window, plan, static)


def _follow(
    request: PlanRequest, names: Sequence[str], clock: _Clock, first: PlanOutcome
) -> list[PlanOutcome]:
    """The plans of the windows in turn, each from the last that there is."""
    plans, before = [first], first if first.gpus else None
    for name in names[1:]:
        window = request_of_window(request, name, before)
        plans.append(clock.plan(window, f"window {name}", before))
        before = plans[-1] if plans[-1].gpus else before
    return plans


def _round_again(
    request: PlanRequest, names: Sequence[str], plans: list[PlanOutcome], clock: _Clock
) -> list[PlanOutcome]:
    """The plans, or as good ones that change less round the day: the first window's near the last one's, and the others
    again each near the one before. In the time that planning left."""
    is_bound = request.current is not None or request.objective.max_touched_gpus is not None
    if is_bound or len(plans) < 2 or not all(plan.gpus for plan in plans) or not _touched_back(plans):
        return plans
    before = plans[-1]
    moved: list[PlanOutcome] = []
    for name, plan in zip(names, plans, strict=True):
        window = request_of_window(request, name, before)
        placed = replace(plan, request_sha256=request_hash(window), touched_gpus=None)
        before = clock.changed_less(window, near_current(window, placed), before, len(plans) - len(moved))
        if not moved:
            before = answering(request_of_window(request, name), plan, before)
        moved.append(before)
    return moved if _touched_in_all(moved) < _touched_in_all(plans) else plans


def _touched_in_all(plans: Sequence[PlanOutcome]) -> int:
    """GPUs that change in a day, window by window."""
    return sum(plan.touched_gpus or 0 for plan in plans[1:]) + _touched_back(plans)


def _closed(
    request: PlanRequest, names: Sequence[str], plans: list[PlanOutcome], clock: _Clock
) -> list[PlanOutcome]:
    """The plans, or others of which the first is within the limit of changes from the last, too.

    The first window then follows from the last one, and the others from it again. Raises InputFault where that does not
    come to an end.
    """
    limit, free = request.objective.max_touched_gpus, plans[0]
    if limit is None:
        return plans
    touched = _touched_back(plans)
    for _ in range(0 if request.current is not None else MOST_ROUNDS):
        if touched <= limit:
            break
        clock.restart()
        window = request_of_window(request, names[0], plans[-1])
        limited = clock.plan(window, f"window {names[0]}", plans[-1])
        if not limited.gpus:
            break
        first = answering(request_of_window(request, names[0]), free, limited)
        plans = _follow(request, names, clock, first)
        touched = _touched_back(plans)
    if touched <= limit:
        return plans
    raise InputFault(
        "objective.max_touched_gpus",
        f"is {limit}, and from the plan of {names[-1]} back to that of {names[0]} {touched} GPUs change",
        "Allow as many, or leave the limit out.",
    )


def _touched_back(plans: Sequence[PlanOutcome]) -> int:
    """GPUs that change from the last plan to the first; 0 where one of them is missing."""
    first, last = plans[0], plans[-1]
    if not first.gpus or not last.gpus:
        return 0
    return plan_transition(first, state_of_plan(last)).touched_gpus


def _window(
    request: PlanRequest, names: Sequence[str], plans: Sequence[PlanOutcome], number: int, times: ChangeTimes
) -> DayWindow:
    """A window with the transition to the next one, before or after that begins, whichever loses fewer requests."""
    following = (number + 1) % len(plans)
    if not plans[number].gpus or not plans[following].gpus:
        return DayWindow(names[number], plans[number], None)

    def during(name: str) -> Transition:
        demands = with_demands_of(request, name)
        state, tries = state_of_plan(plans[number]), max(LEAST_TRIES, MOST_TRIES // len(plans))
        return plan_transition(plans[following], state, request=demands, times=times, most_tries=tries)

    late = during(names[following])
    early = during(names[number]) if lost_in(late) > 0 else late
    ahead = lost_in(early) < lost_in(late)
    return DayWindow(names[number], plans[number], early if ahead else late, ahead)

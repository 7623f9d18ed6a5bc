"""Plans a day: window after window, each from the plan before it, and one plan that holds through all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchsplit_core.day_plans.bounded_change import touched_back, within_limit
from torchsplit_core.day_plans.day_clock import DayClock, DayPlanner
from torchsplit_core.day_plans.day_figures import lost_in, with_figures
from torchsplit_core.day_plans.least_change import answering, same_if_as_good
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
    PlanOutcome,
    PlanRequest,
    Progress,
    Transition,
    ignore_progress,
)

MOST_TRIES, LEAST_TRIES = 60_000, 2_500
"""Tries for the orders of all transitions of a day, and of one: enough for any order of eight parts."""


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
    clock = DayClock(request, len(names) + 1, planner, progress)
    static = clock.plan(static_request(request), "all day", None)
    plans = _follow(request, names, clock, _first_plan(request, names[0], static, clock))
    plans = within_limit(request, _round_again(request, names, plans, clock), static, clock)
    windows = tuple(
        _window(request, names, plans, number, times or ChangeTimes()) for number in range(len(names))
    )
    unknown = BothSides(None, None)
    outcome = DayOutcome(
        windows,
        static,
        unknown,
        unknown,
        request_sha256=request_hash(request),
        warnings=tuple(_day_warnings(request)),
    )
    outcome = with_figures(request, outcome)
    verify_day(request, outcome)
    return outcome


def _day_warnings(request: PlanRequest) -> Iterator[str]:
    """Warn of what a day takes no notice of."""
    sampled = [model.name for model in request.models if model.demand_samples]
    if sampled:
        yield f"{', '.join(sampled)}: planned for demand_windows; demand_samples are not used."


def _first_plan(request: PlanRequest, name: str, static: PlanOutcome, clock: DayClock) -> PlanOutcome:
    """The first window's plan: the static one where that is as good, since it may be as good in others too."""
    window = request_of_window(request, name)
    if static.request_sha256 == request_hash(window):
        return static
    plan = clock.plan(window, f"window {name}", None)
    return plan if request.current is not None else same_if_as_good(window, plan, static)


def _follow(
    request: PlanRequest, names: Sequence[str], clock: DayClock, first: PlanOutcome
) -> list[PlanOutcome]:
    """The plans of the windows in turn, each from the last that there is."""
    plans, before = [first], first if first.gpus else None
    for name in names[1:]:
        window = request_of_window(request, name, before)
        plans.append(clock.plan(window, f"window {name}", before))
        before = plans[-1] if plans[-1].gpus else before
    return plans


def _round_again(
    request: PlanRequest, names: Sequence[str], plans: list[PlanOutcome], clock: DayClock
) -> list[PlanOutcome]:
    """The plans, or as good ones that change less round the day: the first window's near the last one's, and the others
    again each near the one before. In the time that planning left."""
    is_bound = request.current is not None or request.objective.max_touched_gpus is not None
    if is_bound or len(plans) < 2 or not all(plan.gpus for plan in plans) or not touched_back(plans):
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
    return sum(plan.touched_gpus or 0 for plan in plans[1:]) + touched_back(plans)


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

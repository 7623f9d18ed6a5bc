"""Days on which at most so many GPUs change between windows (`objective.max_touched_gpus`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from torchsplit_core.day_plans.day_clock import DayClock
from torchsplit_core.day_plans.least_change import answering
from torchsplit_core.day_plans.window_requests import request_of_window, windows_of, without_touch_limit
from torchsplit_core.planning.problem.held_gpus import touched_gpus
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.transition import plan_transition, state_of_plan
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest


def within_limit(
    request: PlanRequest, plans: list[PlanOutcome], static: PlanOutcome, clock: DayClock
) -> list[PlanOutcome]:
    """The plans that follow from one another, if every window has one and the way back to the first is within the
    limit, too; else plans of which each is within half of the limit of the static one, so that any two are within it.

    Without a static plan, or from a given state (`current`), plans are left as they are. Raises InputFault where all
    windows have plans and no way back was found.
    """
    limit = request.objective.max_touched_gpus
    if limit is None or (all(plan.gpus for plan in plans) and touched_back(plans) <= limit):
        return plans
    if static.gpus and request.current is None:
        near = _near_static(request, static, limit // 2, clock)
        if all(plan.gpus for plan in near) and _keep(near, limit):
            return near
    if not all(plan.gpus for plan in plans):
        return plans
    names = [window.name for window in windows_of(request)]
    raise InputFault(
        "objective.max_touched_gpus",
        f"is {limit}, and from the plan of {names[-1]} back to that of {names[0]} {touched_back(plans)} GPUs change",
        "Allow as many, or leave the limit out.",
    )


def _near_static(request: PlanRequest, static: PlanOutcome, limit: int, clock: DayClock) -> list[PlanOutcome]:
    """The plans of the windows that change at most so many GPUs of the static plan, as outcomes of their requests.

    Their bounds are those of plans without a limit. A window without a plan ends the list with that outcome.
    """
    clock.restart()
    plans: list[PlanOutcome] = []
    for window in windows_of(request):
        asked = request_of_window(request, window.name, plans[-1] if plans else None)
        free = without_touch_limit(request_of_window(request, window.name))
        best = clock.plan(free, f"window {window.name}", None)
        from_static = request_of_window(request, window.name, static)
        objective = replace(from_static.objective, max_touched_gpus=limit)
        limited = clock.plan(replace(from_static, objective=objective), f"window {window.name}", None)
        if not best.gpus or not limited.gpus:
            return [*plans, best if not best.gpus else limited]
        bound = replace(best, request_sha256=request_hash(asked), touched_gpus=None)
        plan = answering(asked, bound, limited)
        if asked.current is not None:
            plan = replace(plan, touched_gpus=touched_gpus(asked, plan.gpus))
        plans.append(plan)
    return plans


def _keep(plans: Sequence[PlanOutcome], limit: int) -> bool:
    """Whether every change is within the limit, as its plan and as its transition count it."""
    return touched_back(plans) <= limit and all(
        (later.touched_gpus or 0) <= limit and _touched(plan, later) <= limit
        for plan, later in pairwise(plans)
    )


def _touched(plan: PlanOutcome, later: PlanOutcome) -> int:
    return plan_transition(later, state_of_plan(plan), most_tries=0).touched_gpus


def touched_back(plans: Sequence[PlanOutcome]) -> int:
    """GPUs that change from the last plan to the first; 0 where one of them is missing."""
    first, last = plans[0], plans[-1]
    if not first.gpus or not last.gpus:
        return 0
    return plan_transition(first, state_of_plan(last)).touched_gpus

"""The best baseline, if a search with co-locations has no plan or a worse one."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from torchsplit_core.planning.request.objective import goal_of, reached_levels
from torchsplit_core.values import PlanOutcome, PlanRequest


def better_heuristic(
    request: PlanRequest, incumbent: PlanOutcome | None, bound: float | None, deadline: float
) -> PlanOutcome | None:
    """The plan of a baseline that is better than `incumbent`, with its bound; None if none is.

    `bound`: a proven one of the first level, if known. `deadline` is of time.perf_counter.
    """
    # Imported late: few plans need it.
    from torchsplit_core.planning.baselines.baseline_plans import build_baselines

    goal = goal_of(request)
    plans = [
        baseline.outcome
        for baseline in build_baselines(request, deadline=deadline)
        if baseline.outcome is not None
    ]
    if not plans:
        return None

    def levels(plan: PlanOutcome) -> tuple[float, ...]:
        return reached_levels(plan.objective)

    best = reduce(
        lambda first, second: second if goal.better(levels(second), levels(first)) else first, plans
    )
    if incumbent is not None and not goal.better(levels(best), levels(incumbent)):
        return None
    objective = best.objective
    if bound is not None and objective.value is not None:
        first = reached_levels(objective)[0]
        tight = goal.clamp_bound(bound, first)
        objective = replace(objective, bound=tight, gap=goal.gap(first, tight))
    return replace(best, objective=objective)

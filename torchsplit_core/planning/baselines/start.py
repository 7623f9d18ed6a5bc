"""The best plan by a rule, where a search with co-locations has found none, or a worse one."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from torchsplit_core.planning.request.objective import goal_of, reached
from torchsplit_core.values import PlanOutcome, PlanRequest


def better_by_rule(
    request: PlanRequest, found: PlanOutcome | None, bound: float | None, deadline: float
) -> PlanOutcome | None:
    """The plan of a rule that is better than `found`, with its bound; None where none is.

    Rules keep hard co-locations by putting the members of a pair on a GPU together. `bound` is a proven one of the
    first level, None where none is known; `deadline` is of time.perf_counter.
    """
    # Here, since few plans need it.
    from torchsplit_core.planning.baselines.run import baselines

    goal = goal_of(request)
    plans = [one.outcome for one in baselines(request, deadline=deadline) if one.outcome is not None]
    if not plans:
        return None

    def worth(plan: PlanOutcome) -> tuple[float, ...]:
        return reached(plan.objective)

    best = reduce(lambda one, other: other if goal.better(worth(other), worth(one)) else one, plans)
    if found is not None and not goal.better(worth(best), worth(found)):
        return None
    objective = best.objective
    if bound is not None and objective.value is not None:
        first = reached(objective)[0]
        tight = goal.held(bound, first)
        objective = replace(objective, bound=tight, gap=goal.gap(first, tight))
    return replace(best, objective=objective)

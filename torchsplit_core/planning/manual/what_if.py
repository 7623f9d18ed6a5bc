"""A plan for a request that was just edited: a short search, or the plan before where that still holds and is better.

A weight that moves leaves every slice possible. A short search may come back with much less than what stands.
"""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.planning.manual.evaluate import evaluate, from_plan
from torchsplit_core.planning.outcome.figures import level_values
from torchsplit_core.planning.planner import plan
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import goal_of
from torchsplit_core.planning.request.validate import check_owed
from torchsplit_core.values import PlanOutcome, PlanRequest

FAR = 0.01
"""A gap of the short search beyond which the plan before is looked at; that costs as much as a check."""


def plan_from(request: PlanRequest, before: PlanOutcome | None, seconds: float) -> PlanOutcome:
    """A verified plan of the request after so many seconds of search at most; `before` is that of a similar one.

    Raises InputFault where the request breaks a rule.
    """
    check_owed(request)
    limit = min(seconds, request.solver.time_limit_s)
    found = plan(replace(request, solver=replace(request.solver, time_limit_s=limit)))
    found = replace(found, request_sha256=request_hash(request))
    if found.status == "optimal" and any(model.max_response_ms is not None for model in request.models):
        # It counts no waiting: the best of the plans that keep a limit of the response may be another one.
        found = replace(found, status="feasible")
    if before is None or not before.gpus or found.status in ("optimal", "infeasible"):
        return found
    if found.status == "feasible" and found.objective.gap is not None and found.objective.gap <= FAR:
        return found
    fleet = {gpu.id for gpu in list_gpus(request.gpus)}
    hands = [gpu for gpu in from_plan(before) if gpu.id in fleet]
    kept = evaluate(request, hands, found if found.status == "feasible" else None).outcome
    if kept is None or (found.status == "feasible" and not better(request, kept, found)):
        return found
    return replace(kept, warnings=found.warnings)


def better(request: PlanRequest, one: PlanOutcome, other: PlanOutcome) -> bool:
    """Whether one plan of the request is better than another, by the objective, level by level."""
    values = [level_values(request, outcome.gpus, outcome.models) for outcome in (one, other)]
    return goal_of(request).better(*values)

"""A plan for a request that was just edited: a short search, or a plan of a similar request where that is better.

A weight that moves leaves every slice possible. A short search may come back with much less than what is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchsplit_core.planning.infeasibility.notes import NO_CONFLICT, NO_RELAXATION
from torchsplit_core.planning.manual.evaluate import evaluate, from_plan
from torchsplit_core.planning.outcome.figures import level_values
from torchsplit_core.planning.outcome.fleet_mapping import move_to_fleet
from torchsplit_core.planning.planner import plan
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import goal_of, objective_levels, reached_levels
from torchsplit_core.planning.request.validate import check_minima
from torchsplit_core.values import PlannedGpu, PlanOutcome, PlanRequest

MAX_QUICK_GAP = 0.01
"""A gap of the short search beyond which known plans are looked at; each costs as much as a check."""


def plan_with_starts(request: PlanRequest, starts: Sequence[PlanOutcome], seconds: float) -> PlanOutcome:
    """A verified plan of the request after so many seconds of search at most; `starts` are plans of similar requests.

    Why there is none is not looked into: that may take seconds, and the outcome has notes which say so. Raises
    InputFault where the request breaks a rule.
    """
    check_minima(request)
    limit = min(seconds, request.solver.time_limit_s)
    best = plan(replace(request, solver=replace(request.solver, time_limit_s=limit)), reasons=False)
    best = replace(best, request_sha256=request_hash(request))
    if best.status == "infeasible":
        return replace(best, warnings=(*best.warnings, NO_RELAXATION, NO_CONFLICT))
    if best.status == "optimal":
        limited = any(model.max_response_ms is not None for model in request.models)
        # It counts no waiting: the best of the plans that keep a limit of the response may be another one.
        return replace(best, status="feasible") if limited else best
    gap = best.objective.gap
    if best.status == "feasible" and gap is not None and gap <= MAX_QUICK_GAP:
        return best
    seen: list[tuple[PlannedGpu, ...]] = []
    for start in starts:
        if start.gpus not in seen:
            seen.append(start.gpus)
            best = better_start(request, best, start)
    return best


def better_start(request: PlanRequest, best: PlanOutcome, start: PlanOutcome) -> PlanOutcome:
    """What stands, or a plan of a similar request where it is possible here and better; it takes over the bound."""
    if not start.gpus:
        return best
    bound_source = best if best.status == "feasible" else None
    if bound_source is not None and not _may_be_better(request, start, bound_source):
        return best
    gpus = replace(start, gpus=move_to_fleet(request, start))
    candidate = evaluate(request, from_plan(gpus), bound_source).outcome
    if candidate is None or (bound_source is not None and not is_better(request, candidate, best)):
        return best
    return replace(candidate, warnings=candidate.warnings if bound_source is None else best.warnings)


def _may_be_better(request: PlanRequest, start: PlanOutcome, best: PlanOutcome) -> bool:
    """Whether a plan of a similar request could be better here: by what it reaches there, which it does not exceed."""
    most = {model.name: max(model.throughput_rps, model.high_rps or 0.0) for model in start.models}
    reaches = objective_levels(request, [most.get(model.name, 0.0) for model in request.models], 0.0, 0.0)
    return goal_of(request).better(reaches, level_values(request, best.gpus, best.models))


def is_better(request: PlanRequest, candidate: PlanOutcome, reference: PlanOutcome) -> bool:
    """Whether one plan of the request is better than another, by the objective, level by level."""
    levels = [level_values(request, outcome.gpus, outcome.models) for outcome in (candidate, reference)]
    return goal_of(request).better(*levels)


def with_bound(request: PlanRequest, outcome: PlanOutcome, bound: float | None) -> PlanOutcome:
    """The plan with a bound of its first level that another search has proven, where that says more."""
    goal, objective = goal_of(request), outcome.objective
    if bound is None or objective.value is None or objective.proven_levels:
        return outcome
    known = (bound,) if objective.bound is None else (bound, objective.bound)
    first = reached_levels(objective)[0]
    tight = goal.clamp_bound(goal.tightest_bound(*known), first)
    return replace(outcome, objective=replace(objective, bound=tight, gap=goal.gap(first, tight)))

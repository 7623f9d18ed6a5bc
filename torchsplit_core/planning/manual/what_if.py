"""A plan of an edited request: a short search, or a plan of a similar request if that is better.

After a changed weight every earlier plan is still feasible, and a short search may find a much worse one.
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
"""Gap of the short search above which known plans are tried; each costs as much as a verification."""


def plan_with_starts(request: PlanRequest, starts: Sequence[PlanOutcome], seconds: float) -> PlanOutcome:
    """A verified plan of the request after at most `seconds` of search; `starts` are plans of similar requests.

    If there is no plan, the reasons, which may take seconds, are not searched; the outcome's notes say so. Raises
    InputFault if the request breaks a rule.
    """
    check_minima(request)
    limit = min(seconds, request.solver.time_limit_s)
    best = plan(replace(request, solver=replace(request.solver, time_limit_s=limit)), reasons=False)
    best = replace(best, request_sha256=request_hash(request))
    if best.status == "infeasible":
        return replace(best, warnings=(*best.warnings, NO_RELAXATION, NO_CONFLICT))
    if best.status == "optimal":
        limited = any(model.max_response_ms is not None for model in request.models)
        # Queues are ignored here: with response limits another plan may be the best.
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
    """`best`, or `start` if it is feasible for this request and better; it takes over the bound."""
    if not start.gpus:
        return best
    bound_source = best if best.status == "feasible" else None
    if bound_source is not None and not _may_be_better(request, start, bound_source):
        return best
    gpus = replace(start, gpus=move_to_fleet(request, start))
    candidate = evaluate(request, from_plan(gpus), bound_source).outcome
    if candidate is None or (bound_source is not None and not is_better(request, candidate, best)):
        return best
    if request.current is not None and request.objective.max_touched_gpus is None:
        # Imported where there is a state: SciPy takes longer than most edits.
        from torchsplit_core.planning.outcome.near_current import near_current

        candidate = near_current(request, candidate)
    return replace(candidate, warnings=candidate.warnings if bound_source is None else best.warnings)


def _may_be_better(request: PlanRequest, start: PlanOutcome, best: PlanOutcome) -> bool:
    """Whether `start` could be better here: judged by its value there, which it does not exceed here."""
    most = {model.name: max(model.throughput_rps, model.high_rps or 0.0) for model in start.models}
    reaches = objective_levels(request, [most.get(model.name, 0.0) for model in request.models], 0.0, 0.0)
    return goal_of(request).better(reaches, level_values(request, best.gpus, best.models))


def is_better(request: PlanRequest, candidate: PlanOutcome, reference: PlanOutcome) -> bool:
    """Whether a plan of the request is better than another, by the objective, level by level."""
    levels = [level_values(request, outcome.gpus, outcome.models) for outcome in (candidate, reference)]
    return goal_of(request).better(*levels)


def with_bound(request: PlanRequest, outcome: PlanOutcome, bound: float | None) -> PlanOutcome:
    """The plan with another search's proven bound of its first level, if that is tighter."""
    goal, objective = goal_of(request), outcome.objective
    if bound is None or objective.value is None or objective.proven_levels:
        return outcome
    known = (bound,) if objective.bound is None else (bound, objective.bound)
    first = reached_levels(objective)[0]
    tight = goal.clamp_bound(goal.tightest_bound(*known), first)
    return replace(outcome, objective=replace(objective, bound=tight, gap=goal.gap(first, tight)))

"""Plans of whole slices with hard co-locations, bounded level by level over fillings of GPUs, on few GPUs proven.

They begin with a plan of whole sets (patterns/colocated.py), which on more than a few GPUs is the better search.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from torchsplit_core.planning.outcome.assignment import Assignment, build_planned_gpus
from torchsplit_core.planning.patterns.colocated import hard_sets, plan_colocated
from torchsplit_core.planning.patterns.feasibility import Decision, PatternPlan
from torchsplit_core.planning.patterns.gpu_fillings import FillingSearch, search_fillings
from torchsplit_core.planning.patterns.least_cost import cheapest_plan
from torchsplit_core.planning.patterns.leximin_levels import LevelResult, raise_levels
from torchsplit_core.planning.patterns.solve import build_search
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.objective import (
    goal_of,
    has_penalties,
    level_count,
    requires_resilience,
    tier_groups,
)
from torchsplit_core.planning.timing import partial_deadline
from torchsplit_core.values import PlanRequest, Progress
from torchsplit_core.values.status import SolveStatus

FEW_FILLINGS, ALONE_SHARE = 1_500, 0.15
"""Fillings that are searched alone at first, and part of the time for that."""

SETS_SHARE, MIN_SETS_S, FEW_GPUS = 0.3, 1.0, 16
"""Part of the time, and least seconds of it, for a plan of whole sets; GPUs up to which those are enough."""


@dataclass(frozen=True)
class FilledPlan:
    """The plan, of a problem whose layouts tell no presence, bounds of its levels, and how many are proven."""

    problem: Problem
    status: SolveStatus
    assignment: Assignment | None = None
    bounds: tuple[float, ...] = ()
    proven: int = 0


def plan_fillings(problem: Problem, deadline: float, progress: Progress) -> FilledPlan | None:
    """The plan found before the deadline; None if fillings do not apply to the request, or are too many."""
    request = problem.request
    sets = hard_sets(problem.colocation_index, len(request.models)) if _applies(request) else None
    if sets is None:
        return None
    free = build_problem(replace(request, colocations=()))
    base = build_search(free, {})
    fillings = None if base is None else search_fillings(base, sets)
    if fillings is None:
        return None
    uncounted = replace(free, request=request, colocation_index=problem.colocation_index)
    search = fillings.search
    search.on_better = lambda value, plan: problem.report(
        value, lambda: build_planned_gpus(request, fillings.assign(uncounted, plan))
    )
    levels = level_count(request)
    bounds: tuple[float, ...]
    if goal_of(request).by_cost:
        cheapest = cheapest_plan(search, [group.cost for group in problem.groups], deadline)
        plan, bounds, proven = cheapest.plan, (cheapest.bound,), int(cheapest.proven)
        infeasible = cheapest.infeasible
    else:
        raised, set_bound = _raise(problem, free, fillings, deadline, progress)
        plan, bounds, proven, infeasible = raised.plan, tuple(raised.bounds), raised.proven, raised.infeasible
        if bounds and not proven:
            bounds = (min(bounds[0], set_bound), *bounds[1:])
    if plan is None:
        return FilledPlan(uncounted, "infeasible" if infeasible else "timeout")
    status: SolveStatus = "optimal" if proven == levels else "feasible"
    return FilledPlan(uncounted, status, fillings.assign(uncounted, plan), bounds, proven)


def _raise(
    problem: Problem, free: Problem, fillings: FillingSearch, deadline: float, progress: Progress
) -> tuple[LevelResult, float]:
    """The levels over fillings, and a bound of the first one by whole sets (infinite without any).

    Few fillings are searched alone at first: they are often proven in less time than sets take.
    """
    request = problem.request

    def raise_from(start: PatternPlan | None, until: float) -> LevelResult:
        return raise_levels(
            fillings.search,
            tier_groups(request.models),
            level_count(request),
            until,
            lambda part: progress(part, "Raising the worst-served models"),
            start=None if start is None else Decision("found", start),
        )

    alone = None
    if len(fillings.fillings) <= FEW_FILLINGS:
        alone = raise_from(None, partial_deadline(deadline, ALONE_SHARE))
        if alone.infeasible or alone.proven == level_count(request):
            return alone, math.inf
    until = min(deadline, time.perf_counter() + MIN_SETS_S)
    if len(list_gpus(request.gpus)) > FEW_GPUS:
        until = max(until, partial_deadline(deadline, SETS_SHARE))
    sets_plan = plan_colocated(problem, until, progress, free)
    start = None if sets_plan is None else fillings.plan_of(sets_plan.problem, sets_plan.assignment)
    units = fillings.search.demand.units
    known = [plan for plan in (start, alone.plan if alone else None) if plan is not None]
    best = max(
        known,
        key=lambda plan: min(p.rate / u for p, u in zip(plan.patterns, units, strict=True)),
        default=None,
    )
    raised = raise_from(best, deadline)
    if alone is not None and (alone.levels, alone.proven) > (raised.levels, raised.proven):
        raised = alone
    return raised, math.inf if sets_plan is None else sets_plan.bounds[0]


def _applies(request: PlanRequest) -> bool:
    goal = goal_of(request)
    return (
        (goal.fair or goal.by_cost)
        and not has_penalties(request.objective)
        and not requires_resilience(request)
        and bool(request.colocations)
        and all(item.mode == "hard" for item in request.colocations)
    )

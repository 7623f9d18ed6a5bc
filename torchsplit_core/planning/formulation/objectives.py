"""The request's objective on a formulation: a fair one level by level, a sum in one level.

A sum of throughputs is maximised as Σ gain·T − P, one of costs minimised as cost + P (P: Formulation.penalty).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.leximin import (
    FLOOR_SLACK,
    Search,
    hold_levels,
    keep_level,
    level_ceilings,
    level_values,
    no_worse,
    search_levels,
    upper_rates,
)
from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.formulation.solution import Solution, penalty_of, read_solution, separations_of
from torchsplit_core.planning.request.objective import (
    goal_of,
    level_count,
    level_places,
    pays_penalties,
    values,
)
from torchsplit_core.planning.timing import OutOfTime, building_until
from torchsplit_core.solver.pyomo_model import ModelSolution, pyo
from torchsplit_core.values import Progress, ignore_progress

POLISH_S = 5.0
"""Most seconds for the linear programs that follow a search with shares; they take milliseconds."""


def search(
    built: Formulation,
    deadline: float,
    *,
    progress: Progress = ignore_progress,
    level_one_only: bool = False,
) -> Search:
    """Run the request's objective until proven or until `deadline` (time.perf_counter).

    `level_one_only` spends all the time of a leximin on its first level, the others follow for the
    tenants found there: more of a plan, less of a proof.
    """
    goal = goal_of(built.problem.request)
    if goal.fair:
        count = level_count(built.problem.request)
        found = search_levels(built, 1 if level_one_only else count, deadline, progress)
        if level_one_only and found.best is not None:
            found.levels, found.proven, found.status = count, 0, "feasible"
    else:
        found = _single(built, deadline, progress)
    if found.best is not None and built.mode != "exclusive" and not goal.by_cost:
        _polish(built, found, deadline)
    if found.best is not None and found.status == "optimal" and built.mode != "pooled":
        _fewest_separations(built, found, deadline, progress)
    return found


def any_plan(built: Formulation, seconds: float) -> Search:
    """Some plan that meets every demand, for when the objective has found none in its time."""
    model = built.model
    model.anything = pyo.Var(bounds=(0, 0))
    model.any_objective = pyo.Objective(expr=model.anything)
    for other in model.component_data_objects(pyo.Objective, active=True):
        if other is not model.any_objective:
            other.deactivate()
    answer = built.solve(seconds)
    found = Search(levels=1, seconds=answer.seconds)
    if answer.status == "infeasible":
        found.status = "infeasible"
    elif answer.status in ("optimal", "feasible"):
        found.best = read_solution(built, answer)
        found.status = "feasible"
        if goal_of(built.problem.request).fair:
            found.values = level_values(built, found.best)
            found.bounds = [*level_ceilings(built)]
        else:
            found.values = [objective_value(built, found.best)]
    return found


def _polish(built: Formulation, found: Search, deadline: float) -> None:
    """Best shares for the whole numbers found: linear programs, so without the gap of a MIP stage."""
    assert found.best is not None
    try:
        again = build(built.problem, built.mode, until=building_until(deadline))
    except OutOfTime:
        return
    for name in ("y", "w", "delta", "b", "a"):
        for key, var in getattr(again.model, name).items() if hasattr(again.model, name) else ():
            value = found.best.values.get(id(getattr(built.model, name)[key]))
            if value is not None:
                # Pinned by bounds, not fixed: a fixed variable would be missing from the answer.
                var.domain = pyo.Reals
                var.setlb(round(value))
                var.setub(round(value))
    now = time.perf_counter()
    deadline = min(now + POLISH_S, max(deadline, now + POLISH_S / 10))
    fair = goal_of(built.problem.request).fair
    if fair:
        better = search_levels(again, found.levels, deadline, ignore_progress)
    else:
        better = _single(again, deadline, ignore_progress)
    found.seconds += better.seconds
    if better.best is None or better.status != "optimal":
        return
    if fair:
        places = level_places(built.problem.request.models)[: found.levels]
        improved = no_worse(better.values, found.values, places)
    else:
        improved = better.values[0] >= found.values[0]
    if improved:
        found.best = replace(better.best, values=found.best.values)
        found.values = better.values


def _single(built: Formulation, deadline: float, progress: Progress) -> Search:
    """A sum: one level."""
    model, goal = built.model, goal_of(built.problem.request)
    progress(0.0, "Searching")
    scale = _scale(built)
    model.objective = pyo.Objective(
        expr=_with_variable(model, _sum(built, scale)), sense=pyo.minimize if goal.minimised else pyo.maximize
    )
    answer = built.solve(deadline - time.perf_counter())
    model.objective.deactivate()
    found = Search(levels=1, seconds=answer.seconds)
    if answer.status == "infeasible":
        found.status = "infeasible"
    if answer.status not in ("optimal", "feasible"):
        return found
    found.best = read_solution(built, answer)
    proven = answer.status == "optimal"
    value = objective_value(built, found.best)
    bound = None
    if answer.bound is not None:
        bound = goal.held(answer.bound * scale, value)
    found.values, found.bounds = [value], [bound]
    found.proven = int(proven)
    found.status = "optimal" if proven else "feasible"
    return found


def _scale(built: Formulation) -> float:
    """The unit in which a sum is searched, so that its figures are near 1: no less than any gain, or any GPU's cost."""
    request, goal = built.problem.request, goal_of(built.problem.request)
    if goal.by_cost:
        return max(1.0, *(group.cost for group in built.problem.groups))
    return sum(goal.gain(s) * rate for s, rate in zip(request.models, upper_rates(built), strict=True)) or 1.0


def _sum(built: Formulation, scale: float) -> Any:
    """The sum with its penalties, as an expression in units of `scale`."""
    request, goal = built.problem.request, goal_of(built.problem.request)
    paid = built.penalty() if pays_penalties(request.objective) else 0.0
    if goal.by_cost:
        groups = built.problem.groups
        return sum(groups[g].cost / scale * count for (g, _), count in built.model.y.items()) + paid / scale
    gains = [goal.gain(spec) for spec in request.models]
    return sum(built.rate(i, scale / gain, f"sum_{i}") for i, gain in enumerate(gains)) - paid / scale


def objective_value(built: Formulation, solution: Solution) -> float:
    """The value of a solution at the objective's first level."""
    cost, paid = used_cost(built, solution), penalty_of(built, solution)
    return values(built.problem.request, solution.rates, cost, paid)[0]


def used_cost(built: Formulation, solution: Solution) -> float:
    """Cost of the GPUs that have a layout."""
    return sum(built.problem.groups[g].cost * count for (g, _), count in solution.layouts.items())


def least_apart(built: Formulation, levels: Sequence[float], deadline: float) -> ModelSolution:
    """Among plans of these levels of the objective, one with the fewest bytes apart, and a bound of them.

    Both in units of `apart_unit`. The model is used for nothing else. Raises OutOfTime.
    """
    model, goal = built.model, goal_of(built.problem.request)
    if goal.fair:
        hold_levels(built, levels)
    else:
        scale = _scale(built)
        _keep_sum(built, _with_variable(model, _sum(built, scale)), levels[0], scale)
    model.least_apart = pyo.Objective(expr=built.apart() / apart_unit(built), sense=pyo.minimize)
    return built.solve(deadline - time.perf_counter())


def apart_unit(built: Formulation) -> float:
    """The largest bytes that a co-location counts for, so that the objective's figures stay near 1."""
    ties = built.problem.ties
    return max(
        [1.0, *(tie.bytes_per_request for tie in ties.soft), *(flow.bytes_per_s for flow in ties.flows)]
    )


def _keep_sum(built: Formulation, total: Any, reached: float, scale: float) -> None:
    """reached: the sum, in units of `scale`, stays what it is."""
    room = abs(reached) * FLOOR_SLACK
    minimised = goal_of(built.problem.request).minimised
    kept = total <= (reached + room) / scale if minimised else total >= (reached - room) / scale
    built.model.reached = pyo.Constraint(expr=kept)


def _fewest_separations(built: Formulation, found: Search, deadline: float, progress: Progress) -> None:
    """Among plans of equal objective the fewest separations of soft co-locations (weight 0 only)."""
    request = built.problem.request
    soft = built.problem.ties.soft
    if not soft or request.objective.separation_weight > 0 or found.best is None:
        return
    progress(0.95, "Keeping pairs together")
    model, goal = built.model, goal_of(request)
    if goal.fair:
        last = max(k for k in model.level if hasattr(model.level[k], "theta"))
        block = model.level[last]
        if not hasattr(block, "level_floor"):
            keep_level(built, last, found.best, level_ceilings(built)[last - 1] or 1.0)
    else:
        _keep_sum(built, model.objective.expr, found.values[0], _scale(built))
    scale = max(item.bytes_per_request for item in soft)
    model.together = pyo.Objective(expr=built.separations() / scale, sense=pyo.minimize)
    answer = built.solve(deadline - time.perf_counter())
    model.together.deactivate()
    found.seconds += answer.seconds
    if answer.status not in ("optimal", "feasible"):
        found.status = "feasible"
        return
    candidate = read_solution(built, answer)
    if separations_of(built, candidate) < separations_of(built, found.best):
        found.best = candidate
        found.values = level_values(built, candidate) if goal.fair else found.values
    if answer.status != "optimal":
        found.status = "feasible"


def _with_variable(model: Any, expression: Any) -> Any:
    """An objective needs a variable, also where nothing can be won."""
    if isinstance(expression, int | float):
        model.nothing_to_win = pyo.Var(bounds=(0, 0))
        return expression + model.nothing_to_win
    return expression

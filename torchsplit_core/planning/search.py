"""The request's objective on a formulation: leximin and max_min through their levels, the others in one stage.

weighted_sum maximises Σ weight·T − P, min_gpus minimises cost + P (P: see Formulation.penalty).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyomo.environ as pyo

from torchsplit_core.planning.formulation import build
from torchsplit_core.planning.leximin import (
    FLOOR_SLACK,
    Search,
    keep_level,
    level_ceilings,
    level_values,
    no_worse,
    penalised,
    search_levels,
    upper_rates,
)
from torchsplit_core.planning.model import Formulation
from torchsplit_core.planning.solution import (
    Solution,
    penalty_of,
    read_solution,
    separations_of,
)
from torchsplit_core.solver.pyomo_model import solve
from torchsplit_core.values import Progress, ignore_progress

POLISH_S = 5.0
"""Most seconds for the linear programs that follow a search with shares; they take milliseconds."""


def search(
    built: Formulation,
    deadline: float,
    *,
    progress: Progress = ignore_progress,
    quick: bool = False,
) -> Search:
    """Run the request's objective until proven or until `deadline` (time.perf_counter).

    `quick` spends all the time of a leximin on its first level, the others follow for the
    tenants found there: more of a plan, less of a proof.
    """
    kind = built.problem.request.objective.kind
    if kind in ("leximin", "max_min"):
        count = len(built.problem.request.models) if kind == "leximin" else 1
        found = search_levels(built, 1 if quick else count, deadline, progress)
        if quick and found.best is not None:
            found.stages, found.proven, found.status = count, 0, "feasible"
    else:
        found = _single(built, deadline, progress)
    if found.best is not None and built.mode != "exclusive" and kind != "min_gpus":
        _polish(built, found, deadline)
    if found.best is not None and found.status == "optimal" and built.mode != "aggregate":
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
    answer = solve(model, seconds)
    found = Search(stages=1, seconds=answer.seconds)
    if answer.status == "infeasible":
        found.status = "infeasible"
    elif answer.status in ("optimal", "feasible"):
        found.best = read_solution(built, answer)
        found.status = "feasible"
        if built.problem.request.objective.kind in ("leximin", "max_min"):
            found.values = level_values(built, found.best)
            found.bounds = [*level_ceilings(built)]
        else:
            found.values = [objective_value(built)(found.best)]
    return found


def _polish(built: Formulation, found: Search, deadline: float) -> None:
    """Best shares for the whole numbers found: linear programs, so without the gap of a MIP stage."""
    assert found.best is not None
    again = build(built.problem, built.mode)
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
    if built.problem.request.objective.kind == "weighted_sum":
        better = _single(again, deadline, ignore_progress)
    else:
        better = search_levels(again, found.stages, deadline, ignore_progress)
    found.seconds += better.seconds
    if better.best is None or better.status != "optimal":
        return
    if built.problem.request.objective.kind == "weighted_sum":
        improved = better.values[0] >= found.values[0]
    else:
        improved = no_worse(better.values, found.values, found.stages)
    if improved:
        found.best = replace(better.best, values=found.best.values)
        found.values = better.values


def _single(built: Formulation, deadline: float, progress: Progress) -> Search:
    """weighted_sum and min_gpus: one stage."""
    model, request = built.model, built.problem.request
    progress(0.0, "Searching")
    kind = request.objective.kind
    paid = built.penalty() if penalised(built) else 0.0
    if kind == "weighted_sum":
        ceiling = sum(s.weight * rate for s, rate in zip(request.models, upper_rates(built), strict=True))
        scale = ceiling or 1.0
        total = sum(built.rate(i, scale / s.weight, f"sum_{i}") for i, s in enumerate(request.models))
        model.objective = pyo.Objective(expr=_whole(model, total - paid / scale), sense=pyo.maximize)
    else:
        scale = max(1.0, *(group.cost for group in built.problem.groups))
        cost = sum(built.problem.groups[g].cost / scale * count for (g, _), count in model.y.items())
        model.objective = pyo.Objective(expr=_whole(model, cost + paid / scale), sense=pyo.minimize)
    answer = solve(model, deadline - time.perf_counter())
    model.objective.deactivate()
    found = Search(stages=1, seconds=answer.seconds)
    if answer.status == "infeasible":
        found.status = "infeasible"
    if answer.status not in ("optimal", "feasible"):
        return found
    worth = objective_value(built)
    found.best = read_solution(built, answer)
    proven = answer.status == "optimal"
    value = worth(found.best)
    bound = None
    if answer.bound is not None:
        limit = answer.bound * scale
        bound = max(value, limit) if kind == "weighted_sum" else min(value, limit)
    found.values, found.bounds = [value], [bound]
    found.proven = int(proven)
    found.status = "optimal" if proven else "feasible"
    return found


def objective_value(built: Formulation) -> Callable[[Solution], float]:
    """What a solution is worth to weighted_sum, or costs under min_gpus."""
    request = built.problem.request

    def worth(solution: Solution) -> float:
        paid = penalty_of(built, solution)
        if request.objective.kind == "min_gpus":
            return used_cost(built, solution) + paid
        total = 0.0
        for spec, rate in zip(request.models, solution.rates, strict=True):
            total += spec.weight * (min(rate, spec.demand_rps) if spec.cap_at_demand else rate)
        return total - paid

    return worth


def used_cost(built: Formulation, solution: Solution) -> float:
    """Cost of the GPUs that have a layout."""
    return sum(built.problem.groups[g].cost * count for (g, _), count in solution.layouts.items())


def _fewest_separations(built: Formulation, found: Search, deadline: float, progress: Progress) -> None:
    """Among plans of equal objective the fewest separations of soft co-locations (weight 0 only)."""
    request = built.problem.request
    soft = [item for item in request.colocations if item.mode == "soft" and item.bytes_per_request > 0]
    if not soft or request.objective.separation_weight > 0 or found.best is None:
        return
    progress(0.95, "Keeping pairs together")
    model, kind = built.model, request.objective.kind
    if kind in ("leximin", "max_min"):
        last = max(k for k in model.level if hasattr(model.level[k], "theta"))
        block = model.level[last]
        if not hasattr(block, "level_floor"):
            keep_level(built, last, found.best, level_ceilings(built)[last - 1] or 1.0)
    else:
        reached = found.values[0]
        scale = 1.0
        if kind == "weighted_sum":
            scale = (
                sum(s.weight * rate for s, rate in zip(request.models, upper_rates(built), strict=True))
                or 1.0
            )
            model.reached = pyo.Constraint(
                expr=model.objective.expr >= (reached - abs(reached) * FLOOR_SLACK) / scale
            )
        else:
            scale = max(1.0, *(group.cost for group in built.problem.groups))
            model.reached = pyo.Constraint(
                expr=model.objective.expr <= (reached + abs(reached) * FLOOR_SLACK) / scale
            )
    scale = max(item.bytes_per_request for item in soft)
    model.together = pyo.Objective(expr=built.separations() / scale, sense=pyo.minimize)
    answer = solve(model, deadline - time.perf_counter())
    model.together.deactivate()
    found.seconds += answer.seconds
    if answer.status not in ("optimal", "feasible"):
        found.status = "feasible"
        return
    candidate = read_solution(built, answer)
    if separations_of(built, candidate) < separations_of(built, found.best):
        found.best = candidate
        found.values = level_values(built, candidate) if kind in ("leximin", "max_min") else found.values
    if answer.status != "optimal":
        found.status = "feasible"


def _whole(model: Any, expression: Any) -> Any:
    """An objective needs a variable, also where nothing can be won."""
    if isinstance(expression, int | float):
        model.nothing_to_win = pyo.Var(bounds=(0, 0))
        return expression + model.nothing_to_win
    return expression

"""The request's objective on a formulation: a fair one level by level, a sum in one level.

A sum of throughputs is maximised as Σ gain·T − P, one of costs minimised as cost + P (P: Formulation.penalty).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.leximin import (
    FLOOR_SLACK,
    LevelsResult,
    fix_level,
    fix_levels,
    level_ceilings,
    no_worse,
    solution_levels,
    solve_levels,
    upper_rates,
)
from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.formulation.solution import Solution, penalty_of, read_solution, separations_of
from torchsplit_core.planning.request.objective import (
    goal_of,
    has_penalties,
    level_count,
    level_positions,
    objective_levels,
)
from torchsplit_core.planning.timing import OutOfTime, build_deadline
from torchsplit_core.solver.pyomo_model import ModelSolution, pyo
from torchsplit_core.values import Progress, ignore_progress

POLISH_S = 5.0
"""Most seconds for the linear programs after a search with shares; they take milliseconds."""


def solve_objective(
    formulation: Formulation,
    deadline: float,
    *,
    progress: Progress = ignore_progress,
    level_one_only: bool = False,
) -> LevelsResult:
    """Solve for the request's objective until proven or until `deadline` (time.perf_counter).

    `level_one_only` spends all the time of a leximin on its first level; the other levels are then raised for the
    tenants of that plan: a better plan with less proof.
    """
    goal = goal_of(formulation.problem.request)
    if goal.fair:
        count = level_count(formulation.problem.request)
        levels_result = solve_levels(formulation, 1 if level_one_only else count, deadline, progress)
        if level_one_only and levels_result.best is not None:
            levels_result.levels, levels_result.status = count, "feasible"
    else:
        levels_result = _solve_sum(formulation, deadline, progress)
    if levels_result.best is not None and formulation.mode != "exclusive" and not goal.by_cost:
        _reoptimise_shares(formulation, levels_result, deadline)
    if levels_result.best is not None and levels_result.status == "optimal" and formulation.mode != "pooled":
        _minimize_separations(formulation, levels_result, deadline, progress)
    return levels_result


def find_any_plan(formulation: Formulation, seconds: float) -> LevelsResult:
    """Any plan that meets every demand, if the objective found none in its time."""
    model = formulation.model
    model.anything = pyo.Var(bounds=(0, 0))
    model.any_objective = pyo.Objective(expr=model.anything)
    for other in model.component_data_objects(pyo.Objective, active=True):
        if other is not model.any_objective:
            other.deactivate()
    result = formulation.solve(seconds)
    levels_result = LevelsResult(levels=1, seconds=result.seconds)
    if result.status == "infeasible":
        levels_result.status = "infeasible"
    elif result.status in ("optimal", "feasible"):
        levels_result.best = read_solution(formulation, result)
        levels_result.status = "feasible"
        if goal_of(formulation.problem.request).fair:
            levels_result.values = solution_levels(formulation, levels_result.best)
            levels_result.bounds = [*level_ceilings(formulation)]
        else:
            levels_result.values = [first_level_value(formulation, levels_result.best)]
    return levels_result


def _reoptimise_shares(formulation: Formulation, levels_result: LevelsResult, deadline: float) -> None:
    """The best shares for the integer variables found: linear programs, so without the gap of a MIP level."""
    assert levels_result.best is not None
    try:
        fixed = build(formulation.problem, formulation.mode, until=build_deadline(deadline))
    except OutOfTime:
        return
    for name in ("y", "w", "delta", "b", "a"):
        for key, var in getattr(fixed.model, name).items() if hasattr(fixed.model, name) else ():
            value = levels_result.best.values.get(id(getattr(formulation.model, name)[key]))
            if value is not None:
                # Bounded, not fixed: a fixed variable would be missing from the solution.
                var.domain = pyo.Reals
                var.setlb(round(value))
                var.setub(round(value))
    now = time.perf_counter()
    deadline = min(now + POLISH_S, max(deadline, now + POLISH_S / 10))
    fair = goal_of(formulation.problem.request).fair
    if fair:
        better = solve_levels(fixed, levels_result.levels, deadline, ignore_progress)
    else:
        better = _solve_sum(fixed, deadline, ignore_progress)
    levels_result.seconds += better.seconds
    if better.best is None or better.status != "optimal":
        return
    if fair:
        positions = level_positions(formulation.problem.request.models)[: levels_result.levels]
        improved = no_worse(better.values, levels_result.values, positions)
    else:
        improved = better.values[0] >= levels_result.values[0]
    if improved:
        levels_result.best = replace(better.best, values=levels_result.best.values)
        levels_result.values = better.values


def _solve_sum(formulation: Formulation, deadline: float, progress: Progress) -> LevelsResult:
    """A sum: one level."""
    model, goal = formulation.model, goal_of(formulation.problem.request)
    progress(0.0, "Searching")
    scale = _scale(formulation)
    model.objective = pyo.Objective(
        expr=_with_variable(model, _sum_expression(formulation, scale)),
        sense=pyo.minimize if goal.minimised else pyo.maximize,
    )
    result = formulation.solve(deadline - time.perf_counter())
    model.objective.deactivate()
    levels_result = LevelsResult(levels=1, seconds=result.seconds)
    if result.status == "infeasible":
        levels_result.status = "infeasible"
    if result.status not in ("optimal", "feasible"):
        return levels_result
    levels_result.best = read_solution(formulation, result)
    proven = result.status == "optimal"
    value = first_level_value(formulation, levels_result.best)
    bound = None
    if result.bound is not None:
        bound = goal.clamp_bound(result.bound * scale, value)
    levels_result.values, levels_result.bounds = [value], [bound]
    levels_result.proven = int(proven)
    levels_result.status = "optimal" if proven else "feasible"
    return levels_result


def _scale(formulation: Formulation) -> float:
    """The unit of a sum, so that its figures are near 1: the largest gain, or the largest cost of a GPU."""
    request, goal = formulation.problem.request, goal_of(formulation.problem.request)
    if goal.by_cost:
        return max(1.0, *(group.cost for group in formulation.problem.groups))
    return (
        sum(goal.gain(s) * rate for s, rate in zip(request.models, upper_rates(formulation), strict=True))
        or 1.0
    )


def _sum_expression(formulation: Formulation, scale: float) -> Any:
    """The sum with its penalties, in units of `scale`."""
    request, goal = formulation.problem.request, goal_of(formulation.problem.request)
    penalty = formulation.penalty() if has_penalties(request.objective) else 0.0
    if goal.by_cost:
        groups = formulation.problem.groups
        return (
            sum(groups[g].cost / scale * count for (g, _), count in formulation.model.y.items())
            + penalty / scale
        )
    gains = [goal.gain(spec) for spec in request.models]
    return (
        sum(formulation.rate(i, scale / gain, f"sum_{i}") for i, gain in enumerate(gains)) - penalty / scale
    )


def first_level_value(formulation: Formulation, solution: Solution) -> float:
    """The value of a solution at the objective's first level."""
    cost, penalty = used_cost(formulation, solution), penalty_of(formulation, solution)
    return objective_levels(formulation.problem.request, solution.rates, cost, penalty)[0]


def used_cost(formulation: Formulation, solution: Solution) -> float:
    """Cost of the GPUs in use."""
    return sum(formulation.problem.groups[g].cost * count for (g, _), count in solution.layouts.items())


def minimize_traffic(formulation: Formulation, levels: Sequence[float], deadline: float) -> ModelSolution:
    """Among plans with these levels, the one with the fewest bytes of separated traffic, and a bound of them.

    Both in units of `traffic_unit`. The model serves nothing else afterwards. Raises OutOfTime.
    """
    model, goal = formulation.model, goal_of(formulation.problem.request)
    if goal.fair:
        fix_levels(formulation, levels)
    else:
        scale = _scale(formulation)
        _fix_sum(formulation, _with_variable(model, _sum_expression(formulation, scale)), levels[0], scale)
    model.least_apart = pyo.Objective(
        expr=formulation.separated_traffic() / traffic_unit(formulation), sense=pyo.minimize
    )
    return formulation.solve(deadline - time.perf_counter())


def traffic_unit(formulation: Formulation) -> float:
    """The geometric mean of the least and the most bytes of a co-location.

    Then the most stays within what the solver computes exactly, and the least above what it takes for zero.
    """
    colocation_index = formulation.problem.colocation_index
    weights = (
        *(colocation.bytes_per_request for colocation in colocation_index.soft),
        *(flow.bytes_per_s for flow in colocation_index.flows),
    )
    positive = [weight for weight in weights if weight > 0] or [1.0]
    return math.sqrt(min(positive) * max(positive))


def _fix_sum(formulation: Formulation, total: Any, reached: float, scale: float) -> None:
    """reached: the sum keeps its value, in units of `scale`."""
    room = abs(reached) * FLOOR_SLACK
    minimised = goal_of(formulation.problem.request).minimised
    floor = total <= (reached + room) / scale if minimised else total >= (reached - room) / scale
    formulation.model.reached = pyo.Constraint(expr=floor)


def _minimize_separations(
    formulation: Formulation, levels_result: LevelsResult, deadline: float, progress: Progress
) -> None:
    """Among plans of equal objective the fewest separations of soft co-locations (only for weight 0)."""
    request = formulation.problem.request
    soft = formulation.problem.colocation_index.soft
    if not soft or request.objective.separation_weight > 0 or levels_result.best is None:
        return
    progress(0.95, "Keeping pairs together")
    model, goal = formulation.model, goal_of(request)
    if goal.fair:
        last = max(k for k in model.level if hasattr(model.level[k], "theta"))
        block = model.level[last]
        if not hasattr(block, "level_floor"):
            fix_level(formulation, last, levels_result.best, level_ceilings(formulation)[last - 1] or 1.0)
    else:
        _fix_sum(formulation, model.objective.expr, levels_result.values[0], _scale(formulation))
    scale = max(item.bytes_per_request for item in soft)
    model.together = pyo.Objective(expr=formulation.separations() / scale, sense=pyo.minimize)
    result = formulation.solve(deadline - time.perf_counter())
    model.together.deactivate()
    levels_result.seconds += result.seconds
    if result.status not in ("optimal", "feasible"):
        levels_result.status = "feasible"
        return
    candidate = read_solution(formulation, result)
    if separations_of(formulation, candidate) < separations_of(formulation, levels_result.best):
        levels_result.best = candidate
        levels_result.values = solution_levels(formulation, candidate) if goal.fair else levels_result.values
    if result.status != "optimal":
        levels_result.status = "feasible"


def _with_variable(model: Any, expression: Any) -> Any:
    """Pyomo's objective needs a variable, even if nothing can be gained."""
    if isinstance(expression, int | float):
        model.nothing_to_win = pyo.Var(bounds=(0, 0))
        return expression + model.nothing_to_win
    return expression

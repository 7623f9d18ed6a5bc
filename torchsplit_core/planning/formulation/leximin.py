"""leximin on a formulation, level by level.

For k = 1 … N, the sum of the k smallest r is maximised lexicographically: θ_k = k·t_k − Σ_m d_mk with d_mk ≥ t_k − r_m
and d ≥ 0 (families level_deficit and level_floor). Fixing the bottleneck model instead is wrong with whole slices:
which model is the bottleneck is itself a choice. max_min is the first level. A penalty P (Formulation.penalty) is
subtracted from every r alike, so level k maximises θ_k − k·P.

With tiers, the levels of each tier come first, the highest tier first: the same over its models m alone with t_k ≤ 1,
so that throughput above their demand does not count. There P is in d_mk ≥ t_k − r_m + P.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.formulation.solution import Solution, penalty_of, read_solution
from torchsplit_core.planning.request.objective import (
    TierGroup,
    has_penalties,
    level_positions,
    leximin_values,
    unit_rps,
)
from torchsplit_core.planning.tolerance import TOLERANCE, equal
from torchsplit_core.solver.pyomo_model import ModelSolution, pyo
from torchsplit_core.values import Progress
from torchsplit_core.values.status import SolveStatus

FLOOR_SLACK = 1e-10
"""Relative slack of an earlier level's value when the next is solved, for rounding only.

More would be used up: with shares, a model whose requests are cheap gains a thousandfold what an expensive one loses.
"""

RELAXED_SLACK = 1e-5
"""The slack if the solver then calls the next level infeasible, which the incumbent disproves."""

FIRST_INCUMBENT_S = 2.0
"""Seconds of a short limit for level 1, so that a fair plan exists before it is refined."""


@dataclass
class LevelsResult:
    """State of a search. `bounds` has a proven bound of each level that was bounded."""

    status: SolveStatus = "timeout"
    best: Solution | None = None
    values: list[float] = field(default_factory=list)
    bounds: list[float | None] = field(default_factory=list)
    proven: int = 0
    seconds: float = 0.0
    levels: int = 0


def solve_levels(formulation: Formulation, levels: int, deadline: float, progress: Progress) -> LevelsResult:
    model = formulation.model
    ceilings = level_ceilings(formulation)
    penalised = has_penalties(formulation.problem.request.objective)
    levels_result = LevelsResult(levels=levels)
    model.level = pyo.Block(range(1, levels + 1))
    for k in range(1, levels + 1):
        before = level_positions(formulation.problem.request.models)[k - 1][1] - 1
        ceiling = ceilings[k - 1]
        if levels_result.best is not None and time.perf_counter() > deadline:
            # Out of time: the ceilings still bound the levels that were not searched.
            levels_result.bounds += ceilings[k - 1 :]
            break
        progress((k - 1) / levels, f"Fair share {k} of {levels}")
        incumbent_values = (
            solution_levels(formulation, levels_result.best) if levels_result.best is not None else None
        )
        if (
            incumbent_values is not None
            and not penalised
            and incumbent_values[k - 1] >= ceiling * (1 - TOLERANCE)
        ):
            # No plan exceeds the ceiling of this level, so it is proven.
            levels_result.bounds.append(max(ceiling, incumbent_values[k - 1]))
            if levels_result.proven == k - 1:
                levels_result.proven = k
            if ceiling > 0:
                _add_level(formulation, k, ceiling)
                fix_level(formulation, k, levels_result.best, ceiling)
            continue
        scale = ceiling if ceiling > 0 else 1.0
        objective = _add_level(formulation, k, scale)
        solution = formulation.solve(
            _time_slice_s(deadline, levels - k + 1, have_plan=levels_result.best is not None)
        )
        levels_result.seconds += solution.seconds
        if solution.status == "infeasible" and levels_result.best is not None:
            # The incumbent meets every floor, so this is the solver's rounding: try again with slack.
            _relax_floors(model, k)
            solution = formulation.solve(deadline - time.perf_counter())
            levels_result.seconds += solution.seconds
        objective.deactivate()
        if solution.status == "infeasible" and levels_result.best is None:
            levels_result.status = "infeasible"
            return levels_result
        proven = _accept_solution(formulation, levels_result, solution, k)
        if levels_result.best is None:
            return levels_result
        values = solution_levels(formulation, levels_result.best)
        bound = ceiling
        if solution.bound is not None:
            smaller, theta = sum(values[k - 1 - before : k - 1]), solution.bound * scale
            reached_sum = smaller + values[k - 1]
            if theta < reached_sum - TOLERANCE * max(scale, abs(reached_sum)):
                # A bound below the reached value is wrong, and so is the solver's claim of optimality.
                proven = False
            else:
                # θ_k's bound minus the smaller values before it: exact only if those are proven.
                bound = min(bound, theta - smaller)
        bound = max(bound, values[k - 1])
        levels_result.bounds.append(bound)
        if proven and levels_result.proven == k - 1:
            levels_result.proven = k
        if k < levels:
            fix_level(formulation, k, levels_result.best, scale)
    assert levels_result.best is not None
    levels_result.values = solution_levels(formulation, levels_result.best)
    levels_result.status = "optimal" if levels_result.proven == levels else "feasible"
    return levels_result


def solution_levels(formulation: Formulation, solution: Solution | None) -> list[float]:
    """The sorted r minus the penalty, tier by tier if there are tiers: what leximin compares."""
    assert solution is not None
    return leximin_values(formulation.problem.request, solution.rates, penalty_of(formulation, solution))


def level_ceilings(formulation: Formulation) -> list[float]:
    """For each level a value that no plan exceeds."""
    ceilings = leximin_values(formulation.problem.request, upper_rates(formulation))
    return [min(ceilings[0], formulation.value_bound), *ceilings[1:]]


def upper_rates(formulation: Formulation) -> list[float]:
    """For each model a throughput that no plan exceeds: with the whole fleet to itself, ignoring stage limits."""
    problem = formulation.problem
    best_rates: dict[tuple[int, int, str], float] = {}
    for choice in problem.choices:
        key = (choice.model, choice.group, choice.profile)
        best_rates[key] = max(best_rates.get(key, 0.0), choice.rate_rps)
    rates = [0.0] * len(problem.request.models)
    for index in range(len(rates)):
        for g, group in enumerate(problem.groups):
            rates[index] += len(group.gpu_ids) * max(
                (
                    sum(
                        count * best_rates.get((index, g, name), 0.0)
                        for name, count in layout.usable_counts.items()
                    )
                    for layout in group.layouts
                ),
                default=0.0,
            )
    return rates


def _add_level(formulation: Formulation, k: int, scale: float) -> Any:
    """Add θ / scale of level k and its objective; `scale` is an upper bound of the level."""
    block, request = formulation.model.level[k], formulation.problem.request
    tier_group, position = level_positions(request.models)[k - 1]
    capped, penalty = tier_group.cap < float("inf"), 0.0
    if has_penalties(request.objective):
        penalty = formulation.penalty() / scale
    block.t = pyo.Var(bounds=(None, 1.0 + 1e-6))
    block.d = pyo.Var(tier_group.models, domain=pyo.NonNegativeReals)
    block.level_deficit = pyo.ConstraintList()
    for index in tier_group.models:
        spec = request.models[index]
        unit = scale * unit_rps(spec)
        if capped and has_penalties(request.objective):
            # Throughput above the scale pays penalties, so no rate may be cut.
            rate = formulation.rate(index, unit, f"tier{k}_{index}") - penalty
        else:
            rate = formulation.rate(index, unit, f"level{k}_{index}")
        block.level_deficit.add(block.t - block.d[index] - rate <= 0)
    level_penalty = 0.0 if capped else position * penalty
    block.theta = pyo.Expression(expr=position * block.t - sum(block.d.values()) - level_penalty)
    block.objective = pyo.Objective(expr=block.theta, sense=pyo.maximize)
    return block.objective


def fix_level(formulation: Formulation, k: int, best: Solution | None, scale: float) -> None:
    """Keep the value of level k in later levels."""
    _add_floor(formulation, k, solution_levels(formulation, best), scale)


def fix_levels(formulation: Formulation, values: Sequence[float]) -> None:
    """Fix every level at a plan's values, the worst served first, before plans of equal levels are ranked."""
    formulation.model.level = pyo.Block(range(1, len(values) + 1))
    ceilings = level_ceilings(formulation)
    penalised = has_penalties(formulation.problem.request.objective)
    for k, value in enumerate(values, start=1):
        formulation.check_deadline()
        # In a plan with these levels the k smallest are at most the k-th: more than that counts as the k-th.
        scale = ceilings[k - 1] if penalised else value
        if scale > 0:
            _add_level(formulation, k, scale)
            _add_floor(formulation, k, values, scale)


def _add_floor(formulation: Formulation, k: int, values: Sequence[float], scale: float) -> None:
    block = formulation.model.level[k]
    block.objective.deactivate()
    position = level_positions(formulation.problem.request.models)[k - 1][1]
    reached = sum(values[k - position : k]) / scale
    block.level_floor = pyo.Constraint(expr=block.theta >= reached - FLOOR_SLACK * max(1e-3, abs(reached)))


def _relax_floors(model: Any, k: int) -> None:
    """Give the floors of the levels before k the slack of the solver's own tolerance."""
    for before in range(1, k):
        block = model.level[before]
        if hasattr(block, "level_floor"):
            floor = pyo.value(block.level_floor.lower)
            block.level_floor.set_value(block.theta >= floor - RELAXED_SLACK * max(1e-3, abs(floor)))


def _accept_solution(
    formulation: Formulation, levels_result: LevelsResult, result: ModelSolution, k: int
) -> bool:
    """Take the solution if it is no worse than the incumbent; whether level k is proven.

    A solution worse than the incumbent, or with a bound below the reached value, is a fault of the solver: the
    incumbent stays and the level is not proven.
    """
    proven = result.status == "optimal"
    if result.status in ("optimal", "feasible"):
        candidate = read_solution(formulation, result)
        positions = level_positions(formulation.problem.request.models)[:k]
        if levels_result.best is None or no_worse(
            solution_levels(formulation, candidate),
            solution_levels(formulation, levels_result.best),
            positions,
        ):
            levels_result.best = candidate
        else:
            proven = False
    return proven


def no_worse(new: list[float], old: list[float], positions: Sequence[tuple[TierGroup, int]]) -> bool:
    """Whether no sum of the smallest levels is lower (within tolerance); the first difference decides."""
    for level, (_, position) in enumerate(positions, start=1):
        before, after = sum(old[level - position : level]), sum(new[level - position : level])
        if not equal(before, after):
            return after > before
    return True


def _time_slice_s(deadline: float, levels_left: int, *, have_plan: bool) -> float:
    """Seconds for the next level: the first levels get more of the rest, since later ones often follow from them."""
    left = deadline - time.perf_counter()
    if levels_left == 1:
        return left
    share = left * max(0.25, 1.0 / levels_left)
    # Without a plan yet, a quarter of a short limit may end before the solver's first incumbent.
    return share if have_plan else max(share, min(0.75 * left, FIRST_INCUMBENT_S))

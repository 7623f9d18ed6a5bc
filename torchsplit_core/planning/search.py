"""The objectives, stage by stage, on a formulation.

leximin maximises lexicographically, for k = 1 … N, the sum of the k smallest r:
θ_k = k·t_k − Σ_m d_mk with d_mk ≥ t_k − u_m and d ≥ 0 (families level_deficit, level_value,
level_floor). Locking the bottleneck model instead is wrong with whole slices: which model is
the bottleneck is itself a choice. max_min is its first stage.

A penalty P (see Formulation.penalty) is taken from every r alike, so stage k maximises
θ_k − k·P; weighted_sum maximises Σ weight·T − P, min_gpus minimises cost + P.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyomo.environ as pyo

from torchsplit_core.planning.formulation import Formulation, build
from torchsplit_core.planning.solution import (
    TOLERANCE,
    Solution,
    normalised,
    penalty_of,
    read_solution,
    separations_of,
)
from torchsplit_core.planning.solve import Answer, solve
from torchsplit_core.values import Progress, ignore_progress

FLOOR_SLACK = 1e-10
"""Relative slack of an earlier stage's value when the next is solved: room for rounding only.

More would be spent: with shares, a model whose requests are cheap gains a thousandfold what a
dear one gives up.
"""


POLISH_S = 5.0
"""Most seconds for the linear programs that follow a search with shares; they take milliseconds."""


@dataclass
class Search:
    """What a search knows so far. `bounds` has a proven bound of each stage that was bounded."""

    status: Literal["optimal", "feasible", "infeasible", "timeout"] = "timeout"
    best: Solution | None = None
    values: list[float] = field(default_factory=list)
    bounds: list[float | None] = field(default_factory=list)
    proven: int = 0
    seconds: float = 0.0
    stages: int = 0


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
        found = _leximin(built, 1 if quick else count, deadline, progress)
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
            found.bounds = [*sorted(normalised(built, tuple(upper_rates(built))))]
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
        better = _leximin(again, found.stages, deadline, ignore_progress)
    if better.best is None or better.status != "optimal":
        return
    if built.problem.request.objective.kind == "weighted_sum":
        improved = better.values[0] >= found.values[0]
    else:
        improved = _no_worse(better.values, found.values, found.stages)
    if improved:
        found.best = replace(better.best, values=found.best.values)
        found.values = better.values
        found.seconds += better.seconds


def upper_rates(built: Formulation) -> list[float]:
    """For each model a throughput no plan can pass: the whole fleet for it alone, stage limits ignored."""
    problem = built.problem
    best: dict[tuple[int, int, str], float] = {}
    for choice in problem.choices:
        key = (choice.model, choice.group, choice.profile)
        best[key] = max(best.get(key, 0.0), choice.point.throughput_rps)
    rates = [0.0] * len(problem.request.models)
    for index in range(len(rates)):
        for g, group in enumerate(problem.groups):
            rates[index] += len(group.gpu_ids) * max(
                (
                    sum(count * best.get((index, g, name), 0.0) for name, count in layout.useful.items())
                    for layout in group.layouts
                ),
                default=0.0,
            )
    return rates


def _leximin(built: Formulation, levels: int, deadline: float, progress: Progress) -> Search:
    model = built.model
    ceilings = sorted(normalised(built, tuple(upper_rates(built))))
    paying = penalised(built)
    found = Search(stages=levels)
    model.level = pyo.Block(range(1, levels + 1))
    for k in range(1, levels + 1):
        ceiling = ceilings[k - 1]
        if found.best is not None and time.perf_counter() > deadline:
            # Out of time: the ceilings still bound the levels that were never searched.
            found.bounds += ceilings[k - 1 :]
            break
        progress((k - 1) / levels, f"Fair share {k} of {levels}")
        reached = level_values(built, found.best) if found.best is not None else None
        if reached is not None and not paying and reached[k - 1] >= ceiling * (1 - TOLERANCE):
            # No plan can pass the ceiling of this level, so it is proven as it stands.
            found.bounds.append(max(ceiling, reached[k - 1]))
            if found.proven == k - 1:
                found.proven = k
            if ceiling > 0:
                _level(built, k, ceiling)
                _floor(built, k, found.best, ceiling)
            continue
        scale = ceiling if ceiling > 0 else 1.0
        objective = _level(built, k, scale)
        answer = solve(model, _slice(deadline, levels - k + 1))
        objective.deactivate()
        found.seconds += answer.seconds
        if answer.status == "infeasible" and found.best is None:
            found.status = "infeasible"
            return found
        proven = _accept(built, found, answer, k)
        if found.best is None:
            return found
        here = level_values(built, found.best)
        bound = ceiling
        if answer.bound is not None:
            # θ_k's bound less the k−1 smaller values: exact only where those are proven.
            bound = min(bound, answer.bound * scale - sum(here[: k - 1]))
        bound = max(bound, here[k - 1])
        found.bounds.append(bound)
        if proven and found.proven == k - 1:
            found.proven = k
        if k < levels:
            _floor(built, k, found.best, scale)
    assert found.best is not None
    found.values = level_values(built, found.best)
    found.status = "optimal" if found.proven == levels else "feasible"
    return found


def level_values(built: Formulation, solution: Solution | None) -> list[float]:
    """The sorted r less the penalty: what leximin compares."""
    assert solution is not None
    paid = penalty_of(built, solution)
    return [value - paid for value in sorted(normalised(built, solution.rates))]


def penalised(built: Formulation) -> bool:
    """Whether the objective pays for anything but throughput."""
    objective = built.problem.request.objective
    return bool(objective.memory_violation_penalty) or objective.separation_weight > 0


def _level(built: Formulation, k: int, scale: float) -> Any:
    """Add θ_k / scale and its objective."""
    block, request = built.model.level[k], built.problem.request
    models = range(len(request.models))
    block.t = pyo.Var(bounds=(None, 1.0 + 1e-6))
    block.d = pyo.Var(models, domain=pyo.NonNegativeReals)
    block.level_deficit = pyo.ConstraintList()
    for index in models:
        spec = request.models[index]
        unit = scale * spec.weight * spec.demand_rps
        rate = built.rate(index, unit, f"level{k}_{index}")
        block.level_deficit.add(block.t - block.d[index] - rate <= 0)
    paid = built.penalty() if penalised(built) else 0.0
    block.theta = pyo.Expression(expr=k * block.t - sum(block.d.values()) - k * paid / scale)
    block.objective = pyo.Objective(expr=block.theta, sense=pyo.maximize)
    return block.objective


def _floor(built: Formulation, k: int, best: Solution | None, scale: float) -> None:
    """Later stages must not lose what level k has reached."""
    block = built.model.level[k]
    block.objective.deactivate()
    reached = sum(level_values(built, best)[:k]) / scale
    block.level_floor = pyo.Constraint(expr=block.theta >= reached - FLOOR_SLACK * max(1e-3, abs(reached)))


def _accept(built: Formulation, found: Search, answer: Answer, k: int) -> bool:
    """Take the answer where it is no worse than what is there; say whether level k is proven.

    A stage that comes back worse than what is there, or with a bound below what is reached, is a
    fault of the solver: the better plan stays and the level is not called proven.
    """
    proven = answer.status == "optimal"
    if answer.status in ("optimal", "feasible"):
        candidate = read_solution(built, answer)
        if found.best is None or _no_worse(
            level_values(built, candidate), level_values(built, found.best), k
        ):
            found.best = candidate
        else:
            proven = False
    return proven


def _no_worse(new: list[float], old: list[float], k: int) -> bool:
    """Whether the sums of the smallest 1 … k are all kept (within tolerance), judged in that order."""
    for count in range(1, k + 1):
        before, after = sum(old[:count]), sum(new[:count])
        slack = TOLERANCE * max(abs(before), abs(after))
        if after < before - slack:
            return False
        if after > before + slack:
            return True
    return True


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
            ceilings = sorted(normalised(built, tuple(upper_rates(built))))
            _floor(built, last, found.best, ceilings[last - 1] or 1.0)
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


def _slice(deadline: float, stages_left: int) -> float:
    """The first stages get the larger part of what is left: later ones often follow from them."""
    left = deadline - time.perf_counter()
    return left if stages_left == 1 else left * max(0.25, 1.0 / stages_left)

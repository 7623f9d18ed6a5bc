"""leximin on a formulation, level by level.

Maximised lexicographically, for k = 1 … N, is the sum of the k smallest r:
θ_k = k·t_k − Σ_m d_mk with d_mk ≥ t_k − r_m and d ≥ 0 (families level_deficit and
level_floor). Locking the bottleneck model instead is wrong with whole slices: which model is
the bottleneck is itself a choice. max_min is its first level. A penalty P (see
Formulation.penalty) is taken from every r alike, so level k maximises θ_k − k·P.

Where models have tiers, the levels of each tier come first, the highest tier before the others: the same
over its models m alone with t_k ≤ 1, so that what is above their demand counts for nothing. There P stands in
d_mk ≥ t_k − r_m + P.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.formulation.solution import Solution, penalty_of, read_solution
from torchsplit_core.planning.request.objective import (
    Rung,
    level_places,
    pays_penalties,
    ranked,
    unit_rps,
)
from torchsplit_core.planning.tolerance import TOLERANCE, equal
from torchsplit_core.solver.pyomo_model import ModelSolution, pyo
from torchsplit_core.values import Progress
from torchsplit_core.values.status import SolveStatus

FLOOR_SLACK = 1e-10
"""Relative slack of an earlier stage's value when the next is solved: room for rounding only.

More would be spent: with shares, a model whose requests are cheap gains a thousandfold what a
dear one gives up.
"""

EASED_SLACK = 1e-5
"""And where the solver then calls the next stage infeasible, which the plan at hand disproves."""

FIRST_INCUMBENT_S = 2.0
"""Seconds that level 1 gets of a short limit, so that a fair plan is found before it is refined."""


@dataclass
class Search:
    """What a search knows so far. `bounds` has a proven bound of each level that was bounded."""

    status: SolveStatus = "timeout"
    best: Solution | None = None
    values: list[float] = field(default_factory=list)
    bounds: list[float | None] = field(default_factory=list)
    proven: int = 0
    seconds: float = 0.0
    levels: int = 0


def search_levels(built: Formulation, levels: int, deadline: float, progress: Progress) -> Search:
    model = built.model
    ceilings = level_ceilings(built)
    paying = pays_penalties(built.problem.request.objective)
    found = Search(levels=levels)
    model.level = pyo.Block(range(1, levels + 1))
    for k in range(1, levels + 1):
        before = level_places(built.problem.request.models)[k - 1][1] - 1
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
                keep_level(built, k, found.best, ceiling)
            continue
        scale = ceiling if ceiling > 0 else 1.0
        objective = _level(built, k, scale)
        answer = built.solve(_slice(deadline, levels - k + 1, have_plan=found.best is not None))
        found.seconds += answer.seconds
        if answer.status == "infeasible" and found.best is not None:
            # The plan at hand meets every floor, so that is the solver's rounding: once more with room.
            _ease_floors(model, k)
            answer = built.solve(deadline - time.perf_counter())
            found.seconds += answer.seconds
        objective.deactivate()
        if answer.status == "infeasible" and found.best is None:
            found.status = "infeasible"
            return found
        proven = _accept(built, found, answer, k)
        if found.best is None:
            return found
        here = level_values(built, found.best)
        bound = ceiling
        if answer.bound is not None:
            smaller, theta = sum(here[k - 1 - before : k - 1]), answer.bound * scale
            reach = smaller + here[k - 1]
            if theta < reach - TOLERANCE * max(scale, abs(reach)):
                # A bound below what is reached is none, and what the solver calls proven is not.
                proven = False
            else:
                # θ_k's bound less the smaller values before it: exact only where those are proven.
                bound = min(bound, theta - smaller)
        bound = max(bound, here[k - 1])
        found.bounds.append(bound)
        if proven and found.proven == k - 1:
            found.proven = k
        if k < levels:
            keep_level(built, k, found.best, scale)
    assert found.best is not None
    found.values = level_values(built, found.best)
    found.status = "optimal" if found.proven == levels else "feasible"
    return found


def level_values(built: Formulation, solution: Solution | None) -> list[float]:
    """The sorted r less the penalty, tier by tier where there are some: what leximin compares."""
    assert solution is not None
    return ranked(built.problem.request, solution.rates, penalty_of(built, solution))


def level_ceilings(built: Formulation) -> list[float]:
    """For each level a value that no plan can pass."""
    found = ranked(built.problem.request, upper_rates(built))
    return [min(found[0], built.top), *found[1:]]


def upper_rates(built: Formulation) -> list[float]:
    """For each model a throughput no plan can pass: the whole fleet for it alone, stage limits ignored."""
    problem = built.problem
    best: dict[tuple[int, int, str], float] = {}
    for choice in problem.choices:
        key = (choice.model, choice.group, choice.profile)
        best[key] = max(best.get(key, 0.0), choice.rate_rps)
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


def _level(built: Formulation, k: int, scale: float) -> Any:
    """Add θ / scale of level k and its objective; `scale` is no less than the level can be."""
    block, request = built.model.level[k], built.problem.request
    rung, place = level_places(request.models)[k - 1]
    capped, paid = rung.cap < float("inf"), 0.0
    if pays_penalties(request.objective):
        paid = built.penalty() / scale
    block.t = pyo.Var(bounds=(None, 1.0 + 1e-6))
    block.d = pyo.Var(rung.models, domain=pyo.NonNegativeReals)
    block.level_deficit = pyo.ConstraintList()
    for index in rung.models:
        spec = request.models[index]
        unit = scale * unit_rps(spec)
        if capped and pays_penalties(request.objective):
            # What is above the scale pays penalties, so no rate may be cut.
            rate = built.rate(index, unit, f"tier{k}_{index}") - paid
        else:
            rate = built.rate(index, unit, f"level{k}_{index}")
        block.level_deficit.add(block.t - block.d[index] - rate <= 0)
    taken = 0.0 if capped else place * paid
    block.theta = pyo.Expression(expr=place * block.t - sum(block.d.values()) - taken)
    block.objective = pyo.Objective(expr=block.theta, sense=pyo.maximize)
    return block.objective


def keep_level(built: Formulation, k: int, best: Solution | None, scale: float) -> None:
    """Later levels must not lose what level k has reached."""
    _keep(built, k, level_values(built, best), scale)


def hold_levels(built: Formulation, values: Sequence[float]) -> None:
    """Every level held at the values of a plan, the worst served first, for what ranks plans of equal levels."""
    built.model.level = pyo.Block(range(1, len(values) + 1))
    ceilings = level_ceilings(built)
    paying = pays_penalties(built.problem.request.objective)
    for k, value in enumerate(values, start=1):
        built.look()
        # Of a plan with these levels the k smallest are no more than the k-th: what is above it counts as that.
        scale = ceilings[k - 1] if paying else value
        if scale > 0:
            _level(built, k, scale)
            _keep(built, k, values, scale)


def _keep(built: Formulation, k: int, values: Sequence[float], scale: float) -> None:
    block = built.model.level[k]
    block.objective.deactivate()
    place = level_places(built.problem.request.models)[k - 1][1]
    reached = sum(values[k - place : k]) / scale
    block.level_floor = pyo.Constraint(expr=block.theta >= reached - FLOOR_SLACK * max(1e-3, abs(reached)))


def _ease_floors(model: Any, k: int) -> None:
    """Give the floors of the levels before k the slack of the solver's own tolerance."""
    for before in range(1, k):
        block = model.level[before]
        if hasattr(block, "level_floor"):
            floor = pyo.value(block.level_floor.lower)
            block.level_floor.set_value(block.theta >= floor - EASED_SLACK * max(1e-3, abs(floor)))


def _accept(built: Formulation, found: Search, answer: ModelSolution, k: int) -> bool:
    """Take the answer where it is no worse than what is there; say whether level k is proven.

    A stage that comes back worse than what is there, or with a bound below what is reached, is a
    fault of the solver: the better plan stays and the level is not called proven.
    """
    proven = answer.status == "optimal"
    if answer.status in ("optimal", "feasible"):
        candidate = read_solution(built, answer)
        places = level_places(built.problem.request.models)[:k]
        if found.best is None or no_worse(
            level_values(built, candidate), level_values(built, found.best), places
        ):
            found.best = candidate
        else:
            proven = False
    return proven


def no_worse(new: list[float], old: list[float], places: Sequence[tuple[Rung, int]]) -> bool:
    """Whether the sums of the smallest of these levels are all kept (within tolerance), judged in their order."""
    for level, (_, place) in enumerate(places, start=1):
        before, after = sum(old[level - place : level]), sum(new[level - place : level])
        if not equal(before, after):
            return after > before
    return True


def _slice(deadline: float, levels_left: int, *, have_plan: bool) -> float:
    """The first levels get the larger part of what is left: later ones often follow from them."""
    left = deadline - time.perf_counter()
    if levels_left == 1:
        return left
    share = left * max(0.25, 1.0 / levels_left)
    # Without any plan yet, a quarter of a short limit may end before the solver's first incumbent.
    return share if have_plan else max(share, min(0.75 * left, FIRST_INCUMBENT_S))

"""The cheapest GPUs whose whole slices meet every minimum, by patterns.

For any prices π ≥ 0 of slices a plan costs at least Σ_m c_m(π) − Σ_g GPUs[g] · max(0, worth_g(π) − cost_g), c_m the
cost of the cheapest pattern of model m and worth_g that of a GPU's dearest layout. The prices come from the master's
linear program by column generation. Plans are sought among the few cheapest patterns of each model, then among all that
a plan near the bound could use, at first very near. Where the master has all patterns that a cheaper plan could use,
its "none" proves the plan.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from torchsplit_core.planning.patterns.capacity import Vector
from torchsplit_core.planning.patterns.feasibility import (
    MOST_ROUNDS,
    FeasibilityProblem,
    PatternPlan,
    PatternSearch,
)
from torchsplit_core.planning.patterns.leximin_levels import ENOUGH, MIN_BOUND_S, MIN_FIRST_PLAN_S
from torchsplit_core.planning.patterns.master import solve_relaxation
from torchsplit_core.planning.patterns.rounding import round_relaxation
from torchsplit_core.planning.tolerance import TOLERANCE

MINIMA = FeasibilityProblem((0.0,))
"""Every model at its minimum."""

NO_LEVELS: Vector = np.zeros(0)
"""The penalties of its further levels: there are none."""

DECIMALS = 10_000
"""Costs that are whole multiples of its inverse have a least common step."""

NEAR_MARGIN = 5e-3
"""Relative margin above the bound within which the few cheapest patterns are taken."""

NEAR_SEARCHES = ((20, 0.0), (20, 0.25), (40, 0.25))
"""Searches among them: patterns of a model, and the part of the remaining time, at least that of a first search."""

ROUNDS = ((0.3, 0.0), (1.0, 0.1))
"""Searches beside the linear program: their least seconds, and their part of the remaining time."""

FIRST_MARGIN = 5e-4
"""First relative margin above the bound within which patterns are taken; it doubles."""

SEARCH_SHARE, FIRST_SEARCH_S = 0.35, 1.0
"""Part of the remaining time for one search among the patterns of a margin, and the seconds of the first one."""


@dataclass
class CheapestPlan:
    """The plan, its cost, and a proven bound of the cost; no plan if none was found in time."""

    plan: PatternPlan | None = None
    cost: float = float("inf")
    bound: float = 0.0
    infeasible: bool = False

    @property
    def proven(self) -> bool:
        """Whether no plan costs less."""
        return self.cost <= self.bound * (1 + TOLERANCE)


def cheapest_plan(search: PatternSearch, costs: Sequence[float], deadline: float) -> CheapestPlan:
    """The cheapest plan found before the deadline; `costs` is of a GPU by group."""
    result = CheapestPlan()
    by_column = np.array(costs)[search.capacity.group_of]
    search.start_from_divisible_prices(range(len(search.options)))
    # A first plan and its bound take milliseconds, which a shorter limit must allow.
    until = max(deadline, time.perf_counter() + MIN_FIRST_PLAN_S)
    first = search.decide(MINIMA, until, prove=True, enough=ENOUGH)
    if first.plan is None:
        result.infeasible = first.verdict == "none"
        return result
    _accept(search, result, first.plan, by_column)
    step = cost_step(costs)
    bound = bound_by_prices(search, by_column, max(deadline, time.perf_counter() + MIN_BOUND_S))
    result.bound = _round_up(bound, step)
    _search_near(search, result, bound, by_column, step, deadline)
    _search_margins(search, result, bound, by_column, step, deadline)
    return result


def _search_near(
    search: PatternSearch,
    result: CheapestPlan,
    bound: float,
    costs: Vector,
    step: float,
    deadline: float,
) -> None:
    """Cheaper plans beside the linear program's, and of the few cheapest patterns of each model."""
    for least_s, share in ROUNDS:
        left = deadline - time.perf_counter()
        if result.proven or left <= 0:
            return
        highest = result.cost - (step or 1e-6 * result.cost)
        seconds = min(left, max(least_s, share * left))
        rounded = round_relaxation(search, MINIMA, seconds, costs, highest)
        if rounded is not None:
            _accept(search, result, rounded, costs)
    value = search.capacity.worth(search.prices, costs)
    for most, share in NEAR_SEARCHES:
        highest = result.cost - (step or 1e-6 * result.cost)
        within = min(highest, bound * (1 + NEAR_MARGIN)) + value
        full = None if result.proven else search.all_columns(MINIMA, NO_LEVELS, within, deadline, most)
        left = deadline - time.perf_counter()
        if full is None or left <= 0:
            return
        seconds = min(left, max(FIRST_SEARCH_S, share * left))
        plan = search.solve_columns(MINIMA, full.columns, seconds, costs, highest)
        if isinstance(plan, PatternPlan):
            _accept(search, result, plan, costs)


def _search_margins(
    search: PatternSearch,
    result: CheapestPlan,
    bound: float,
    costs: Vector,
    step: float,
    deadline: float,
) -> None:
    """Cheaper plans of the patterns that plans near the bound of prices could use, until there are none."""
    value = search.capacity.worth(search.prices, costs)
    seconds = FIRST_SEARCH_S
    for number in count():
        left = deadline - time.perf_counter()
        if result.proven or left <= 0:
            return
        highest = result.cost - (step or 1e-6 * result.cost)
        within = min(highest, bound * (1 + FIRST_MARGIN * 2**number))
        full = search.all_columns(MINIMA, NO_LEVELS, within + value, deadline)
        if full is None:
            return
        columns = full.columns
        if not full.complete:
            # With too many patterns near the bound a model may have none among them.
            columns += search.cheapest_columns(MINIMA, NO_LEVELS)
        plan = search.solve_columns(MINIMA, columns, min(seconds, left), costs, highest)
        if isinstance(plan, PatternPlan):
            _accept(search, result, plan, costs)
        else:
            if plan == "none" and full.complete:
                # No plan costs up to `within`.
                result.bound = (
                    result.cost if within >= highest else max(result.bound, _round_up(within, step))
                )
            if within >= highest:
                return
        seconds = max(FIRST_SEARCH_S, SEARCH_SHARE * (deadline - time.perf_counter()))


def _accept(search: PatternSearch, result: CheapestPlan, plan: PatternPlan, costs: Vector) -> None:
    cost = float(costs @ plan.layouts)
    if cost < result.cost:
        result.plan, result.cost = plan, cost
        search.on_better(cost, plan)


def bound_by_prices(search: PatternSearch, costs: Vector, deadline: float) -> float:
    """The highest bound of column generation."""
    best, no_flags = 0.0, np.zeros((0, len(search.options)), dtype=np.bool_)
    for _ in range(MOST_ROUNDS):
        duals = solve_relaxation(search.capacity, no_flags, search.pool_columns(MINIMA), (), costs)
        search.take_prices(duals.prices)
        before = search.pool_size
        total = search.price_models(MINIMA, search.prices, NO_LEVELS, duals, deadline)
        if total != total:
            break
        best = max(best, total - search.capacity.worth(search.prices, costs))
        if search.pool_size == before or best >= duals.zeta * (1 - 1e-6):
            break
    return best


def cost_step(costs: Sequence[float]) -> float:
    """The step that all sums of these costs are multiples of; 0 if it is none worth rounding to."""
    scaled = [round(cost * DECIMALS) for cost in costs]
    if any(abs(whole / DECIMALS - cost) > 1e-12 for whole, cost in zip(scaled, costs, strict=True)):
        return 0.0
    return math.gcd(*scaled) / DECIMALS


def _round_up(value: float, step: float) -> float:
    """The least multiple of the step that is no less, but for rounding."""
    return step * math.ceil(value / step * (1 - 1e-9) - 1e-9) if step else value

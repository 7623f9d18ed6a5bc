"""A bound of the worst-served model with shared slices, by prices of their resources and patterns of whole models.

For prices π ≥ 0 of resources (model_patterns.py) let c_m be the cost of model m's cheapest pattern that reaches a
level. A slice is worth the sum of its prices, and no plan takes more than the fleet is worth: the level is refuted
where Σ_m c_m exceeds that. It is arithmetic, whatever the solver did. The prices are those of a linear program whose
columns come one by one:

| row | formula |
|---|---|
| fleet[g] | Σ_{c∈g} y[c] ≤ GPUs[g]·ζ |
| resource[p,r] | Σ_mj takes[m,j,p,r]·λ[m,j] ≤ Σ_c slices[p,c]·y[c] |
| pattern[m] | Σ_j λ[m,j] + short[m] ≥ 1 |
| minimise | ζ + much · Σ short |

λ[m,j] model m has pattern j, y[c] GPUs have layout c, ζ is the part of the fleet in use.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from torchsplit_core.planning.fractional.model_patterns import (
    RESOURCES,
    EndArrays,
    Pattern,
    Vector,
    cheapest_pattern,
    list_options,
    pattern_takes,
    refit,
)
from torchsplit_core.planning.fractional.targets import level_rates
from torchsplit_core.planning.patterns.capacity import fleet_capacity
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.solver.highs import INF, run
from torchsplit_core.solver.row_program import RowProgram

SHORT_COST = 1e3
"""Cost of a model without a pattern, in fleets."""

MIN_REDUCED_COST = 1e-7
"""Least improvement for which a column is added, in fleets."""

LEVEL_STEP = 1e-3
"""Relative distance of two levels at which the search for the lowest refuted one ends."""


def bound_level(problem: Problem, reached: float, known_bound: float, deadline: float) -> float:
    """The lowest level refuted by the deadline (time.perf_counter), or `known_bound`; a plan has `reached`."""
    if not math.isfinite(known_bound) or known_bound - reached <= LEVEL_STEP * known_bound:
        return known_bound
    pricing = _Pricing(problem)
    if len(pricing.options) < len(problem.request.models):
        return known_bound
    low, high, prices = reached, known_bound, pricing.first_prices()
    # Where no level above 0 is possible, halving would not end.
    while high - low > LEVEL_STEP * max(high, LEVEL_STEP * known_bound) and time.perf_counter() < deadline:
        level = (low + high) / 2
        rates = {model: rate for model, rate in level_rates(problem, level).items() if rate > 0}
        refuted, prices = pricing.refute(rates, prices, deadline)
        low, high = (low, level) if refuted else (level, high)
    return high


class _Pricing:
    """The models' options on a fleet, and searches for prices that refute a level."""

    def __init__(self, problem: Problem) -> None:
        self.capacity = fleet_capacity(problem)
        self.options = list_options(problem, self.capacity)
        self.ends = {model: EndArrays(options) for model, options in self.options.items()}
        self.known: list[tuple[int, Pattern]] = []

    def first_prices(self) -> Vector:
        """A share costs the part of a GPU that the slice is (pools × RESOURCES)."""
        prices = np.zeros((len(self.capacity.pools), RESOURCES))
        prices[:, 0] = 1.0 / self.capacity.slices.max(axis=1)
        return prices

    def refute(self, rates: Mapping[int, float], prices: Vector, deadline: float) -> tuple[bool, Vector]:
        """Whether prices prove that no plan gives every model its rate (requests/s), and the last prices.

        Beginning with `prices`; ends where they do, or where the linear program has a solution.
        """
        master = _Master(self, list(rates))
        for model, pattern in self.known:
            refitted = refit(self.options[model], pattern, rates[model])
            if refitted is not None:
                master.add(model, refitted)
        while True:
            patterns = {
                model: cheapest_pattern(self.options[model], self.ends[model], prices, rate)
                for model, rate in rates.items()
            }
            least = sum(pattern.bound for pattern in patterns.values())
            if least > self.capacity.worth(prices.sum(axis=1)) * (1 + TOLERANCE):
                return True, prices
            improving = master.improving(patterns)
            self.known += improving
            for model, pattern in improving:
                master.add(model, pattern)
            if not improving or time.perf_counter() > deadline or not master.solve():
                return False, prices
            prices = master.prices

    def takes(self, model: int, pattern: Pattern) -> Vector:
        """What a pattern takes (pools × RESOURCES)."""
        taken = np.zeros((len(self.capacity.pools), RESOURCES))
        for stage, use, share in pattern.tenancies:
            uses = self.options[model][pattern.option].stages[stage]
            taken[uses.pools[use]] += pattern_takes(uses, use, share)
        return taken


class _Master:
    """The linear program for some models, and its prices."""

    def __init__(self, pricing: _Pricing, models: list[int]) -> None:
        self.pricing, self.models = pricing, models
        capacity, program = pricing.capacity, RowProgram()
        zeta = program.add_columns([1.0], [INF])
        layouts = program.add_columns([0.0] * len(capacity.columns), [INF] * len(capacity.columns))
        short = program.add_columns([SHORT_COST] * len(models), [INF] * len(models))
        for group, gpus in enumerate(capacity.gpus.tolist()):
            columns = (layouts + np.flatnonzero(capacity.group_of == group)).tolist()
            program.add_row(-INF, 0.0, [*columns, zeta], [*[1.0] * len(columns), -float(gpus)])
        self.resource_at = len(capacity.gpus)
        for slices in capacity.slices:
            offering = np.flatnonzero(slices)
            for _ in range(RESOURCES):
                program.add_row(-INF, 0.0, layouts + offering, -slices[offering].astype(np.float64))
        self.model_at = self.resource_at + len(capacity.pools) * RESOURCES
        for number in range(len(models)):
            program.add_row(1.0, INF, [short + number], [1.0])
        self.highs: Any = program.load(whole=False)
        self.model_prices = [INF] * len(models)
        self.prices = pricing.first_prices()

    def improving(self, patterns: Mapping[int, Pattern]) -> list[tuple[int, Pattern]]:
        """The patterns that cost less than their models pay."""
        return [
            (model, patterns[model])
            for model, price in zip(self.models, self.model_prices, strict=True)
            if patterns[model].cost < price - MIN_REDUCED_COST
        ]

    def add(self, model: int, pattern: Pattern) -> None:
        """Add a column."""
        takes = self.pricing.takes(model, pattern).ravel()
        used = np.flatnonzero(takes)
        rows = np.array(
            [*(self.resource_at + used), self.model_at + self.models.index(model)], dtype=np.int32
        )
        self.highs.addCol(0.0, 0.0, INF, len(rows), rows, np.array([*takes[used], 1.0]))

    def solve(self) -> bool:
        """Solve; whether the prices may still refute."""
        if run(self.highs) != "optimal":
            return False
        duals = np.array(self.highs.getSolution().row_dual)
        self.prices = np.maximum(-duals[self.resource_at : self.model_at], 0.0).reshape(-1, RESOURCES)
        self.model_prices = duals[self.model_at :].tolist()
        return float(self.highs.getInfo().objective_function_value) > 1

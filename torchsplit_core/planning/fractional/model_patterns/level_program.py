"""A linear program that mixes the models' patterns at a level, and its prices, which refute levels.

For prices π ≥ 0 of resources (patterns.py) let c_m be the cost of model m's cheapest pattern that reaches a level. A
slice is worth the sum of its prices, and no plan takes more than the fleet is worth: the level is refuted where
Σ_m c_m exceeds that. It is arithmetic, whatever the solver did. The prices are those of a linear program whose columns
come one by one:

| row | formula |
|---|---|
| fleet[g] | Σ_{c∈g} y[c] ≤ GPUs[g]·ζ |
| resource[p,r] | Σ_mj takes[m,j,p,r]·λ[m,j] ≤ Σ_c slices[p,c]·y[c] |
| pattern[m] | Σ_j λ[m,j] + short[m] ≥ 1 |
| held[c] | y[c] = GPUs[c]·ζ, where layouts are held |
| minimise | ζ + much · Σ short |

λ[m,j] model m has pattern j, y[c] GPUs have layout c, ζ is the part of the fleet in use. In a *box* every model has a
range of its options, and only patterns of those.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from torchsplit_core.planning.fractional.model_patterns.pattern_pricing import PatternPricing, PricedOptions
from torchsplit_core.planning.fractional.model_patterns.patterns import (
    RESOURCES,
    Box,
    Pattern,
    Vector,
    list_options,
    pattern_takes,
    refit,
)
from torchsplit_core.planning.patterns.capacity import Counts, fleet_capacity
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.solver.highs import INF, run
from torchsplit_core.solver.row_program import RowProgram

SHORT_COST = 1e3
"""Cost of a model without a pattern, in fleets."""

MIN_REDUCED_COST = 1e-7
"""Least improvement for which a column is added, in fleets."""

SHARE_DIGITS = 9
"""Shares that agree in so many decimal places are those of one pattern."""


class ModelPatterns:
    """The models' options on a fleet, and the patterns met so far."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.capacity = fleet_capacity(problem)
        self.options = list_options(problem, self.capacity)
        self.known: dict[tuple[int, Pattern], None] = {}
        self._pricing = PatternPricing(problem, self.options)

    @property
    def is_complete(self) -> bool:
        """Whether every model has an option."""
        return len(self.options) == len(self.problem.request.models)

    @property
    def whole_box(self) -> dict[int, tuple[int, int]]:
        """All options of all models."""
        return {model: (0, len(options)) for model, options in self.options.items()}

    def first_prices(self) -> Vector:
        """A share costs the part of a GPU that the slice is (pools × RESOURCES)."""
        prices = np.zeros((len(self.capacity.pools), RESOURCES))
        prices[:, 0] = 1.0 / self.capacity.slices.max(axis=1)
        return prices

    def cheapest(self, box: Box, prices: Vector, rates: Mapping[int, float]) -> dict[int, Pattern]:
        """By model the cheapest pattern in a box that gives the model its rate (requests/s)."""
        return self._pricing.cheapest(box, prices, rates)

    def by_option(self, box: Box, prices: Vector, rates: Mapping[int, float]) -> PricedOptions:
        """The same for every option of a box, and for others what they cost at least."""
        return self._pricing.by_option(box, prices, rates)

    def takes(self, model: int, pattern: Pattern) -> Vector:
        """What a pattern takes (pools × RESOURCES)."""
        taken = np.zeros((len(self.capacity.pools), RESOURCES))
        for stage, use, share in pattern.tenancies:
            uses = self.options[model][pattern.option].stages[stage]
            taken[uses.pools[use]] += pattern_takes(uses, use, share)
        return taken

    def refute(self, program: LevelProgram, box: Box, prices: Vector, deadline: float) -> tuple[bool, Vector]:
        """Whether prices prove that no plan of a box gives every model its rate (requests/s), and the last prices.

        Beginning with `prices`; ends where they do, where the linear program has a solution, or at the deadline
        (time.perf_counter).
        """
        program.restrict(box)
        while True:
            patterns = self.cheapest(box, prices, program.rates)
            least = sum(pattern.bound for pattern in patterns.values())
            if least > self.capacity.worth(prices.sum(axis=1)) * (1 + TOLERANCE):
                return True, prices
            improved = program.improve(patterns.items())
            if not improved or time.perf_counter() > deadline or not program.solve():
                return False, program.prices
            prices = program.prices

    def generate(self, program: LevelProgram, box: Box, prices: Vector, deadline: float) -> None:
        """Meet the patterns of the linear program's optimum, even where the level is within reach."""
        program.restrict(box)
        while True:
            patterns = self.cheapest(box, prices, program.rates)
            if not program.improve(patterns.items()) or time.perf_counter() > deadline:
                return
            program.solve()
            prices = program.prices


class LevelProgram:
    """The linear program for the rates (requests/s by model) of a level, begun with all patterns met."""

    def __init__(self, patterns: ModelPatterns, rates: Mapping[int, float]) -> None:
        self.patterns, self.rates = patterns, rates
        capacity, program = patterns.capacity, RowProgram()
        zeta = program.add_columns([1.0], [INF])
        self.layout_at = program.add_columns([0.0] * len(capacity.columns), [INF] * len(capacity.columns))
        short = program.add_columns([SHORT_COST] * len(rates), [INF] * len(rates))
        for group, gpus in enumerate(capacity.gpus.tolist()):
            columns = (self.layout_at + np.flatnonzero(capacity.group_of == group)).tolist()
            program.add_row(-INF, 0.0, [*columns, zeta], [*[1.0] * len(columns), -float(gpus)])
        self.resource_at = len(capacity.gpus)
        for slices in capacity.slices:
            offering = np.flatnonzero(slices)
            for _ in range(RESOURCES):
                program.add_row(-INF, 0.0, self.layout_at + offering, -slices[offering].astype(np.float64))
        self.model_at = self.resource_at + len(capacity.pools) * RESOURCES
        self.held_at = self.model_at + len(rates)
        for number in range(len(rates)):
            program.add_row(1.0, INF, [short + number], [1.0])
        for column in range(self.layout_at, self.layout_at + len(capacity.columns)):
            program.add_row(-INF, INF, [column, zeta], [1.0, -1.0])
        self.highs: Any = program.load(whole=False)
        self.column_at = len(program.cost)
        self.columns: dict[tuple[int, Pattern], None] = {}
        self.model_prices = [INF] * len(rates)
        self.prices = patterns.first_prices()
        for model, pattern in patterns.known:
            refitted = refit(patterns.options[model], pattern, rates[model]) if model in rates else None
            if refitted is not None:
                self._add(model, refitted)

    def restrict(self, box: Box) -> None:
        """Allow patterns of these options alone."""
        allowed = [
            INF if box[model][0] <= pattern.option < box[model][1] else 0.0 for model, pattern in self.columns
        ]
        columns = np.arange(self.column_at, self.column_at + len(allowed), dtype=np.int32)
        self.highs.changeColsBounds(len(allowed), columns, np.zeros(len(allowed)), np.array(allowed))
        self.model_prices = [INF] * len(self.rates)

    def have(self, gpus: Counts) -> None:
        """Have so many GPUs by group in place of the fleet's."""
        for group, count in enumerate(gpus.tolist()):
            self.highs.changeCoeff(group, 0, -float(count))

    def fix_layouts(self, layouts: Mapping[tuple[int, int], int]) -> None:
        """Have the fleet's GPUs in these layouts, by (group, layout), alone."""
        self.hold(np.array([layouts.get(column, 0) for column in self.patterns.capacity.columns]))

    def hold(self, layouts: Counts) -> None:
        """The same by layout column."""
        rows = np.arange(self.held_at, self.held_at + len(layouts), dtype=np.int32)
        for row, count in zip(rows.tolist(), layouts.tolist(), strict=True):
            self.highs.changeCoeff(row, 0, -float(count))
        self.highs.changeRowsBounds(len(rows), rows, np.zeros(len(rows)), np.zeros(len(rows)))

    def release(self) -> None:
        """Hold no layouts."""
        width = len(self.patterns.capacity.columns)
        rows = np.arange(self.held_at, self.held_at + width, dtype=np.int32)
        self.highs.changeRowsBounds(width, rows, np.full(width, -INF), np.full(width, INF))

    def improve(self, patterns: Iterable[tuple[int, Pattern]]) -> bool:
        """Add models' patterns that cost less than they pay; whether there are new ones, or prices none yet."""
        improved, model_prices = False, dict(zip(self.rates, self.model_prices, strict=True))
        for model, pattern in patterns:
            price = model_prices[model]
            if pattern.cost < price - MIN_REDUCED_COST:
                improved |= self._add(model, pattern) or price == INF
                self.patterns.known.setdefault((model, _identity(pattern)))
        return improved

    def _add(self, model: int, pattern: Pattern) -> bool:
        key = model, _identity(pattern)
        if key in self.columns:
            return False
        self.columns[key] = None
        takes = self.patterns.takes(model, pattern).ravel()
        used = np.flatnonzero(takes)
        place = list(self.rates).index(model)
        rows = np.array([*(self.resource_at + used), self.model_at + place], dtype=np.int32)
        self.highs.addCol(0.0, 0.0, INF, len(rows), rows, np.array([*takes[used], 1.0]))
        return True

    def solve(self) -> bool:
        """Solve; whether the prices may still refute."""
        if run(self.highs) != "optimal":
            return False
        duals = np.array(self.highs.getSolution().row_dual)
        self.prices = np.maximum(-duals[self.resource_at : self.model_at], 0.0).reshape(-1, RESOURCES)
        self.model_prices = duals[self.model_at : self.held_at].tolist()
        return float(self.highs.getInfo().objective_function_value) > 1

    def layouts(self) -> Vector:
        """GPUs by layout column in the last solution."""
        width = len(self.patterns.capacity.columns)
        values: Vector = np.array(self.highs.getSolution().col_value)[self.layout_at : self.layout_at + width]
        return values

    def weights(self) -> dict[int, dict[int, float]]:
        """By model and option the parts of its patterns in the last solution."""
        values = np.array(self.highs.getSolution().col_value)[self.column_at :]
        weights: dict[int, dict[int, float]] = {}
        for (model, pattern), value in zip(self.columns, values.tolist(), strict=True):
            if value > MIN_REDUCED_COST:
                by_option = weights.setdefault(model, {})
                by_option[pattern.option] = by_option.get(pattern.option, 0.0) + value
        return weights


def _identity(pattern: Pattern) -> Pattern:
    """The pattern without its cost."""
    tenancies = tuple((stage, use, round(share, SHARE_DIGITS)) for stage, use, share in pattern.tenancies)
    return Pattern(0.0, 0.0, pattern.option, tenancies)

"""A bound of the least cost with shared slices: the cheapest GPUs that prices of what whole models take do not refute.

What a plan costs is decided by how many GPUs of each group it uses. For any prices π ≥ 0 of resources (patterns.py) the
models cost Σ_m c_m whatever these are, c_m the cost of the cheapest pattern with the minimum of model m, and GPUs are
refuted where they are worth less: Σ_g GPUs[g] · worth_g < Σ_m c_m. One price vector refutes many of them. The prices
are those of the linear program (level_program.py) with the cheapest GPUs left; where that has a solution, the models'
options are divided in boxes, as where levels are refuted (level_bounds.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import numpy as np

from torchsplit_core.planning.fractional.model_patterns.level_bounds import divide
from torchsplit_core.planning.fractional.model_patterns.level_program import LevelProgram, ModelPatterns
from torchsplit_core.planning.fractional.model_patterns.patterns import Box, Vector
from torchsplit_core.planning.patterns.capacity import Counts
from torchsplit_core.planning.tolerance import TOLERANCE

MAX_SIZES = 50_000
"""Numbers of GPUs by group above which none are looked at."""


def bound_cost(
    patterns: ModelPatterns, rates: Mapping[int, float], most: float, deadline: float
) -> float | None:
    """The least cost of a plan that gives these rates (requests/s by model), as far as it is proven by the deadline.

    `most`: the cost of a known plan, which the bound does not exceed; infinite without one. None where a model
    has no option, GPUs are taken together, or there are too many numbers of them.
    """
    capacity = patterns.capacity
    if len(capacity.at_most) or not rates.keys() <= patterns.options.keys():
        return None
    if math.prod((capacity.gpus + 1).tolist()) > MAX_SIZES:
        return None
    return _CostSearch(patterns, rates, most).run(deadline)


class _CostSearch:
    """The numbers of GPUs by group that cost less than a known plan, the cheapest first."""

    def __init__(self, patterns: ModelPatterns, rates: Mapping[int, float], most: float) -> None:
        self.patterns, self.rates, self.most = patterns, rates, most
        capacity = patterns.capacity
        group_costs = np.array([group.cost for group in patterns.problem.groups])
        ranges = [np.arange(gpus + 1) for gpus in capacity.gpus.tolist()]
        sizes: Counts = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, len(ranges))
        costs: Vector = sizes @ group_costs
        order = np.argsort(costs, kind="stable")
        order = order[costs[order] < most * (1 - TOLERANCE)]
        self.sizes, self.costs = sizes[order], costs[order]
        self.program = LevelProgram(patterns, rates)

    def run(self, deadline: float) -> float:
        """The cost of the cheapest that is not refuted; that of the known plan where all are."""
        open_sizes, prices = np.arange(len(self.sizes)), self.patterns.first_prices()
        while len(open_sizes):
            cheapest = open_sizes[0]
            self.program.have(self.sizes[cheapest])
            closed = self._refute(self.sizes[cheapest], prices, deadline)
            if closed is None:
                return float(self.costs[cheapest])
            prices, least = closed
            worth = self.sizes[open_sizes] @ self._dearest(prices)
            open_sizes = open_sizes[worth * (1 + TOLERANCE) >= least]
            # Those that only boxes refute are no longer open either.
            open_sizes = open_sizes[open_sizes != cheapest]
        return self.most

    def _refute(self, gpus: Counts, prices: Vector, deadline: float) -> tuple[Vector, float] | None:
        """The prices that refute these GPUs without any box, or nearly so, and what the models cost at them.

        None where the GPUs are not refuted in all boxes by the deadline.
        """
        outer: tuple[Vector, float] | None = None
        stack: list[tuple[Box, Vector]] = [(self.patterns.whole_box, prices)]
        while stack:
            box, prices = stack.pop()
            self.program.restrict(box)
            while True:
                patterns = self.patterns.cheapest(box, prices, self.rates)
                least = sum(pattern.bound for pattern in patterns.values())
                if gpus @ self._dearest(prices) * (1 + TOLERANCE) < least:
                    outer = outer or (prices, least)
                    break
                improved = self.program.improve(patterns.items())
                if time.perf_counter() > deadline:
                    return None
                if improved and self.program.solve():
                    prices = self.program.prices
                    continue
                outer = outer or (prices, least)
                division = divide(self.patterns, box, self.program.weights())
                if division is None:
                    return None
                model, option = division
                first, end = box[model]
                stack += [({**box, model: (first, option)}, prices), ({**box, model: (option, end)}, prices)]
                break
        return outer

    def _dearest(self, prices: Vector) -> Vector:
        """What a GPU of each group is worth."""
        capacity = self.patterns.capacity
        return capacity.dearest(capacity.values(prices.sum(axis=1)))

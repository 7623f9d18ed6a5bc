"""What levels of throughput cost at prices of slices: bounds that every plan keeps, whatever else it has to keep.

At prices π ≥ 0 of slices a model with T requests/s uses slices worth at least c(T; π): of whole slices the cheapest
pattern that reaches T, of shares T times the cheapest request/s. Together they are worth at most what the fleet is,
and a plan costs at least Σ c − Σ_g GPUs[g] · max(0, worth_g(π) − cost_g), as in `patterns.least_cost`. Co-locations,
the loss of a GPU and limits on changes only rule out plans.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from torchsplit_core.planning.patterns.equal_pools import join_equal_pools
from torchsplit_core.planning.patterns.feasibility import FeasibilityProblem, PatternSearch
from torchsplit_core.planning.patterns.least_cost import bound_by_prices
from torchsplit_core.planning.patterns.pricing import price_patterns
from torchsplit_core.planning.patterns.solve import build_search
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.objective import least_cost_objective
from torchsplit_core.planning.sample_plans.sample_levels import Rates
from torchsplit_core.values import Objective, PlanRequest

ROUNDING = 1e-7
"""Relative part by which prices are rounded down, so that rounding rules out no plan."""

FLAT = 1e-4
"""Levels between two whose prices differ by less, as a part of the dearest, take the lower price: still a bound."""

MOST_PRICING_S = 5.0
"""Most seconds of column generation for one row of prices."""

MINIMA = FeasibilityProblem((0.0,))


@dataclass
class PriceRow:
    """Prices of slices. `worth`: of the whole fleet, or if `by_cost` what its GPUs are worth beyond their cost."""

    search: PatternSearch
    shares: bool
    prices: Rates
    worth: float
    by_cost: bool
    known: dict[tuple[int, float], float] = field(default_factory=dict)

    def price_of(self, model: int, rate: float) -> float:
        """The least price of this rate (requests/s); infinite if the whole fleet does not give it."""
        if rate <= 0:
            return 0.0
        key = (model, rate)
        if key not in self.known:
            if self.shares:
                each = float(self.search.options[model].unit_costs(self.prices).min(initial=np.inf))
                self.known[key] = each * rate * (1 - ROUNDING)
            else:
                patterns = price_patterns(
                    self.search.options[model], self.prices, rate, self.search.most[model], keep=1
                )
                self.known[key] = patterns.least * (1 - ROUNDING)
        return self.known[key]

    def prices_of(self, model: int, rates: Rates) -> Rates:
        """A lower bound of the price of each of these ascending rates; infinite from the first that is out of reach."""
        count = self.reachable(model, rates)
        prices = np.full(len(rates), np.inf)
        if not count:
            return prices
        prices[0], prices[count - 1] = (self.price_of(model, float(rates[at])) for at in (0, count - 1))
        flat = FLAT * prices[count - 1]
        todo = [(0, count - 1)]
        while todo:
            low, high = todo.pop()
            if high - low < 2:
                continue
            if prices[high] - prices[low] <= flat:
                prices[low + 1 : high] = prices[low]
                continue
            middle = (low + high) // 2
            prices[middle] = self.price_of(model, float(rates[middle]))
            todo += [(low, middle), (middle, high)]
        return np.maximum.accumulate(prices)

    def reachable(self, model: int, rates: Rates) -> int:
        """How many of these ascending rates the fleet can give the model."""
        low, high = -1, len(rates)
        if np.isfinite(self.price_of(model, float(rates[high - 1]))):
            return high
        while low + 1 < high:
            middle = (low + high) // 2
            if np.isfinite(self.price_of(model, float(rates[middle]))):
                low = middle
            else:
                high = middle
        return high


@dataclass
class Pricing:
    """Makes rows of prices for one request. `costs`: of a GPU by layout column. `exact`: all ways to run count."""

    search: PatternSearch
    costs: Rates
    shares: bool
    exact: bool

    def row_at(self, minima: Rates, deadline: float, *, by_cost: bool) -> PriceRow:
        """The row of the prices at which these minima (requests/s, by model) are dearest."""
        search = self.search
        search.demand = replace(search.demand, minima=minima.copy())
        search.start_from_divisible_prices(range(len(search.options)))
        until = min(deadline, time.perf_counter() + MOST_PRICING_S)
        if by_cost:
            bound_by_prices(search, self.costs, until)
            worth = search.capacity.worth(search.prices, self.costs)
        else:
            search.fleet_share(MINIMA, until)
            worth = search.capacity.worth(search.prices)
        return PriceRow(search, self.shares, search.prices.copy(), worth * (1 + ROUNDING), by_cost)


def build_pricing(request: PlanRequest, highest: Sequence[float]) -> Pricing | None:
    """The pricing of a request whose models need up to `highest` requests/s; None where patterns do not apply."""
    penalty = None if request.objective.memory_violation_penalty is None else 0.0
    free = replace(
        request,
        colocations=(),
        objective=least_cost_objective(Objective(memory_violation_penalty=penalty)),
        current=None,
        models=tuple(
            replace(model, min_throughput_rps=rate or None, cap_at_demand=False)
            for model, rate in zip(request.models, highest, strict=True)
        ),
    )
    problem = build_problem(free)
    separate = build_search(problem, {})
    if separate is None:
        return None
    search, _ = join_equal_pools(separate)
    costs = np.array([group.cost for group in problem.groups])[search.capacity.group_of]
    return Pricing(search, costs, request.sharing == "fractional", problem.complete)

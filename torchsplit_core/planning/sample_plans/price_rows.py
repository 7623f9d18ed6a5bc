"""What levels of throughput cost at prices of slices: bounds that every plan keeps, whatever else it has to keep.

At prices π ≥ 0 of slices a model with T requests/s uses slices worth at least c(T; π): of whole slices the cheapest
pattern that reaches T, of shares T times the cheapest request/s. Together they are worth at most what the fleet is,
and a plan costs at least Σ c − Σ_g GPUs[g] · max(0, worth_g(π) − cost_g), as in `patterns.least_cost`. Co-locations,
the loss of a GPU and limits on changes only rule out plans.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import numpy as np

from torchsplit_core.planning.patterns.feasibility import FeasibilityProblem, PatternSearch
from torchsplit_core.planning.patterns.least_cost import bound_by_prices
from torchsplit_core.planning.patterns.pricing import price_patterns
from torchsplit_core.planning.patterns.solve import MinimaSearch
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.objective import least_cost_objective
from torchsplit_core.planning.sample_plans.sample_levels import Rates
from torchsplit_core.values import Objective, PlanRequest

ROUNDING = 1e-7
"""Relative part by which prices are rounded down, so that rounding rules out no plan."""

FLAT = 8e-3
"""Between two rates whose prices differ by less, as a part of the dearest, prices are not listed: the lower one bounds
those between, as the price of divisible slices does."""

MOST_PRICING_S = 5.0
"""Most seconds of column generation for one row of prices."""

MINIMA = FeasibilityProblem((0.0,))


@dataclass
class PriceRow:
    """Prices of slices. `worth`: of the whole fleet, or if `by_cost` what its GPUs are worth beyond their cost.

    `fleet_part`: of the fleet that parts of patterns need for
    the minima priced; infinite if they need more than there is, NaN if that was not asked or time ran out.
    """

    search: PatternSearch
    shares: bool
    prices: Rates
    worth: float
    by_cost: bool
    fleet_part: float = float("nan")
    known: dict[tuple[int, float], float] = field(default_factory=dict)

    def prices_of(self, model: int, rates: Rates) -> Rates:
        """A lower bound of the price of each of these ascending rates; infinite out of reach."""
        prices: Rates = rates * self._divisible(model)
        count = self.reachable(model, rates)
        prices[count:] = np.inf
        if self.shares or not count:
            return prices
        exact = {at: self._price_of(model, float(rates[at])) for at in (0, count - 1)}
        flat = FLAT * exact[count - 1]
        todo = [(0, count - 1)]
        while todo:
            low, high = todo.pop()
            if high - low < 2 or exact[high] - exact[low] <= flat:
                continue
            middle = (low + high) // 2
            exact[middle] = self._price_of(model, float(rates[middle]))
            todo += [(low, middle), (middle, high)]
        for at, price in exact.items():
            prices[at] = price
        listed: Rates = np.maximum.accumulate(prices)
        return listed

    def reachable(self, model: int, rates: Rates) -> int:
        """How many of these ascending rates the fleet can give the model."""
        if self.shares:
            return len(rates)
        most = self.search.most[model]
        highest = max(
            (
                min(float(stage.rates @ most) for stage in option.stages)
                for option in self.search.options[model].options
            ),
            default=0.0,
        )
        return int(np.searchsorted(rates, highest * (1 + ROUNDING), side="right"))

    def _divisible(self, model: int) -> float:
        """The least price of a request/s of divisible slices."""
        each = float(self.search.options[model].unit_costs(self.prices).min(initial=np.inf))
        return each * (1 - ROUNDING) if np.isfinite(each) else 0.0

    def _price_of(self, model: int, rate: float) -> float:
        """The least price of whole slices for this rate; infinite if the whole fleet does not give it."""
        key = (model, rate)
        if key not in self.known:
            patterns = price_patterns(
                self.search.options[model], self.prices, rate, self.search.most[model], keep=1
            )
            self.known[key] = patterns.least * (1 - ROUNDING)
        return self.known[key]


@dataclass(frozen=True)
class Pricing:
    """Makes rows of prices for one request, of divisible slices if it shares them."""

    minima_search: MinimaSearch
    shares: bool

    @property
    def exact(self) -> bool:
        """Whether all ways to run the models are counted, so that bounds hold."""
        return self.minima_search.problem.complete

    def row_at(self, minima: Rates, deadline: float, *, by_cost: bool) -> PriceRow:
        """The row of the prices at which these minima (requests/s, by model) are dearest."""
        search = self.minima_search.search
        self.minima_search.set_minima(minima)
        search.start_from_divisible_prices(range(len(search.options)))
        until = min(deadline, time.perf_counter() + MOST_PRICING_S)
        part = float("nan")
        if by_cost:
            costs = self.minima_search.costs[search.capacity.group_of]
            bound_by_prices(search, costs, until)
            worth = search.capacity.worth(search.prices, costs)
        else:
            needed = search.fleet_share(MINIMA, until)
            part = float("inf") if needed is None else needed
            worth = search.capacity.worth(search.prices)
        row = PriceRow(search, self.shares, search.prices.copy(), worth * (1 + ROUNDING), by_cost, part)
        if self.shares and not by_cost:
            row.fleet_part = sum(
                float(row.prices_of(model, np.array([rate]))[0]) for model, rate in enumerate(minima.tolist())
            ) / max(worth, 1e-12)
        return row


def build_pricing(request: PlanRequest, entries: Rates) -> Pricing | None:
    """The pricing of a request with these samples (sample, model); None where patterns do not apply."""
    penalty = None if request.objective.memory_violation_penalty is None else 0.0
    free = replace(
        request,
        colocations=(),
        objective=least_cost_objective(Objective(memory_violation_penalty=penalty)),
        current=None,
        models=tuple(
            replace(model, min_throughput_rps=highest or None, cap_at_demand=False)
            for model, highest in zip(request.models, entries.max(axis=0).tolist(), strict=True)
        ),
    )
    minima_search = MinimaSearch.of(build_problem(free))
    return None if minima_search is None else Pricing(minima_search, request.sharing == "fractional")

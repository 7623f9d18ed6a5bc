"""Prices of the program with divisible slices, by the bound that they give."""

import numpy as np
import pytest
from scipy.optimize import linprog

from benchmarks.fleet_instances import FIVE_TYPES, Family, fleet_instance
from tests.support.planning.pattern_search import searching
from torchsplit_core.planning.fractional.relaxation import aggregate_shares
from torchsplit_core.planning.patterns import divisible, leximin_levels
from torchsplit_core.planning.patterns.capacity import FleetCapacity
from torchsplit_core.planning.patterns.feasibility import PatternSearch
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.objective import tier_groups
from torchsplit_core.values import PlanRequest


def bound_of_first_level(request: PlanRequest) -> float:
    """What prices alone say of the first level, before any pattern is known."""
    search = searching(request)
    assert search is not None
    group = tier_groups(request.models)[0]
    search.start_from_divisible_prices(group.models)
    return leximin_levels._linear_bound(search, leximin_levels.LevelResult([group]), 0)


@pytest.mark.parametrize("family", [Family(), Family(types=FIVE_TYPES, restricted=True), Family(limits=True)])
def test_on_mixed_fleets_their_bound_is_that_of_pooled_shares(family):
    request = fleet_instance(12, 40, seed=3, family=family)
    shares = aggregate_shares(build_problem(request), float("inf"))
    assert shares is not None and shares.level == 0
    # Shares have whole layouts on top, which take a little off.
    bound = bound_of_first_level(request)
    assert shares.bound * (1 - 1e-6) <= bound <= shares.bound * 1.02


def test_models_that_do_not_rise_take_what_their_minima_cost():
    request = fleet_instance(4, 6, seed=1, family=Family(minima=1.0))
    search = searching(request)
    assert search is not None
    demand, capacity = search.demand, search.capacity
    prices = divisible.divisible_prices(capacity, search.options, demand.units, demand.minima, [0])
    assert prices is not None
    search.prices = np.maximum(prices, 1e-9)
    costs = search.linear_costs() / demand.units
    level = (capacity.worth(prices) - costs[1:] @ demand.minima[1:]) / (costs[0] * demand.units[0])
    assert level == pytest.approx(divisible_level(capacity, rates_of(search), demand.minima), rel=1e-5)
    assert level > 1


def rates_of(search: PatternSearch) -> np.ndarray:
    """Requests/s of a slice by model and pool, of models with one option of one stage."""
    return np.array([only.options[0].stages[0].rates for only in search.options])


def divisible_level(capacity: FleetCapacity, rates: np.ndarray, minima: np.ndarray) -> float:
    """The highest level of model 0, in its minima, while the others keep theirs: a dense linear program."""
    models, pools = rates.shape
    layouts = len(capacity.columns)
    width = models * pools + layouts + 1
    rows, limits = [], []
    for model in range(models):
        row = np.zeros(width)
        row[model * pools : (model + 1) * pools] = -rates[model]
        row[-1] = minima[0] if model == 0 else 0.0
        rows.append(row)
        limits.append(0.0 if model == 0 else -minima[model])
    for pool in range(pools):
        row = np.zeros(width)
        row[pool : models * pools : pools] = 1.0
        row[models * pools : -1] = -capacity.slices[pool]
        rows.append(row)
        limits.append(0.0)
    for group, count in enumerate(capacity.gpus):
        row = np.zeros(width)
        row[models * pools : -1] = capacity.group_of == group
        rows.append(row)
        limits.append(float(count))
    cost = np.zeros(width)
    cost[-1] = -1.0
    return float(-linprog(cost, np.array(rows), limits).fun)


def test_a_program_that_is_too_large_gives_no_prices(monkeypatch):
    search = searching(fleet_instance(4, 6, seed=1))
    assert search is not None
    before = search.prices
    monkeypatch.setattr(divisible, "MOST_SHARES", 3)
    search.start_from_divisible_prices((0, 1, 2, 3))
    assert search.prices is before

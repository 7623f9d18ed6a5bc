"""Prices of the program with divisible slices, by the bound that they give."""

import numpy as np
import pytest

from benchmarks.fleet_instances import FIVE_TYPES, Family, fleet_instance
from tests.support.planning.pattern_search import searching
from torchsplit_core.planning.fractional import relaxation
from torchsplit_core.planning.fractional.relaxation import aggregate_shares
from torchsplit_core.planning.patterns import divisible, leximin_levels
from torchsplit_core.planning.patterns.share_program import Share, ShareProgram, share_demand
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.objective import tier_groups
from torchsplit_core.solver.highs import run
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
    search, problem = searching(request), build_problem(request)
    assert search is not None
    demand, capacity = search.demand, search.capacity
    prices = divisible.divisible_prices(capacity, search.options, demand.units, demand.minima, [0])
    assert prices is not None
    search.prices = np.maximum(prices, 1e-9)
    costs = search.linear_costs() / demand.units
    level = (capacity.worth(prices) - costs[1:] @ demand.minima[1:]) / (costs[0] * demand.units[0])
    uses = relaxation._best_uses(problem, capacity)
    shares = [Share(*use[:3], problem.choices[use[3]].rate_rps) for use in uses]
    program = ShareProgram(
        share_demand(request.models), range(4), shares, np.zeros(len(capacity.pools)), capacity
    )
    program.set_floors(program.floors, np.array([True, False, False, False]))
    assert run(program.highs) == "optimal"
    assert level == pytest.approx(program.value(program.t), rel=1e-5) and level > 1


def test_a_program_that_is_too_large_gives_no_prices(monkeypatch):
    search = searching(fleet_instance(4, 6, seed=1))
    assert search is not None
    before = search.prices
    monkeypatch.setattr(divisible, "MOST_SHARES", 3)
    search.start_from_divisible_prices((0, 1, 2, 3))
    assert search.prices is before

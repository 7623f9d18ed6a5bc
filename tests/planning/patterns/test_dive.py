"""The few patterns that linear programs choose, among which the first plans are sought."""

import time

import numpy as np
import pytest

from benchmarks.fleet_instances import FIVE_TYPES, Family, fleet_instance
from tests.support.planning.pattern_search import searching
from torchsplit_core.planning.patterns.feasibility import FeasibilityProblem, PatternPlan
from torchsplit_core.planning.patterns.master import dive

pytestmark = pytest.mark.slow

SECONDS = 60.0


@pytest.mark.parametrize("part", [0.9, 0.95])
def test_the_patterns_of_a_dive_have_a_plan_near_the_bound(part: float) -> None:
    search = searching(fleet_instance(16, 48, seed=2, family=Family(types=FIVE_TYPES)))
    assert search is not None
    search.start_from_divisible_prices(range(16))
    bound = search.capacity.worth(search.prices) / float(search.linear_costs().sum())
    problem = FeasibilityProblem((part * bound,))
    assert search.fleet_share(problem, time.perf_counter() + SECONDS) is not None
    columns = search.cheapest_columns(problem, np.zeros(0))
    few = next(search.promising_columns(problem, columns))
    assert len(few) < len(columns) / 2
    plan = search.solve_columns(problem, few, SECONDS)
    assert isinstance(plan, PatternPlan)
    for model, pattern in enumerate(plan.patterns):
        assert pattern.rate >= search.demand.required_rps(model, part * bound) * (1 - 1e-6)


def test_a_dive_has_patterns_for_every_model_and_none_where_nothing_fits() -> None:
    search = searching(fleet_instance(8, 16, seed=1, family=Family()))
    assert search is not None
    problem = FeasibilityProblem((1e-3,))
    search.fleet_share(problem, time.perf_counter() + SECONDS)
    columns = [column for column, _ in search.cheapest_columns(problem, np.zeros(0))]
    no_levels = np.zeros((0, 8), dtype=np.bool_)
    used = dive(search.capacity, no_levels, columns, ())
    assert {columns[number][0] for number in used} == set(range(8))
    assert dive(search.capacity, no_levels, columns[:0], ()) == []

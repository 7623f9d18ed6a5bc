"""Plans whose whole amounts lie beside the linear program's."""

import time

import numpy as np
import pytest

from benchmarks.fleet_instances import FIVE_TYPES, Family, fleet_instance
from tests.support.planning.pattern_search import searching
from tests.support.seeds import repeated
from torchsplit_core.planning.patterns.feasibility import FeasibilityProblem, PatternSearch
from torchsplit_core.planning.patterns.rounding import round_relaxation, seek_plan

SECONDS = 60.0


def prepared(models: int, gpus: int, seed: int, **family: object) -> tuple[PatternSearch, float]:
    """A search with the prices of divisible slices, and the first level that these reach."""
    search = searching(fleet_instance(models, gpus, seed=seed, family=Family(types=FIVE_TYPES, **family)))
    assert search is not None
    search.start_from_divisible_prices(range(models))
    return search, search.capacity.worth(search.prices) / float(search.linear_costs().sum())


def holds(search: PatternSearch, plan, least: list[float]) -> None:
    """The plan fits the fleet and gives every model so many requests/s, reckoned from its slices alone."""
    used = np.zeros(len(search.capacity.pools), dtype=np.int64)
    for model, pattern in enumerate(plan.patterns):
        if pattern.option >= 0:
            stages = search.options[model].options[pattern.option].stages
            rates = [
                float(offer.rates @ counts) for offer, counts in zip(stages, pattern.stages, strict=True)
            ]
            assert min(rates) >= least[model] * (1 - 1e-6)
            assert (pattern.stages <= search.most[model]).all()
            used += pattern.stages.sum(axis=0)
        else:
            assert least[model] == 0
    assert (used <= search.capacity.slices @ plan.layouts).all()
    for group, count in enumerate(search.capacity.gpus):
        assert plan.layouts[search.capacity.group_of == group].sum() <= count


@repeated("seed", range(6), kept=2)
def test_a_plan_near_what_parts_of_patterns_reach(seed):
    search, bound = prepared(24, 96, seed)
    problem = FeasibilityProblem((0.9 * bound,))
    assert search.fleet_share(problem, time.perf_counter() + SECONDS) is not None
    plan = round_relaxation(search, problem, SECONDS)
    assert plan is not None
    holds(search, plan, [search.demand.required_rps(model, 0.9 * bound) for model in range(24)])


@repeated("seed", range(4))
def test_no_more_models_below_a_level_than_may_be(seed):
    search, bound = prepared(16, 64, seed)
    levels = (0.6 * bound, 1.2 * bound)
    problem = FeasibilityProblem(levels, (11,))
    decision = seek_plan(search, problem, time.perf_counter() + SECONDS)
    assert decision.verdict == "found"
    assert decision.plan is not None
    holds(search, decision.plan, [search.demand.required_rps(model, levels[0]) for model in range(16)])
    above = [
        pattern.rate >= search.demand.required_rps(model, levels[1]) * (1 - 1e-6)
        for model, pattern in enumerate(decision.plan.patterns)
    ]
    assert sum(above) >= 5


def test_the_cheapest_beside_the_program_costs_no_more_than_allowed():
    search, _ = prepared(16, 64, 1, kind="min_gpus", minima=3.0)
    costs = np.linspace(1.0, 2.0, len(search.capacity.gpus))[search.capacity.group_of]
    problem = FeasibilityProblem((0.0,))
    assert search.fleet_share(problem, time.perf_counter() + SECONDS) is not None
    plan = round_relaxation(search, problem, SECONDS, costs)
    assert plan is not None
    holds(search, plan, search.demand.minima.tolist())
    cost = float(costs @ plan.layouts)
    cheaper = round_relaxation(search, problem, SECONDS, costs, 0.5 * cost)
    assert cheaper is None


@pytest.mark.parametrize("part", [1.5, 50.0])
def test_what_no_fleet_reaches_has_no_plan(part):
    search, bound = prepared(8, 16, 3)
    assert seek_plan(search, FeasibilityProblem((part * bound,)), time.perf_counter() + SECONDS).plan is None

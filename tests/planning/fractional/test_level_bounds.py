"""Bounds by prices of shares: against every plan, against every pattern, and their arithmetic."""

import itertools
import math
import random
import time

import numpy as np
import pytest

from benchmarks.fleet_instances import FIVE_TYPES, Family, fleet_instance
from tests.support.planning.shared_oracle import best_shared
from tests.support.planning.shared_requests import crowded, small
from tests.support.seeds import repeated
from torchsplit_core.planning.fractional.model_patterns.level_bounds import bound_boxes, bound_level
from torchsplit_core.planning.fractional.model_patterns.level_program import ModelPatterns
from torchsplit_core.planning.fractional.model_patterns.pattern_pricing import PatternPricing
from torchsplit_core.planning.fractional.model_patterns.patterns import (
    CLASSES,
    RESOURCES,
    list_options,
    pattern_takes,
    share_steps,
)
from torchsplit_core.planning.fractional.relaxation import aggregate_shares
from torchsplit_core.planning.fractional.tenancy_counts import dual_feasible
from torchsplit_core.planning.patterns.capacity import fleet_capacity
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.solver.row_program import RowProgram
from torchsplit_core.values import PlanRequest


def _refuted_level(request: PlanRequest, best: float) -> float:
    return bound_level(ModelPatterns(build_problem(request)), 0.5 * best, 2.0 * best, math.inf)


def _refuted_in_boxes(request: PlanRequest, best: float) -> float:
    patterns = ModelPatterns(build_problem(request))
    together = bound_level(patterns, 0.9 * best, 2.0 * best, math.inf)
    in_boxes = bound_boxes(patterns, 0.9 * best, together, math.inf)
    assert in_boxes <= together
    return in_boxes


@pytest.mark.slow
@repeated("seed", range(120), kept=6)
def test_no_plan_is_above_the_bound(seed):
    request = crowded(seed)
    best = best_shared(request)
    if best is not None and best[0] > 0:
        assert best[0] * (1 - 1e-9) <= _refuted_level(request, best[0])


@pytest.mark.slow
@repeated("seed", range(60), kept=10)
def test_no_plan_of_several_stages_is_above_the_bound(seed):
    request = small(seed, "max_min")
    best = best_shared(request)
    if best is not None and best[0] > 0:
        assert best[0] * (1 - 1e-9) <= _refuted_level(request, best[0])


@pytest.mark.slow
@repeated("seed", range(60), kept=6)
def test_no_plan_is_above_the_bound_in_boxes(seed):
    for request in (crowded(seed), small(seed, "max_min")):
        best = best_shared(request)
        if best is not None and best[0] > 0:
            assert best[0] * (1 - 1e-9) <= _refuted_in_boxes(request, best[0])


@repeated("seeds", [range(3), range(3, 6)], kept=0)
def test_boxes_bound_closer_where_models_mix_their_latencies(seeds):
    family = Family(kind="max_min", sharing="fractional", limits=True)
    closer = 0
    for seed in seeds:
        patterns = ModelPatterns(build_problem(fleet_instance(3, 1, seed=seed, family=family)))
        pooled = aggregate_shares(patterns.problem, math.inf)
        assert pooled is not None
        together = bound_level(patterns, 0.5 * pooled.bound, pooled.bound, math.inf)
        in_boxes = bound_boxes(patterns, 0.95 * together, together, math.inf)
        assert in_boxes <= together
        closer += in_boxes < 0.99 * together
    assert closer >= 2


def _cost(stage, prices, use, share):
    return float((pattern_takes(stage, use, share) * prices[stage.pools[use]]).sum())


@pytest.mark.parametrize("seed", range(6))
def test_no_pattern_is_cheaper_than_the_cheapest(seed):
    rng = random.Random(seed)
    problem = build_problem(crowded(seed))
    capacity = fleet_capacity(problem)
    by_model = list_options(problem, capacity)
    for model, options in by_model.items():
        scale = np.array([rng.choice((0.0, 1.0)) for _ in range(RESOURCES)])
        prices = scale * [[rng.random() for _ in range(RESOURCES)] for _ in capacity.pools]
        prices[:, 0] += 0.05
        fastest = max(float(option.stages[0].rates.max()) for option in options)
        rate = fastest * rng.choice((0.3, 0.5, 0.8, 1.3))
        box = {model: (0, len(options))}
        cheapest = PatternPricing(problem, by_model).cheapest(box, prices, {model: rate})[model]
        assert cheapest.cost == pytest.approx(cheapest.bound)
        chosen = options[cheapest.option].stages[0]
        gain = sum(chosen.rates[use] * share for _, use, share in cheapest.tenancies)
        total = sum(_cost(chosen, prices, use, share) for _, use, share in cheapest.tenancies)
        assert gain >= rate * (1 - 1e-9)
        assert total == pytest.approx(cheapest.cost)
        assert all(chosen.least - 1e-9 <= share <= 1 for _, _, share in cheapest.tenancies)
        for option in options:
            stage = option.stages[0]
            shares = [stage.least + (1 - stage.least) * step / 12 for step in range(13)]
            every = [
                (stage.rates[use] * share, _cost(stage, prices, use, share))
                for use in range(len(stage.choices))
                for share in ([1.0] if stage.alone[use] else shares)
            ]
            for count in (1, 2):
                for tenancies in itertools.combinations_with_replacement(every, count):
                    if sum(given for given, _ in tenancies) >= rate:
                        assert sum(cost for _, cost in tenancies) >= cheapest.bound * (1 - 1e-9)


def _least_cost(stage, prices, rate):
    """The same as a program in whole numbers: how many tenancies each choice has with shares in each interval in which
    their cost is linear, and what these have together."""
    program = RowProgram()
    gains: list[tuple[int, float]] = []
    ends = sorted({0.0, 1.0, *(j / (k + 1) for k in range(1, CLASSES + 1) for j in range(1, k + 1))})
    for use, rate_rps in enumerate(stage.rates.tolist()):
        for low, high in [(1.0, 1.0)] if stage.alone[use] else itertools.pairwise(ends):
            low = max(low, stage.least)
            if low <= high:
                at_end = _cost(stage, prices, use, high)
                slope = 0.0 if stage.alone[use] else float(prices[stage.pools[use], 0])
                number = program.add_columns([at_end - slope * high], [100.0])
                share = program.add_columns([slope], [100.0])
                program.continuous.add(share)
                program.add_row(0.0, 1e9, [share, number], [1.0, -low])
                program.add_row(-1e9, 0.0, [share, number], [1.0, -high])
                gains.append((share, rate_rps / rate))
    program.add_row(1.0, 1e9, [column for column, _ in gains], [gain for _, gain in gains])
    solution = program.solve(60.0, relative_gap=0.0)
    assert solution.status == "optimal"
    return float(np.dot(program.cost, solution.values))


@pytest.mark.slow
@repeated("seed", range(24), kept=4)
def test_patterns_of_several_tenancies_are_as_cheap_as_a_program_finds(seed):
    """Prices of a few resources, as linear programs have them."""
    rng = random.Random(seed)
    family = Family(sharing="fractional", limits=bool(seed % 2), types=FIVE_TYPES)
    problem = build_problem(fleet_instance(4, 2, seed=seed, family=family))
    by_model = list_options(problem, fleet_capacity(problem))
    pools = len(fleet_capacity(problem).pools)
    prices = np.array([[rng.random() * (rng.random() < 0.3) for _ in range(RESOURCES)] for _ in range(pools)])
    prices[:, 0] += 0.05
    box, rates = {}, {}
    for model, options in by_model.items():
        at = rng.randrange(len(options))
        box[model] = at, at + 1
        rates[model] = float(options[at].stages[0].rates.max()) * rng.uniform(0.2, 6.0)
    for model, pattern in PatternPricing(problem, by_model).cheapest(box, prices, rates).items():
        assert pattern.cost == pytest.approx(pattern.bound)
        stage = by_model[model][box[model][0]].stages[0]
        assert pattern.cost == pytest.approx(_least_cost(stage, prices, rates[model]), rel=1e-5)


def test_a_rate_of_thousands_of_slices_has_a_pattern_and_a_bound():
    problem = build_problem(crowded(1))
    capacity = fleet_capacity(problem)
    by_model = list_options(problem, capacity)
    options = by_model[0]
    fastest = max(float(option.stages[0].rates.max()) for option in options)
    prices = np.zeros((len(capacity.pools), RESOURCES))
    prices[:, 0] = 1.0
    rates = {0: 3000.5 * fastest}
    cheapest = PatternPricing(problem, by_model).cheapest({0: (0, len(options))}, prices, rates)[0]
    assert 3000 <= cheapest.bound <= cheapest.cost <= 3001
    assert len(cheapest.tenancies) >= 3000


def test_a_share_takes_no_more_than_its_dual_feasible_function():
    shares = [step / 120 for step in range(1, 121)] + [random.Random(3).random() for _ in range(200)]
    for share, steps in zip(shares, share_steps(np.array(shares)).tolist(), strict=True):
        for k, step in enumerate(steps, start=1):
            just_below = dual_feasible(k, share - 1e-7)
            assert step <= dual_feasible(k, share) + 1e-12
            assert share == 1 or step == pytest.approx(just_below, abs=1e-6)


def test_limits_are_bounded_closer_than_by_pooled_shares():
    family = Family(kind="max_min", sharing="fractional", limits=True)
    problem = build_problem(fleet_instance(3, 1, seed=3, family=family))
    pooled = aggregate_shares(problem, math.inf)
    assert pooled is not None
    patterns = ModelPatterns(problem)
    assert bound_level(patterns, 0.5 * pooled.bound, pooled.bound, math.inf) < 0.98 * pooled.bound


def test_a_search_without_time_refutes_nothing():
    problem = build_problem(fleet_instance(4, 2, seed=3, family=Family(sharing="fractional", limits=True)))
    patterns = ModelPatterns(problem)
    assert bound_level(patterns, 0.1, 0.6, time.perf_counter() - 1) == 0.6
    assert bound_boxes(patterns, 0.1, 0.6, time.perf_counter() - 1) == 0.6

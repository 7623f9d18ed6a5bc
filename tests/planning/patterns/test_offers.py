"""Patterns of models with several options of one or two stages, against every combination of covers."""

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.planning.covers import EDGE, minimal_covers
from tests.support.seeds import in_blocks
from torchsplit_core.planning.patterns.options import ModelOption, ModelOptions, StageOption
from torchsplit_core.planning.patterns.pricing import PricedPatterns, price_patterns

Key = tuple[int, bytes]


def runs(seed: int) -> tuple[ModelOptions, NDArray[np.float64], float, NDArray[np.int64]]:
    """Up to three options over three pools, prices, a demand and few slices of each pool."""
    rng = np.random.default_rng(seed)

    def stage():
        rates = rng.choice([0.0, 1.0, 3.0, 4.5, 10.0], 3)
        rates[rng.integers(3)] = 5.0
        return StageOption(rates, (-1,) * 3)

    found = [
        ModelOption(tuple(stage() for _ in range(rng.choice([1, 2])))) for _ in range(rng.integers(1, 4))
    ]
    return (
        ModelOptions(found), rng.uniform(0.3, 3.0, 3), float(rng.choice([2.0, 8.0, 11.0])),
        rng.integers(0, 4, 3),
    )  # fmt: skip


def every_pattern(
    options: ModelOptions, prices: NDArray[np.float64], demand: float, most: NDArray[np.int64]
) -> dict[Key, float]:
    """Costs of all patterns: a minimal cover of the demand in every stage of one option."""
    found = {}
    for number, option in enumerate(options.options):
        parts = [minimal_covers(stage.rates, demand, most) for stage in option.stages]
        for chosen in product(*parts):
            stages = np.array(chosen)
            found[number, stages.tobytes()] = float(stages.sum(axis=0) @ prices)
    return found


def keys(found: PricedPatterns) -> set[Key]:
    return {(pattern.option, pattern.stages.tobytes()) for pattern in found.patterns}


def check(
    options: ModelOptions, prices: NDArray[np.float64], every: dict[Key, float], found: PricedPatterns
) -> None:
    """What holds of any answer: real patterns with their costs and rates, rising, and a true bound."""
    assert len(keys(found)) == len(found.patterns) == len(found.costs)
    assert (np.diff(found.costs) >= -1e-9).all()
    for cost, pattern in zip(found.costs, found.patterns, strict=True):
        assert cost == pytest.approx(every[pattern.option, pattern.stages.tobytes()], rel=1e-7)
        assert (pattern.usage == pattern.stages.sum(axis=0)).all()
        stages = zip(options.options[pattern.option].stages, pattern.stages, strict=True)
        assert pattern.rate == min(float(stage.rates @ counts) for stage, counts in stages)
    least = min(every.values(), default=float("inf"))
    assert found.least <= least * (1 + EDGE)


@in_blocks("seed", range(80))
def test_all_patterns_within_a_cost(seed):
    options, prices, demand, most = runs(seed)
    every = every_pattern(options, prices, demand, most)
    least = min(every.values(), default=1.0)
    for within in (0.9 * least, 1.1 * least, 2.0 * least):
        inside = {key for key, cost in every.items() if cost <= within * (1 - EDGE)}
        full = price_patterns(options, prices, demand, most, max_cost=within, keep=10_000)
        check(options, prices, every, full)
        assert inside <= keys(full) and full.complete_below >= within * (1 - EDGE)
        for keep in (1, 3):
            few = price_patterns(options, prices, demand, most, max_cost=within, keep=keep)
            check(options, prices, every, few)
            assert len(few.patterns) <= keep
            assert {key for key in inside if every[key] <= few.complete_below * (1 - EDGE)} <= keys(few)
    for keep in (1, 4):
        priced = price_patterns(options, prices, demand, most, keep=keep)
        check(options, prices, every, priced)
        if every:
            assert priced.costs[0] == pytest.approx(min(every.values()), rel=EDGE)


def test_a_demand_of_nothing_is_met_by_nothing():
    options, prices, _, most = runs(0)
    priced = price_patterns(options, prices, 0.0, most, keep=3)
    assert priced.least == 0.0 and priced.patterns[0].rate == 0.0 and not priced.patterns[0].usage.any()


def covers_after_loss(
    rates: NDArray[np.float64], demand: float, least: float, most: NDArray[np.int64]
) -> dict[bytes, bool]:
    """All counts that meet the demand, and the least without their largest slice; True: they need every slice."""

    def holds(counts: NDArray[np.int64]) -> bool:
        total, used = float(rates @ counts), rates[counts > 0]
        return total >= demand and total - float(used.max(initial=0.0)) >= least

    grid = [np.array(counts, dtype=np.int64) for counts in product(*(range(count + 1) for count in most))]
    covers = [counts for counts in grid if holds(counts)]
    return {
        counts.tobytes(): not any(
            counts[pool] and holds(counts - np.eye(3, dtype=np.int64)[pool]) for pool in range(3)
        )
        for counts in covers
    }


@in_blocks("seed", range(60))
def test_patterns_keep_the_least_without_their_largest_slice(seed):
    rng = np.random.default_rng(seed)
    rates = np.array([0.0, *rng.choice([1.0, 3.0, 4.5, 10.0], 2)])
    rates[0] = rng.choice([0.0, 2.0, 6.0])
    prices, most = rng.uniform(0.3, 3.0, 3), rng.integers(1, 4, 3)
    demand, least = float(rng.choice([2.0, 8.0, 11.0])), float(rng.choice([1.0, 4.0, 8.0]))
    options = ModelOptions([ModelOption((StageOption(rates, (-1,) * 3, least),))])
    usable = np.where(rates > 0, most, 0)
    every = covers_after_loss(rates, demand, least, usable)
    costs = {key: float(prices @ np.frombuffer(key, dtype=np.int64)) for key in every}
    cheapest = min(costs.values(), default=float("inf"))
    priced = price_patterns(options, prices, demand, most, keep=4)
    assert bool(priced.patterns) == bool(every)
    assert priced.least == pytest.approx(cheapest, rel=EDGE)
    within = 2.0 * min(cheapest, 10.0)
    full = price_patterns(options, prices, demand, most, max_cost=within, keep=10_000)
    patterns = {pattern.stages[0].tobytes() for pattern in full.patterns}
    assert patterns <= every.keys() and len(patterns) == len(full.patterns)
    assert {key for key, tight in every.items() if tight and costs[key] <= within * (1 - EDGE)} <= patterns


@pytest.mark.parametrize("seed", range(20))
def test_unit_costs_are_those_of_divisible_slices(seed):
    options, prices, _, _ = runs(seed)
    expected = [
        sum(
            min(price / rate for price, rate in zip(prices, stage.rates, strict=True) if rate > 0)
            for stage in option.stages
        )
        for option in options.options
    ]
    assert options.unit_costs(prices) == pytest.approx(expected)

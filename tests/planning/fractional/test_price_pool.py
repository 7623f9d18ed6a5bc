"""Known prices: what they close is what a look at every combination of options and every fleet closes."""

from itertools import product

import numpy as np

from benchmarks.fleet_instances import Family, fleet_instance
from tests.support.seeds import repeated
from torchsplit_core.planning.fractional.model_patterns.level_bounds import positive_rates
from torchsplit_core.planning.fractional.model_patterns.level_program import ModelPatterns
from torchsplit_core.planning.fractional.model_patterns.price_pool import PricePool
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.tolerance import TOLERANCE

FAMILY = Family(kind="max_min", sharing="fractional", limits=True)


def _drawn(seed):
    """Patterns of three models on a GPU, rates, drawn prices, and fleets by what slices they have."""
    draw = np.random.default_rng(seed)
    patterns = ModelPatterns(build_problem(fleet_instance(3, 1, seed=seed, family=FAMILY)))
    rates = positive_rates(patterns.problem, float(draw.uniform(0.3, 3.0)))
    first = patterns.first_prices()
    prices = [first * draw.uniform(0.2, 2.0, first.shape) for _ in range(4)]
    return patterns, rates, prices, patterns.capacity.slices.T


def _costs(patterns, rates, prices):
    """What each option costs, priced alone."""
    return {
        (model, number): patterns.cheapest({model: (number, number + 1)}, prices, {model: rate})[model].bound
        for model, rate in rates.items()
        for number in range(len(patterns.options[model]))
    }


@repeated("seed", range(12), kept=2)
def test_every_option_of_a_box_costs_what_it_costs_alone_and_others_are_not_overrated(seed):
    patterns, rates, prices, _ = _drawn(seed)
    draw = np.random.default_rng(seed)
    box = {}
    for model in rates:
        first, last = sorted(draw.integers(0, len(patterns.options[model]), 2).tolist())
        box[model] = first, last + 1
    for vector in prices:
        priced, alone = patterns.by_option(box, vector, rates), _costs(patterns, rates, vector)
        for bound, ((model, number), cost) in zip(priced.bounds.tolist(), alone.items(), strict=True):
            if box[model][0] <= number < box[model][1]:
                assert abs(bound - cost) <= 1e-9 * max(1.0, cost)
            else:
                assert bound <= cost * (1 + 1e-9)


@repeated("seed", range(12), kept=2)
def test_what_is_taken_out_of_a_box_is_refuted_and_what_prices_leave_stays(seed):
    patterns, rates, prices, slices = _drawn(seed)
    pool = PricePool(patterns, rates, slices)
    for vector in prices:
        pool.add(patterns.whole_box, vector)
    every = [patterns.first_prices(), *prices]
    costs, worth = (
        [_costs(patterns, rates, vector) for vector in every],
        [slices @ v.sum(axis=1) for v in every],
    )

    def is_open(options, fleet):
        """No prices say that these options cost more than the fleet is worth."""
        return all(
            sum(by_option[item] for item in zip(rates, options, strict=True)) <= at[fleet] * (1 + TOLERANCE)
            for by_option, at in zip(costs, worth, strict=True)
        )

    whole = patterns.whole_box
    box, fleets = pool.shrink(whole, np.arange(len(slices)))
    left = fleets.tolist()
    for options in product(*(range(*whole[model]) for model in rates)):
        inside = all(
            box[model][0] <= number < box[model][1] for model, number in zip(rates, options, strict=True)
        )
        for fleet in range(len(slices)):
            if not inside or fleet not in left:
                assert not is_open(options, fleet)
    for fleet in left:
        # Of those left, no prices refute the box as a whole.
        for by_option, at in zip(costs, worth, strict=True):
            least = sum(min(by_option[m, n] for n in range(*box[m])) for m in rates)
            assert least <= at[fleet] * (1 + TOLERANCE)
    for fleet in left[:3]:
        division = pool.divide(box, fleet)
        if division is None:
            continue
        first, end = box[division.model]
        parts = [{**box, division.model: part} for part in ((first, division.option), (division.option, end))]
        refuted = [not len(pool.shrink(part, np.array([fleet]))[1]) for part in parts]
        assert division.refutes == any(refuted)


@repeated("seed", range(12), kept=2)
def test_costs_hold_at_higher_rates_and_are_forgotten_at_lower_ones(seed):
    patterns, rates, prices, slices = _drawn(seed)
    pool = PricePool(patterns, rates, slices)
    pool.add(patterns.whole_box, prices[0])
    pool.adapt({model: 1.5 * rate for model, rate in rates.items()})
    assert len(pool.costs) == 2
    most = float((slices @ prices[0].sum(axis=1)).max())
    above = list(_costs(patterns, pool.rates, prices[0]).values())
    assert (pool.costs[1] * most <= np.array(above) * (1 + 1e-9)).all()
    pool.adapt(rates)
    assert len(pool.costs) == 1

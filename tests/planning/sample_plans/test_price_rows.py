"""Rows of prices bound every plan, whatever minima they were priced at."""

import time
from dataclasses import replace

import numpy as np
import pytest

from tests.support.planning.requests import random_request
from tests.support.planning.sampled_requests import sampled
from torchsplit_core.planning import plan
from torchsplit_core.planning.sample_plans.price_rows import build_pricing
from torchsplit_core.planning.sample_plans.questions import PatternQuestions, asks_patterns, request_of_minima
from torchsplit_core.values import Objective

LATE = time.perf_counter() + 1e6


@pytest.mark.parametrize("sharing", ["exclusive", "fractional"])
def test_no_plan_costs_less_or_fits_where_prices_say_it_does_not(sharing):
    compared = 0
    for seed in range(12):
        request = random_request(seed, "min_gpus", sharing)
        request = replace(request, colocations=(), objective=Objective("min_gpus"), link_gb_per_s=None)
        outcome = plan(request, reasons=False)
        if outcome.objective.value is None:
            continue
        rates = np.array([model.throughput_rps for model in outcome.models])
        if not rates.any():
            continue
        pricing = build_pricing(request, np.stack([rates, 0.4 * rates]))
        assert pricing is not None
        for minima in (rates, 0.4 * rates, np.minimum(rates, 7.0)):
            for by_cost in (True, False):
                row = pricing.row_at(minima, LATE, by_cost=by_cost)
                prices = sum(
                    float(row.prices_of(model, np.array([0.0, rate]))[1]) for model, rate in enumerate(rates)
                )
                cost = outcome.objective.value if by_cost else 0.0
                assert prices - row.worth <= cost * (1 + 1e-6) + 1e-6 * max(1.0, row.worth), (seed, by_cost)
                compared += 1
    assert compared >= 18


def test_prices_rise_with_the_rate_and_end_where_the_fleet_does():
    request = sampled(1, "attainment")
    request = replace(request, colocations=(), models=request.models[:1])
    most = 100 * max(point.throughput_rps for point in request.models[0].points)
    rates = np.linspace(0.0, most, 200)
    pricing = build_pricing(request, rates[:, None])
    assert pricing is not None
    row = pricing.row_at(rates[[3]], LATE, by_cost=False)
    prices = row.prices_of(0, rates)
    count = row.reachable(0, rates)
    assert 0 < count < 200 and prices[0] == 0.0
    assert np.isinf(prices[count:]).all() and np.isfinite(prices[:count]).all()
    assert (np.diff(prices[:count]) >= 0).all()


def test_patterns_answer_as_the_planner_does():
    compared = 0
    for seed in range(10):
        request = sampled(seed, "attainment")
        if not asks_patterns(request):
            continue
        entries = np.array([model.demand_samples for model in request.models]).T
        pricing = build_pricing(request, entries)
        assert pricing is not None
        ask = PatternQuestions(request, pricing.minima_search)
        for minima in entries[:3]:
            planned = plan(request_of_minima(request, minima, 20.0), reasons=False)
            cheapest, some = ask(minima, LATE, True), ask(minima, LATE, False)
            assert (planned.status == "infeasible") == np.isinf(cheapest.bound) == np.isinf(some.bound), seed
            if cheapest.cost is None or cheapest.outcome is None or cheapest.rates is None:
                continue
            compared += 1
            assert cheapest.cost == pytest.approx(planned.objective.value) == pytest.approx(cheapest.bound)
            made = cheapest.outcome()
            assert [model.throughput_rps for model in made.models] == pytest.approx(cheapest.rates.tolist())
            assert (cheapest.rates >= minima * (1 - 1e-6)).all()
    assert compared >= 5

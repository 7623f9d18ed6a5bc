"""Covers of a demand by whole slices against every choice of counts."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.planning.covers import EDGE, minimal_covers
from tests.support.seeds import in_blocks
from torchsplit_core.planning.patterns.covers import knapsack_cover
from torchsplit_core.planning.patterns.covers.knapsack_cover import CoverSet, enumerate_minimal_covers

Shop = tuple[NDArray[np.float64], NDArray[np.float64], float, NDArray[np.int64]]


def shop(seed: int, most: int = 5) -> Shop:
    """Rates, prices, demand and slices: some useless, some scarce, some equally good, mostly enough."""
    rng = np.random.default_rng(seed)
    width = int(rng.integers(2, 5))
    rates = rng.choice([0.0, 1.0, 2.5, 4.0, 7.0, 10.0, 33.3], width)
    rates[rng.integers(width)] = 10.0
    prices = rng.choice([0.5, 1.0, 2.0, 4.0], width) * rng.choice([1.0, rng.uniform(0.5, 1.5)])
    if rng.random() < 0.3:
        prices = np.where(rates > 0, rates * 0.2, 1.0)
    scarce = rng.integers(0, most + 1, width)
    whole = float(rates @ scarce)
    return rates, prices, max(0.5, whole * float(rng.choice([0.1, 0.4, 0.7, 1.0, 1.01]))), scarce


def keys(counts: NDArray[np.int64]) -> set[tuple[int, ...]]:
    return {tuple(int(number) for number in row) for row in counts}


def check(given: Shop, found: CoverSet, every: NDArray[np.int64]) -> None:
    """What holds of any answer: minimal covers, right costs, rising, a true bound."""
    _, prices, _, most = given
    assert keys(found.counts) <= keys(every)
    assert len(keys(found.counts)) == len(found.counts)
    assert (found.counts <= most).all()
    assert found.costs == pytest.approx(found.counts @ prices, rel=1e-7)
    assert (np.diff(found.costs) >= -1e-9).all()
    if len(every):
        assert found.least <= float((every @ prices).min()) * (1 + EDGE)
    else:
        assert found.least == float("inf")


@in_blocks("seed", range(100))
def test_every_minimal_cover_within_the_waste(seed):
    given = rates, prices, demand, most = shop(seed)
    every = minimal_covers(rates, demand, most)
    useful = (rates > 0) & (most > 0)
    linear = float((prices[useful] / rates[useful]).min(initial=np.inf)) * demand
    for part in (0.0, 0.1, 0.5, 100.0):
        waste = part * linear if len(every) else 1.0
        covers = enumerate_minimal_covers(rates, prices, demand, most, waste)
        check(given, covers, every)
        costs = every @ prices
        inside = every[costs <= (linear + waste) * (1 - EDGE)]
        assert keys(inside) <= keys(covers.counts), part
        assert (covers.costs <= (linear + waste) * (1 + EDGE)).all()
        assert covers.complete_below >= (linear + waste) * (1 - EDGE) or not len(every)


@in_blocks("seed", range(100))
def test_the_cheapest_cover(seed):
    given = rates, prices, demand, most = shop(seed, 8)
    every = minimal_covers(rates, demand, most)
    covers = enumerate_minimal_covers(rates, prices, demand, most, cheapest_only=True)
    check(given, covers, every)
    if len(every):
        assert float(covers.costs[0]) == pytest.approx(float((every @ prices).min()), rel=EDGE)


@in_blocks("seed", range(40))
@pytest.mark.parametrize("cheapest", [False, True])
def test_what_is_cut_short_says_so(seed, cheapest, monkeypatch):
    """With room for few partial covers, and for hardly any halving, the bound stays true."""
    monkeypatch.setattr(knapsack_cover, "MOST_PARTIAL", 12)
    monkeypatch.setattr(knapsack_cover, "MOST_FOR_CHEAPEST", 2)
    monkeypatch.setattr(knapsack_cover, "MOST_HALVINGS", seed % 4)
    given = rates, prices, demand, most = shop(seed, 6)
    every = minimal_covers(rates, demand, most)
    for waste in (0.5, 2.0, 20.0, float("inf")):
        covers = enumerate_minimal_covers(rates, prices, demand, most, waste, cheapest_only=cheapest)
        check(given, covers, every)
        if not cheapest:
            assert keys(every[every @ prices <= covers.complete_below * (1 - EDGE)]) <= keys(covers.counts)


def test_nothing_is_asked_or_nothing_can_be_had():
    rates, prices, most = np.array([2.0, 0.0]), np.ones(2), np.array([3, 9])
    nothing = enumerate_minimal_covers(rates, prices, 0.0, most)
    assert (nothing.least, nothing.counts.tolist()) == (0.0, [[0, 0]])
    assert enumerate_minimal_covers(rates, prices, 6.0, most).counts.tolist() == [[3, 0]]
    # 3 · 0.7 is a little less than 2.1 in binary; the user means it to be enough.
    assert enumerate_minimal_covers(0.35 * rates, prices, 2.1, most).counts.tolist() == [[3, 0]]
    assert enumerate_minimal_covers(rates, prices, 6.1, most).least == float("inf")
    assert enumerate_minimal_covers(np.zeros(2), prices, 1.0, most).least == float("inf")


@in_blocks("seed", range(20))
def test_many_equally_good_slices_have_a_cheap_cover_close_to_its_bound(seed, monkeypatch):
    """Twenty profiles within 2 % per request/s: by residues, where enumeration has no end."""
    monkeypatch.setattr(knapsack_cover, "MOST_FOR_CHEAPEST", 2)
    rng = np.random.default_rng(seed)
    rates, most = rng.uniform(1.0, 20.0, 20), np.full(20, 60)
    prices = rates * rng.uniform(1.0, 1.02, 20)
    # Beyond what the best profile has, others complete the cover.
    demand = float(rng.uniform(500.0, 6000.0))
    covers = enumerate_minimal_covers(rates, prices, demand, most, cheapest_only=True)
    assert len(covers.costs)
    assert (covers.counts @ rates >= demand * (1 - EDGE)).all()
    assert (covers.counts <= most).all()
    bound = covers.complete_below
    assert bound * (1 - EDGE) <= float(covers.costs[0]) <= bound * (1 + 3e-4)

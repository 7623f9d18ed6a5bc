"""Divisions of GPUs and their cheapest covers, against every one."""

import random
from itertools import combinations_with_replacement, product

import numpy as np
import pytest

from tests.support.planning.requests import on_a30, simple
from torchsplit_core.planning.patterns.capacity import fleet_capacity
from torchsplit_core.planning.patterns.covers.gpu_divisions import enumerate_divisions
from torchsplit_core.planning.patterns.covers.joint_covers import linear_cover, whole_covers
from torchsplit_core.planning.problem.build import build_problem


def test_divisions_of_every_layout_among_the_members():
    request = on_a30(
        simple("a", {"1g.6gb": 4.0, "2g.12gb": 6.0}, demand_rps=1.0),
        simple("b", {"2g.12gb": 5.0, "4g.24gb": 9.0}, demand_rps=1.0),
        count=2,
    )
    capacity = fleet_capacity(build_problem(request))
    rates = np.array([
        [{"1g.6gb": 4.0, "2g.12gb": 6.0}.get(profile, 0.0) for _, profile in capacity.pools],
        [{"2g.12gb": 5.0, "4g.24gb": 9.0}.get(profile, 0.0) for _, profile in capacity.pools],
    ])  # fmt: skip
    divisions = enumerate_divisions(capacity, rates)
    assert divisions is not None
    expected = set()
    for column in range(len(capacity.columns)):
        slices = capacity.slices[:, column]
        for way in product(*(product(range(count + 1), repeat=2) for count in slices.tolist())):
            table = np.array(way).T
            fits = (table.sum(axis=0) <= slices).all()
            if fits and table.any(axis=1).all() and not (table * (rates == 0)).any():
                expected.add(table.tobytes())
    assert {division.astype(np.int64).copy(order="C").tobytes() for division in divisions.slices} == expected
    assert len(divisions.slices) == len(expected)
    for division, fits, served in zip(divisions.slices, divisions.fits, divisions.rates, strict=True):
        assert fits.tolist() == (division.sum(axis=0)[:, None] <= capacity.slices).all(axis=0).tolist()
        assert served == pytest.approx((division * rates).sum(axis=1))


@pytest.mark.parametrize("seed", range(20))
def test_cheapest_cover_of_few_gpus(seed):
    rng = np.random.default_rng(seed)
    count, members = int(rng.integers(4, 14)), int(rng.integers(2, 4))
    rates = rng.uniform(0.2, 3.0, (count, members))
    costs = rates.sum(axis=1) ** rng.uniform(0.8, 1.1) + rng.uniform(0.0, 0.5, count)
    need = rng.uniform(0.5, 2.5, members)
    linear = linear_cover(costs, rates, need)
    assert linear is not None
    by_hand = min(
        costs[list(chosen)].sum()
        for size in (1, 2, 3)
        for chosen in combinations_with_replacement(range(count), size)
        if (rates[list(chosen)].sum(axis=0) >= need).all()
    )
    assert linear.least(costs, rates, need) <= linear.cost <= by_hand
    assert linear.least(costs, rates, need) == pytest.approx(linear.cost)
    covers = whole_covers(costs, rates, need, linear, 5)
    assert covers[0].cost <= by_hand + 1e-9
    for cover in covers:
        divisions, counts = (np.array(part) for part in zip(*cover.gpus, strict=True))
        assert (counts @ rates[divisions] >= need * (1 - 1e-8)).all()
        assert cover.cost == pytest.approx(counts @ costs[divisions])
    assert [cover.cost for cover in covers] == sorted(cover.cost for cover in covers)


def test_a_bound_at_other_costs_holds():
    """The duals of some costs bound every cover at lower ones."""
    rng = random.Random(1)
    rates = np.array([[rng.uniform(0.5, 2.0), rng.uniform(0.5, 2.0)] for _ in range(12)])
    costs, need = rates.sum(axis=1) + 0.3, np.array([7.0, 3.0])
    linear = linear_cover(costs, rates, need)
    cheaper = linear_cover(costs - 0.25, rates, need)
    assert linear is not None and cheaper is not None
    assert 0 < linear.least(costs - 0.25, rates, need) <= cheaper.cost < linear.cost


def test_members_that_nothing_serves_have_no_cover():
    assert linear_cover(np.ones(2), np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([1.0, 1.0])) is None

"""Pools that give every model the same are one to the search, and parted again in its plans."""

import time

import numpy as np
import pytest

from tests.support.planning.pattern_search import searching
from tests.support.planning.requests import A30, LAYOUTS, simple
from torchsplit_core.planning.patterns.equal_pools import join_equal_pools, part_equal_pools
from torchsplit_core.planning.patterns.feasibility import FeasibilityProblem
from torchsplit_core.values import FleetEntry, PlanRequest

pytestmark = pytest.mark.slow

RATES = {"1g.6gb": 1.0, "2g.12gb": 2.1, "4g.24gb": 4.0}


def two_groups() -> PlanRequest:
    """Two models on five equal GPUs, three of which allow fewer layouts."""
    fleet = (FleetEntry(A30, count=2), FleetEntry(A30, id="few", count=3, layouts=LAYOUTS[:2]))
    models = (simple("a", RATES, demand_rps=1.0), simple("b", RATES, demand_rps=2.0))
    return PlanRequest(fleet, models, link_gb_per_s=1.0)


def test_equal_profiles_of_two_groups_are_one_pool():
    separate = searching(two_groups())
    assert separate is not None
    joined, members = join_equal_pools(separate)
    names = [profile for _, profile in separate.capacity.pools]
    assert len(joined.capacity.pools) == len(set(names)) < len(names)
    assert sorted(pool for pools in members for pool in pools) == list(range(len(names)))
    for row, pools in enumerate(members):
        assert len({names[pool] for pool in pools}) == 1
        assert joined.capacity.max_slices[row] == separate.capacity.max_slices[pools].sum()
        assert (joined.capacity.slices[row] == separate.capacity.slices[pools].sum(axis=0)).all()


def test_a_parted_plan_fits_each_group_and_serves_as_much():
    separate = searching(two_groups())
    assert separate is not None
    joined, members = join_equal_pools(separate)
    both = 0
    for level in (1.0, 3.0, 5.0):
        answer = joined.decide(FeasibilityProblem((level,)), time.perf_counter() + 30.0, prove=True)
        assert answer.plan is not None
        plan = part_equal_pools(answer.plan, members, separate)
        used = sum(pattern.usage for pattern in plan.patterns)
        assert (used <= separate.capacity.slices @ plan.layouts).all()
        rates = [pattern.rate for pattern in answer.plan.patterns]
        assert [pattern.rate for pattern in plan.patterns] == pytest.approx(rates)
        groups = np.array([group for group, _ in separate.capacity.pools])
        both += all(used[groups == group].any() for group in (0, 1))
    assert both


def test_a_profile_that_is_quicker_in_one_group_stays_apart():
    separate = searching(two_groups())
    assert separate is not None
    pools = len(join_equal_pools(separate)[0].capacity.pools)
    stage = separate.options[1].options[0].stages[0]
    row = next(row for row, pool in enumerate(separate.capacity.pools) if pool == (1, "1g.6gb"))
    stage.rates[row] *= 1.01
    assert len(join_equal_pools(separate)[0].capacity.pools) == pools + 1

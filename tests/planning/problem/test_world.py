"""Plans of requests with links, nodes, intervals and unknown memory against a look at everything.

`benchmarks/planner_oracle.py` looks at more of them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.planning.oracle import best_plan, levels_of
from tests.support.planning.shared_oracle import best_shared
from tests.support.planning.world import worldly
from torchsplit_core.planning import plan, violations
from torchsplit_core.values import (
    Objective,
)

pytestmark = pytest.mark.slow

BLOCK = 25


@pytest.mark.parametrize("block", range(4))
def test_whole_slices_equal_every_plan_looked_at(block: int) -> None:
    bound = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        request = worldly(seed, "exclusive")
        outcome, expected = plan(request), best_plan(request)
        assert not list(violations(request, outcome)), seed
        if expected is None:
            assert outcome.status == "infeasible", seed
            continue
        assert outcome.status == "optimal", seed
        assert levels_of(request, outcome) == pytest.approx(expected[0], rel=1e-6, abs=1e-9), seed
        free = plan(replace(request, link_gb_per_s=None, network_gb_per_s=None))
        bound += levels_of(request, free) != pytest.approx(expected[0], rel=1e-6, abs=1e-9)
    # The links must matter in some of them, or this says nothing.
    assert bound >= 1


@pytest.mark.parametrize("block", range(2))
def test_shared_slices_equal_every_set_of_tenants(block: int) -> None:
    planned = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        request = replace(worldly(seed, "fractional"), objective=Objective("leximin"))
        outcome, expected = plan(request), best_shared(request)
        assert not list(violations(request, outcome)), seed
        if expected is None:
            assert outcome.status == "infeasible", seed
            continue
        assert outcome.status == "optimal", seed
        assert outcome.objective.sorted_normalised == pytest.approx(expected, rel=2e-6, abs=1e-8), seed
        planned += 1
    assert planned >= 8

"""Plans of requests with links, nodes, intervals and unknown memory against a look at everything.

`benchmarks/planner_oracle.py` looks at more of them.
"""

from dataclasses import replace

import pytest

from tests.support.planning.against_all import as_good_as_every_plan, as_good_as_every_set_of_tenants
from tests.support.planning.oracle import levels_of
from tests.support.planning.world import worldly
from tests.support.seeds import repeated
from torchsplit_core.planning import plan
from torchsplit_core.values import Objective

pytestmark = pytest.mark.slow

BLOCK = 25


@repeated("block", range(4))
def test_whole_slices_equal_every_plan_looked_at(block):
    bound = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        request = worldly(seed, "exclusive")
        outcome, _ = as_good_as_every_plan(request, seed)
        if outcome.status == "infeasible":
            continue
        free = plan(replace(request, link_gb_per_s=None, network_gb_per_s=None))
        bound += levels_of(request, free) != pytest.approx(levels_of(request, outcome), rel=1e-6, abs=1e-9)
    # The links must matter in some of them, or this says nothing.
    assert bound >= 1


@repeated("seeds", [range(12), range(12, 2 * BLOCK)])
def test_shared_slices_equal_every_set_of_tenants(seeds):
    planned = 0
    for seed in seeds:
        request = replace(worldly(seed, "fractional"), objective=Objective("leximin"))
        planned += as_good_as_every_set_of_tenants(request, seed)[1] is not None
    assert planned >= 8

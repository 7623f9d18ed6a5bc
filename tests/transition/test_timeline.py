"""Throughputs during a transition, and the state at its end."""

from itertools import pairwise
from math import fsum

import pytest

from tests.support.transition.instances import random_case
from torchsplit_core.transition import plan_transition, state_after, throughput_over_time
from torchsplit_core.values import HostState


@pytest.mark.parametrize("seed", range(40))
def test_the_area_below_demand_is_what_the_transition_says_and_the_end_needs_no_step(seed):
    plan, state = random_case(seed)
    outcome = plan_transition(plan, state)
    if outcome.status == "infeasible":
        outcome = plan_transition(plan, state, evict_foreign=True)
    if outcome.status == "infeasible":
        return
    lines = throughput_over_time(state, outcome)
    total = fsum(step.seconds or 0.0 for step in outcome.steps)
    for during in outcome.during:
        line = lines[during.model]
        assert line[0] == (0.0, pytest.approx(during.before_rps))
        assert line[-1] == (pytest.approx(total), pytest.approx(during.after_rps))
        assert min(rate for _, rate in line) == pytest.approx(during.lowest_throughput_rps)
        lost = fsum(
            (later - at) * max(0.0, 1 - rate / during.demand_rps) if during.demand_rps else 0.0
            for (at, rate), (later, _) in pairwise(line)
        )
        assert lost == pytest.approx(during.model_seconds_below_demand)
    after = state_after(state, outcome)
    assert isinstance(after, HostState) and [gpu.id for gpu in after.gpus] == [gpu.id for gpu in state.gpus]
    again = plan_transition(plan, after)
    assert again.steps == () and again.untouched_tenants == sum(
        len(item.tenants) for mapped in outcome.mapping for item in mapped.instances
    )

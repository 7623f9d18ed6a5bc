"""The counts of a transition against every assignment of GPUs and every start of every slice."""

from __future__ import annotations

from tests.support.seeds import in_blocks
from tests.support.transition.instances import best_counts, random_case
from torchsplit_core.transition import plan_transition, transition_fault


@in_blocks("seed", range(300), kept=10)
def test_counts_equal_those_of_trying_everything(seed):
    plan, state = random_case(seed)
    outcome = plan_transition(plan, state)
    counts = (outcome.untouched_tenants, outcome.kept_instances, outcome.touched_gpus)
    best = best_counts(plan, state)
    assert (outcome.status == "infeasible") == (best is None)
    if best is not None:
        assert outcome.status == "optimal"
        assert counts == best
        assert transition_fault(plan, state, outcome) is None

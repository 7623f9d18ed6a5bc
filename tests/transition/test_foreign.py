"""Tenants of others keep their place, unless they may be evicted; states that no host can be in are refused."""

from __future__ import annotations

import pytest

from tests.support.transition.instances import plan_of, tenant
from torchsplit_core.transition import check_state, plan_transition, read_state, state_of_plan
from torchsplit_core.values import (
    ForeignTenant,
    HostState,
    InputFault,
    PlannedGpu,
    PlannedSlice,
    StateGpu,
    StateInstance,
)

TYPE = "A30-24GB"


def state(*instances: StateInstance, **more) -> HostState:
    return HostState((StateGpu("h/gpu0", TYPE, instances=instances, **more),))


def plan(*slices: tuple[str, int, str]):
    planned = tuple(PlannedSlice(profile, start, (tenant(model),)) for profile, start, model in slices)
    return plan_of([PlannedGpu("p/0", TYPE, True, planned)])


FOREIGN = StateInstance("2g.12gb", 0, None, (ForeignTenant("a notebook"),))
UNKNOWN = StateInstance("2g.12gb", 2)


def test_slices_move_beside_a_tenant_of_somebody_else():
    outcome = plan_transition(plan(("2g.12gb", 0, "a")), state(FOREIGN))
    assert [item.start for item in outcome.mapping[0].instances] == [2]
    assert [(step.action, step.start) for step in outcome.steps] == [("create", 2), ("start", 2)]


def test_a_plan_that_needs_the_place_of_others_is_refused_with_their_names():
    outcome = plan_transition(plan(("2g.12gb", 0, "a")), state(FOREIGN, UNKNOWN))
    assert outcome.status == "infeasible"
    assert "a notebook on h/gpu0 (2g.12gb at 0)" in outcome.message
    assert "unknown tenants on h/gpu0 (2g.12gb at 2)" in outcome.message


def test_only_what_is_in_the_way_is_evicted():
    both = plan_transition(plan(("2g.12gb", 0, "a")), state(FOREIGN, UNKNOWN), evict_foreign=True)
    assert [step.action for step in both.steps] == ["stop", "destroy", "create", "start"]
    none = plan_transition(plan(("2g.12gb", 0, "a")), state(FOREIGN), evict_foreign=True)
    assert [step.action for step in none.steps] == ["create", "start"]


def test_an_instance_on_which_nothing_runs_is_ours():
    outcome = plan_transition(plan(("4g.24gb", 0, "a")), state(StateInstance("2g.12gb", 2, None, ())))
    assert [step.action for step in outcome.steps] == ["destroy", "create", "start"]


def test_more_gpus_planned_than_present_is_infeasible():
    two = plan_of([PlannedGpu(f"p/{n}", TYPE, True, (PlannedSlice("4g.24gb", 0),)) for n in range(2)])
    outcome = plan_transition(two, state())
    assert outcome.status == "infeasible"
    assert outcome.message == f"the plan has slices on 2 {TYPE}, and the state has 1 of them"


def test_gpus_that_the_plan_does_not_use_end_empty():
    two = HostState(
        (
            StateGpu("h/gpu0", TYPE, instances=(StateInstance("4g.24gb", 0, None, (tenant("a"),)),)),
            StateGpu("h/gpu1", TYPE, instances=(StateInstance("4g.24gb", 0, None, (tenant("b"),)),)),
        )
    )
    outcome = plan_transition(plan(("4g.24gb", 0, "a")), two)
    assert [(step.gpu, step.action) for step in outcome.steps] == [("h/gpu1", "stop"), ("h/gpu1", "destroy")]
    assert outcome.untouched_tenants == 1


def test_an_earlier_plan_is_a_state():
    earlier = plan(("2g.12gb", 0, "a"), ("2g.12gb", 2, "b"))
    assert read_state(earlier) == state_of_plan(earlier)
    assert plan_transition(earlier, state_of_plan(earlier)).steps == ()


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (HostState((StateGpu("a", "A30"),)), "unknown GPU type 'A30'"),
        (HostState((StateGpu("a", TYPE), StateGpu("a", TYPE))), "is given twice"),
        (HostState((StateGpu("a", TYPE, "u"), StateGpu("b", TYPE, "u"))), "a second time"),
        (state(FOREIGN, StateInstance("2g.12gb", 0)), "overlaps"),
        (state(StateInstance("3g.40gb", 0)), "has no profile 3g.40gb"),
        (state(FOREIGN, mig_enabled=False), "has MIG instances although MIG mode is off"),
        (state(StateInstance("", 0), mig_enabled=True), "runs whole although MIG mode is on"),
        (state(StateInstance("4g.24gb", 0, None, (tenant("a", 0.6), tenant("b", 0.6)))), "add up to 1.2"),
    ],
)
def test_a_state_that_no_host_can_be_in_is_refused(bad, words):
    with pytest.raises(InputFault, match=words):
        check_state(bad)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (plan(("3g.40gb", 0, "a")), "has no profile 3g.40gb"),
        (plan(("2g.12gb", 0, "a"), ("2g.12gb", 0, "b")), "overlaps"),
        (plan(("2g.12gb", 1, "a")), "2g.12gb cannot start at slot 1"),
        (plan_of([PlannedGpu("p/0", TYPE, False)] * 2), "'p/0' is given twice"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(bad, words):
    with pytest.raises(InputFault, match=words):
        plan_transition(bad, state())

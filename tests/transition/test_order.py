"""Orders: the exact one against every permutation, bridges over a free GPU, drains before stops."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations

import pytest

from tests.support.seeds import in_blocks
from tests.support.transition.instances import plan_of, random_case, tenant
from torchsplit_core.hardware.host_state.assignment import FleetMatching
from torchsplit_core.transition import ChangeTimes, plan_transition
from torchsplit_core.transition.order import best_order, evaluate
from torchsplit_core.transition.parts import parts_of
from torchsplit_core.transition.rates import Losses, Running, Throughputs
from torchsplit_core.values import HostState, PlannedGpu, PlannedSlice, StateGpu, StateInstance, tenants_on

TYPE = "A30-24GB"


def gpu_of(name: str, *models: str) -> StateGpu:
    """An A30 with a 2g.12gb for each model."""
    instances = [
        StateInstance("2g.12gb", 2 * index, None, (tenant(model),)) for index, model in enumerate(models)
    ]
    return StateGpu(f"h/{name}", TYPE, instances=tuple(instances))


def target_of(name: str, *models: str) -> PlannedGpu:
    """An A30 with a 1g.6gb for each model."""
    slices = [
        PlannedSlice("1g.6gb", index, (tenant(model, rate=20.0),)) for index, model in enumerate(models)
    ]
    return PlannedGpu(f"p/{name}", TYPE, True, tuple(slices))


@in_blocks("seed", range(40))
def test_the_exact_order_is_no_worse_than_any_permutation(seed):
    plan, state = random_case(seed, foreign=0.0, types=("A30-24GB",))
    times = ChangeTimes(model_start_s={"a": 3.0, "b": 30.0})
    assignment = next(FleetMatching(plan, state, evict=False).assignments())
    parts = [part for match in assignment.matches for part in parts_of(match, times)][:5]
    before = [tenant for gpu in state.gpus for item in gpu.instances for tenant in item.planned_tenants]
    after = [tenant for _, _, tenant in tenants_on(plan.gpus)]
    draw = random.Random(seed)
    demands = {model: draw.choice((5.0, 15.0, 40.0)) for model in "abc"}
    losses, running = Losses(Throughputs((*before, *after), None), demands), Running(before)
    chosen = best_order(parts, losses, running)
    assert chosen.exact
    assert evaluate(chosen.parts, losses, running).value == chosen.value
    assert chosen.value == min(evaluate(order, losses, running).value for order in permutations(parts))


def test_a_model_runs_on_while_its_instances_change_one_gpu_after_the_other():
    state = HostState((gpu_of("gpu0", "a", "b"), gpu_of("gpu1", "a", "b")))
    outcome = plan_transition(plan_of([target_of("0", "a", "a", "b", "b"), target_of("1", "a", "b")]), state)
    assert outcome.exact_order
    assert {item.model: item.lowest_throughput_rps for item in outcome.during} == {"a": 10.0, "b": 10.0}
    gpus = [step.gpu for step in outcome.steps]
    assert gpus == sorted(gpus) or gpus == sorted(gpus, reverse=True)


def test_a_free_gpu_bridges_where_a_model_would_stop():
    lone = HostState((gpu_of("gpu0", "a", "b"),))
    plan = plan_of([target_of("0", "a", "b")])
    assert [item.lowest_throughput_rps for item in plan_transition(plan, lone).during] == [0.0, 0.0]
    free = StateGpu("h/gpu1", TYPE, mig_enabled=True)
    # With a second GPU the plan could move there at once; one that is to end as it was leaves only a bridge.
    outcome = plan_transition(plan, HostState((*lone.gpus, free)))
    assert [item.lowest_throughput_rps for item in outcome.during] == [10.0, 10.0]
    assert outcome.spare_gpu == "h/gpu1"
    assert outcome.touched_gpus == 1
    assert all(item.model_seconds_below_demand == 0 for item in outcome.during)


def test_a_free_gpu_without_mig_mode_bridges_nothing():
    state = HostState((gpu_of("gpu0", "a"), StateGpu("h/gpu1", TYPE, mig_enabled=False)))
    outcome = plan_transition(plan_of([target_of("0", "a")]), state)
    assert outcome.spare_gpu is None


@pytest.mark.parametrize("prefer_loss", [False, True])
def test_preferring_the_loss_takes_the_empty_gpu(prefer_loss):
    state = HostState((gpu_of("gpu0", "a", "b"), StateGpu("h/gpu1", TYPE, mig_enabled=False)))
    outcome = plan_transition(plan_of([target_of("0", "a", "b")]), state, prefer_loss=prefer_loss)
    lost = sum(item.model_seconds_below_demand for item in outcome.during)
    assert (outcome.touched_gpus, lost > 0) == ((2, False) if prefer_loss else (1, True))
    assert outcome.status == ("feasible" if prefer_loss else "optimal")
    assert outcome.bound.touched_gpus == 1


def test_demands_come_from_the_request_where_it_is_given():
    state = HostState((gpu_of("gpu0", "a"),))
    plan = plan_of([target_of("0", "a")])
    (during,) = plan_transition(plan, state).during
    assert during.demand_rps == 10.0
    seconds = ChangeTimes().drain_s + ChangeTimes().start_s + ChangeTimes().create_s + ChangeTimes().destroy_s
    assert during.model_seconds_below_demand == pytest.approx(seconds)


def test_a_tenant_that_is_replaced_on_its_instance_stops_before_the_next_starts():
    now = StateGpu(
        "h/gpu0", TYPE, instances=(StateInstance("4g.24gb", 0, None, (tenant("a", 0.5), tenant("b", 0.5))),)
    )
    then = PlannedGpu("p/0", TYPE, True, (PlannedSlice("4g.24gb", 0, (tenant("a", 0.5), tenant("c", 0.5))),))
    outcome = plan_transition(plan_of([then]), HostState((now,)))
    assert [(step.action, [t.model for t in step.tenants]) for step in outcome.steps] == [
        ("stop", ["b"]),
        ("start", ["c"]),
    ]
    assert (outcome.untouched_tenants, outcome.kept_instances) == (1, 1)


def test_mig_mode_is_switched_where_nothing_stands():
    whole = StateGpu(
        "h/gpu0", TYPE, mig_enabled=False, instances=(StateInstance("", 0, None, (tenant("a"),)),)
    )
    outcome = plan_transition(plan_of([target_of("0", "a")]), HostState((whole,)))
    assert [step.action for step in outcome.steps] == ["stop", "destroy", "enable_mig", "create", "start"]
    back = plan_transition(
        plan_of([PlannedGpu("p/0", TYPE, True, (PlannedSlice("", 0, (tenant("a"),)),))]),
        HostState((replace(gpu_of("gpu0", "a"), mig_enabled=True),)),
    )
    assert [step.action for step in back.steps] == ["stop", "destroy", "disable_mig", "create", "start"]

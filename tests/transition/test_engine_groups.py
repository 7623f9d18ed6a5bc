"""Engines on several GPUs: they run on where all their GPUs do, and give nothing while one of these is missing."""

from dataclasses import replace

from tests.support.transition.engines import alone, engine_tenant, group_gpus
from tests.support.transition.instances import plan_of, tenant
from torchsplit_core.hardware.host_state.validity import tenant_key
from torchsplit_core.transition import plan_transition, state_of_plan, throughput_over_time
from torchsplit_core.values import (
    PlannedGpu,
    PlannedSlice,
    Transition,
)


def free(gpu: str) -> PlannedGpu:
    return PlannedGpu(gpu, "A100-80GB", False)


def ends(outcome: Transition) -> dict[str, tuple[str, ...]]:
    """By GPU of the host the models on it."""
    return {
        gpu.host_gpu: tuple(t.model for item in gpu.instances for t in item.tenants)
        for gpu in outcome.mapping
    }


def test_an_engine_is_the_planned_one_whatever_its_group_is_called():
    one = engine_tenant("chat", "a")
    assert tenant_key(one) == tenant_key(engine_tenant("chat", "b"))
    other = replace(one, engine=replace(one.engine, max_num_seqs=64))
    assert tenant_key(one) != tenant_key(other)
    assert tenant_key(one) != tenant_key(replace(one, engine=None))


def test_a_group_of_another_name_or_in_another_order_runs_on():
    before = [*group_gpus("first", "n/0", "n/1"), *group_gpus("second", "n/2", "n/3")]
    after = [*group_gpus("second", "n/1", "n/0"), *group_gpus("first", "n/2", "n/3")]
    outcome = plan_transition(plan_of(after), state_of_plan(plan_of(before)))
    assert outcome.steps == () and outcome.untouched_tenants == 4


def test_groups_that_a_plan_draws_across_those_that_run_stay_together_as_they_run():
    before = [*group_gpus("a", "n/0", "n/1"), *group_gpus("b", "n/2", "n/3")]
    after = [*group_gpus("a", "n/0", "n/2"), *group_gpus("b", "n/1", "n/3")]
    outcome = plan_transition(plan_of(after), state_of_plan(plan_of(before)))
    hosts = {gpu.plan_gpu: gpu.host_gpu for gpu in outcome.mapping}
    assert outcome.steps == ()
    assert {hosts["n/0"], hosts["n/2"]} in ({"n/0", "n/1"}, {"n/2", "n/3"})


def test_a_group_that_keeps_one_of_its_gpus_starts_anew_on_all():
    before = [*group_gpus("g", "n/0", "n/1"), alone("n/2", "b"), alone("n/3", "c")]
    # Another engine of two GPUs, so that no group of the state can stay as it is.
    wider = group_gpus("g", "n/0", "n/1", "n/2", "n/3", rate=16.0)
    outcome = plan_transition(plan_of(wider), state_of_plan(plan_of(before)))
    assert outcome.untouched_tenants == 0 and outcome.touched_gpus == 4
    actions = [(step.gpu, step.action) for step in outcome.steps]
    assert {gpu for gpu, action in actions if action == "start"} == {"n/0", "n/1", "n/2", "n/3"}
    (chat,) = (item for item in outcome.during if item.model == "chat")
    assert (chat.before_rps, chat.after_rps, chat.lowest_throughput_rps) == (10.0, 16.0, 0.0)


def test_half_a_group_is_no_engine_that_runs_on():
    """Of the state's group one GPU was lost: what is left of it has to stop."""
    (left, _) = group_gpus("g", "n/0", "n/1")
    state = state_of_plan(plan_of([left, free("n/1")]))
    outcome = plan_transition(plan_of(group_gpus("g", "n/0", "n/1")), state)
    assert outcome.untouched_tenants == 0
    assert [step.action for step in outcome.steps if step.gpu == "n/0"] == ["stop", "start"]
    (chat,) = outcome.during
    assert (chat.before_rps, chat.after_rps) == (0.0, 10.0)


def test_an_engine_gives_nothing_from_the_stop_on_one_gpu_to_the_start_on_the_last():
    before = [*group_gpus("g", "n/0", "n/1"), free("n/2"), free("n/3")]
    small = [
        PlannedGpu("n/0", "A100-80GB", True, (PlannedSlice("7g.80gb", 0, (tenant("b"),)),)),
        PlannedGpu("n/1", "A100-80GB", True, (PlannedSlice("7g.80gb", 0, (tenant("b"),)),)),
    ]
    anew = group_gpus("g", "n/2", "n/3", rate=12.0, seqs=64)
    state = state_of_plan(plan_of(before))
    outcome = plan_transition(plan_of([*small, *anew]), state)
    line = throughput_over_time(state, outcome)["chat"]
    assert line[0] == (0.0, 10.0) and line[-1][1] == 12.0
    # Never half an engine: 5 or 6 requests/s.
    assert {rate for _, rate in line} <= {0.0, 10.0, 12.0, 22.0}
    starts = [step for step in outcome.steps if step.action == "start" and step.tenants[0].model == "chat"]
    assert len(starts) == 2


def test_no_spare_gpu_stands_in_for_one_of_a_group():
    before = [*group_gpus("g", "n/0", "n/1"), free("n/2")]
    after = [
        PlannedGpu(f"n/{i}", "A100-80GB", True, (PlannedSlice("7g.80gb", 0, (tenant("chat", rate=5.0),)),))
        for i in (0, 1)
    ]
    outcome = plan_transition(plan_of(after), state_of_plan(plan_of(before)))
    for step in outcome.steps:
        if step.action == "start":
            assert all(entry.gpus == 1 for entry in step.tenants)
    assert {step.action for step in outcome.steps} >= {"enable_mig"}


def test_an_engine_stays_on_one_host():
    before = [alone("n/0", "b"), free("n/1"), free("m/0"), free("m/1")]
    after = [*group_gpus("g", "n/0", "n/1"), alone("m/0", "b")]
    outcome = plan_transition(plan_of(after), state_of_plan(plan_of(before)))
    hosts = {gpu.partition("/")[0] for gpu, models in ends(outcome).items() if models == ("chat",)}
    assert outcome.status != "infeasible" and len(hosts) == 1

"""What a transition leads to: throughputs while it is carried out, and the state at its end."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.hardware.host_state.validity import engine_group
from torchsplit_core.transition.rates import Running, Throughputs, Timeline, timelines
from torchsplit_core.values import HostState, PlanRequest, StateGpu, StateInstance, Transition


def throughput_over_time(
    state: HostState, outcome: Transition, request: PlanRequest | None = None
) -> dict[str, Timeline]:
    """By model, its throughput during the steps; `request` as for `plan_transition`."""
    names = {
        gpu: group
        for gpu, tenants in (
            *((gpu.host_gpu, item.tenants) for gpu in outcome.mapping for item in gpu.instances),
            *((step.gpu, step.tenants) for step in outcome.steps if step.action == "stop"),
        )
        for tenant in tenants
        if (group := engine_group(tenant)) is not None
    }  # a transition names groups anew: an engine that goes by its stop, one that stays by the plan
    before = [
        tenant
        if tenant.engine is None or tenant.engine.group is None
        else replace(tenant, engine=replace(tenant.engine, group=names[gpu.id]))
        for gpu in state.gpus
        for item in gpu.instances
        for tenant in item.planned_tenants
    ]
    after = [tenant for gpu in outcome.mapping for item in gpu.instances for tenant in item.tenants]
    return timelines(outcome.steps, Throughputs((*before, *after), request), Running(before))


def state_after(state: HostState, outcome: Transition) -> HostState:
    """The state at the end: the plan on the mapped GPUs, and what others run there still."""
    planned = {mapped.host_gpu: mapped.instances for mapped in outcome.mapping}
    destroyed = {(step.gpu, step.profile, step.start) for step in outcome.steps if step.action == "destroy"}
    modes = {
        step.gpu: step.action == "enable_mig" for step in outcome.steps if step.action.endswith("able_mig")
    }

    def end(gpu: StateGpu) -> StateGpu:
        others = [
            item
            for item in gpu.instances
            if item.foreign is not None and (gpu.id, item.profile, item.start) not in destroyed
        ]
        ours = [StateInstance(i.profile, i.start, None, i.tenants) for i in planned.get(gpu.id, ())]
        instances = tuple(sorted((*others, *ours), key=lambda item: item.start))
        return replace(gpu, mig_enabled=modes.get(gpu.id, gpu.mig_enabled), instances=instances)

    return HostState(tuple(map(end, state.gpus)))

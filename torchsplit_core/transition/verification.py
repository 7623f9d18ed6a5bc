"""Checks a transition by carrying out its steps on the state, without anything of the search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from torchsplit_core.hardware import gpu_type
from torchsplit_core.hardware.gpu_ids import host_of
from torchsplit_core.hardware.host_state.validity import engine_group, member_key
from torchsplit_core.hardware.layouts import layout_fault
from torchsplit_core.values import (
    WHOLE_GPU,
    ForeignTenant,
    HostState,
    PlacedProfile,
    PlannedSlice,
    PlanOutcome,
    StateGpu,
    Tenant,
    Transition,
    TransitionStep,
)

_TOLERANCE = 1e-6


@dataclass
class _Instance:
    """One that stands: who runs there, those that did from the beginning and were never stopped, and whether it is of
    the beginning."""

    tenants: list[Tenant | ForeignTenant]
    untouched: Counter[Hashable]
    is_old: bool
    is_foreign: bool = False


@dataclass
class _Gpu:
    type: str
    mig: bool | None
    instances: dict[tuple[str, int], _Instance] = field(default_factory=dict)
    steps: int = 0


def transition_fault(plan: PlanOutcome, state: HostState, outcome: Transition) -> str | None:
    """What is wrong with a transition from the state to the plan; None where nothing is.

    Each step must be legal on what stands then, the end must be the plan on the mapped GPUs, and the counts those of
    the steps. An infeasible one claims nothing that could be checked here.
    """
    if outcome.status == "infeasible":
        return None
    gpus = {gpu.id: _gpu(gpu) for gpu in state.gpus}
    for number, step in enumerate(outcome.steps, 1):
        if step.gpu not in gpus:
            return f"step {number} names GPU {step.gpu}, which the state has not got"
        fault = _do(gpus[step.gpu], step)
        if fault is not None:
            return f"step {number} ({step.action} on {step.gpu}): {fault}"
    return _end_fault(plan, gpus, outcome) or _group_fault(gpus) or _count_fault(gpus, outcome)


def _gpu(gpu: StateGpu) -> _Gpu:
    mig = gpu.mig_enabled
    if mig is None and gpu.instances:
        mig = gpu.instances[0].profile != WHOLE_GPU
    instances = {
        (item.profile, item.start): _Instance(
            list(item.tenants or ()),
            Counter(map(member_key, item.planned_tenants)),
            is_old=True,
            is_foreign=item.foreign is not None,
        )
        for item in gpu.instances
    }
    return _Gpu(gpu.type, mig, instances)


def _do(gpu: _Gpu, step: TransitionStep) -> str | None:
    """Carry out a step; why that cannot be, or None."""
    gpu.steps += 1
    if step.action in ("enable_mig", "disable_mig"):
        if gpu.instances:
            return "instances stand on it"
        gpu.mig = step.action == "enable_mig"
        return None
    place = (step.profile, step.start or 0)
    if step.action == "create":
        kind = gpu_type(gpu.type)
        placed = [PlacedProfile(*key) for key in (*gpu.instances, place)]
        if kind.divided == "mig" and gpu.mig is not None and gpu.mig is (step.profile == WHOLE_GPU):
            return "MIG mode is not right for it"
        gpu.instances[place] = _Instance([], Counter(), is_old=False)
        return layout_fault(kind, placed)
    instance = gpu.instances.get(place)
    if instance is None:
        return "there is no such instance"
    if step.action == "destroy":
        if instance.tenants:
            return "tenants run on it"
        del gpu.instances[place]
        return None
    return _stop(instance, step) if step.action == "stop" else _start(instance, step)


def _stop(instance: _Instance, step: TransitionStep) -> str | None:
    for tenant in step.tenants:
        if isinstance(tenant, ForeignTenant) and not instance.tenants:
            continue
        keys = [member_key(item) for item in instance.tenants]
        if member_key(tenant) not in keys:
            return "a tenant does not run there"
        del instance.tenants[keys.index(member_key(tenant))]
        instance.untouched[member_key(tenant)] -= 1
    return None


def _start(instance: _Instance, step: TransitionStep) -> str | None:
    instance.tenants += step.tenants
    total = sum(item.share for item in instance.tenants if isinstance(item, Tenant))
    return f"shares add up to {total:.6g}" if total > 1 + _TOLERANCE else None


def _end_fault(plan: PlanOutcome, gpus: dict[str, _Gpu], outcome: Transition) -> str | None:
    targets = {gpu.id: gpu for gpu in plan.gpus if gpu.slices}
    hosts = {mapped.host_gpu: mapped for mapped in outcome.mapping}
    if {mapped.plan_gpu for mapped in outcome.mapping} != set(targets) or len(hosts) != len(outcome.mapping):
        return "the mapping does not name every GPU of the plan once"
    for name, gpu in gpus.items():
        mapped = hosts.get(name)
        standing = {key: item for key, item in gpu.instances.items() if not item.is_foreign}
        if mapped is None:
            if standing:
                return f"{name} does not end empty"
            continue
        target = targets[mapped.plan_gpu]
        if gpu.type != target.type:
            return f"{name} is no {target.type}"
        ends = [
            PlannedSlice(profile, start, tuple(t for t in item.tenants if isinstance(t, Tenant)))
            for (profile, start), item in standing.items()
        ]
        drawn = [PlannedSlice(item.profile, item.start, item.tenants) for item in mapped.instances]
        if Counter(_content(item, item.start) for item in ends) != Counter(
            _content(item, item.start) for item in drawn
        ):
            return f"{name} does not end as the mapping says"
        if Counter(_content(item, 0) for item in ends) != Counter(
            _content(item, 0) for item in target.slices
        ):
            return f"{name} does not end with the slices of {target.id}"
        if gpu_type(gpu.type).divided == "mig" and gpu.mig is any(item.profile == WHOLE_GPU for item in ends):
            return f"{name} ends in the wrong MIG mode"
    return None


def _group_fault(gpus: dict[str, _Gpu]) -> str | None:
    """An engine on several GPUs needs them on one host, and starts anew on all of them or on none."""
    members: dict[str, list[tuple[str, bool]]] = {}
    for name, gpu in gpus.items():
        for instance in gpu.instances.values():
            for tenant in instance.tenants:
                group = engine_group(tenant)
                if group is not None:
                    members.setdefault(group, []).append((name, instance.untouched[member_key(tenant)] > 0))
    for group, ends in members.items():
        if len({host_of(name) for name, _ in ends}) > 1:
            return f"the GPUs of the engine {group} are of several hosts"
        if len({untouched for _, untouched in ends}) > 1:
            return f"the engine {group} starts anew on some of its GPUs only"
    return None


def _content(item: PlannedSlice, start: int) -> Hashable:
    return item.profile, start, tuple(sorted(map(repr, map(member_key, item.tenants))))


def _count_fault(gpus: dict[str, _Gpu], outcome: Transition) -> str | None:
    mapped = {item.host_gpu for item in outcome.mapping}
    standing = [
        item
        for name in mapped
        for item in gpus[name].instances.values()
        if item.is_old and not item.is_foreign
    ]
    untouched = sum(count for item in standing for count in item.untouched.values())
    touched = sum(gpu.steps > 0 for name, gpu in gpus.items() if name != outcome.spare_gpu)
    counted = (untouched, len(standing), touched)
    claimed = (outcome.untouched_tenants, outcome.kept_instances, outcome.touched_gpus)
    return None if counted == claimed else f"counts {claimed} are {counted} by its steps"

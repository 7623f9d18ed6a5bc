"""Names of groups of GPUs that a state and a plan have in common.

An engine on several GPUs runs on only where a group of the plan has the very GPUs of one that runs; names say nothing
of that, since each plan gives its own. A GPU of a group has no other tenants, so all pairs of equal groups are worth
the same, and the matching of GPUs keeps what is paired here together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import replace

from torchsplit_core.hardware.gpu_ids import host_of
from torchsplit_core.hardware.host_state.validity import engine_group, tenant_key
from torchsplit_core.values import ForeignTenant, HostState, PlannedGpu, StateGpu, Tenant


def with_common_groups(state: HostState, planned: Iterable[PlannedGpu]) -> HostState:
    """The state, in which groups that may run on have the names of equal ones of the plan, and no other has its name.

    Groups are equal in engine, GPU type and number of GPUs; those of the same GPUs are paired first. One that lacks a
    GPU, or whose GPUs are not of one host, does not run on.
    """
    running, targets = _groups(state.gpus), _groups(planned)
    if not running:
        return state
    free = dict.fromkeys(targets)
    names: dict[str, str] = {}
    for is_same_place in (True, False):
        for name, (key, gpus) in running.items():
            partner = next(
                (
                    other
                    for other in free
                    if name not in names
                    and key is not None
                    and targets[other][0] == key
                    and (targets[other][1] == gpus or not is_same_place)
                ),
                None,
            )
            if partner is not None:
                names[name] = partner
                del free[partner]
    taken = {*targets, *running}
    for name in running:
        if name not in names:
            names[name] = _unused(name, taken) if name in targets else name
    return replace(state, gpus=tuple(_renamed(gpu, names) for gpu in state.gpus))


def _groups(
    gpus: Iterable[PlannedGpu] | Iterable[StateGpu],
) -> dict[str, tuple[Hashable | None, frozenset[str]]]:
    """By name, what groups are alike in and their GPUs; None of one that cannot run on."""
    members: dict[str, list[tuple[str, str, Tenant]]] = defaultdict(list)
    for gpu in gpus:
        for item in gpu.slices if isinstance(gpu, PlannedGpu) else gpu.instances:
            for tenant in item.tenants or ():
                group = engine_group(tenant)
                if group is not None and isinstance(tenant, Tenant):
                    members[group].append((gpu.id, gpu.type, tenant))
    return {
        name: (_key(entries), frozenset(gpu for gpu, _, _ in entries)) for name, entries in members.items()
    }


def _key(entries: list[tuple[str, str, Tenant]]) -> Hashable | None:
    keys = {(kind, tenant_key(tenant)) for _, kind, tenant in entries}
    hosts = {host_of(gpu) for gpu, _, _ in entries}
    is_complete = len(entries) == entries[0][2].gpus
    return next(iter(keys)) if len(keys) == len(hosts) == 1 and is_complete else None


def _unused(name: str, taken: set[str]) -> str:
    fresh, number = f"{name} before", 1
    while fresh in taken:
        number += 1
        fresh = f"{name} before {number}"
    taken.add(fresh)
    return fresh


def _renamed(gpu: StateGpu, names: dict[str, str]) -> StateGpu:
    def tenant(now: Tenant | ForeignTenant) -> Tenant | ForeignTenant:
        if isinstance(now, ForeignTenant) or now.engine is None or now.engine.group is None:
            return now
        return replace(now, engine=replace(now.engine, group=names[now.engine.group]))

    instances = tuple(
        item if item.tenants is None else replace(item, tenants=tuple(map(tenant, item.tenants)))
        for item in gpu.instances
    )
    return replace(gpu, instances=instances)

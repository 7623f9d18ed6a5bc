"""States of hosts and plans that can be, and what makes a running tenant the planned one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

from torchsplit_core.hardware.catalogue import gpu_type
from torchsplit_core.hardware.layouts import layout_fault
from torchsplit_core.values import (
    WHOLE_GPU,
    ForeignTenant,
    GpuType,
    HostState,
    InputFault,
    PlacedProfile,
    PlannedGpu,
    StateGpu,
    Tenant,
    quoted,
    slice_name,
)

SHARE_DIGITS = 9
"""Shares that agree in so many digits are equal: plans are written in full precision, hands write fewer."""
_MOST_SHARES = 1 + 1e-6
"""Of one slice, within rounding."""


def tenant_key(tenant: Tenant | ForeignTenant) -> Hashable:
    """What makes a running tenant the planned one: model, variant, stage, batch size, processes, share, and its engine
    but for the name of its group."""
    if isinstance(tenant, ForeignTenant):
        return tenant.foreign
    return (
        tenant.model,
        tenant.variant,
        tenant.stage,
        tenant.batch_size,
        tenant.processes,
        round(tenant.share, SHARE_DIGITS),
        None if tenant.engine is None else replace(tenant.engine, group=None),
    )


def member_key(tenant: Tenant | ForeignTenant) -> Hashable:
    """`tenant_key`, and of an engine on several GPUs its group: it stays only if all its GPUs do.

    For states and plans whose groups have common names (`engine_groups.py`).
    """
    return tenant_key(tenant), engine_group(tenant)


def engine_group(tenant: Tenant | ForeignTenant) -> str | None:
    """The group of GPUs that the tenant's engine takes; None for a tenant of one GPU."""
    return None if isinstance(tenant, ForeignTenant) or tenant.engine is None else tenant.engine.group


def has_mig(kind: GpuType) -> bool:
    """Whether the type has a MIG mode that can be switched."""
    return kind.divided == "mig"


def check_planned(gpus: Iterable[PlannedGpu]) -> None:
    """Raise InputFault for what no plan can have: an id that is given twice, slices of an unknown GPU type or that
    cannot exist together, a tenant without a share, shares above a whole."""
    ids: set[str] = set()
    for gpu in gpus:
        if gpu.id in ids:
            raise InputFault("plan gpus id", f"{quoted(gpu.id)} is given twice", "Give each GPU its own id.")
        ids.add(gpu.id)
        if gpu.slices:
            _check_slices(gpu)


def _check_slices(gpu: PlannedGpu) -> None:
    remedy = "Take the plan as the planner wrote it, or plan again."
    fault = layout_fault(gpu_type(gpu.type), [PlacedProfile(item.profile, item.start) for item in gpu.slices])
    if fault is not None:
        raise InputFault(
            f"slices of {gpu.id}",
            f"{', '.join(slice_name(item.profile, item.start) for item in gpu.slices)} cannot exist together on one "
            f"{gpu.type}: {fault}",
            remedy,
        )
    for item in gpu.slices:
        where = f"slices of {gpu.id}: {slice_name(item.profile, item.start)}"
        for tenant in item.tenants:
            if tenant.share <= 0:
                raise InputFault(where, f"has {tenant.model} with a share of {tenant.share:g}", remedy)
        total = sum(tenant.share for tenant in item.tenants)
        if total > _MOST_SHARES:
            raise InputFault(where, f"has tenants whose shares add up to {total:.6g}", remedy)


def check_state(state: HostState, origin: str = "state") -> None:
    """Raise InputFault for what no host can be in: an unknown type or profile, instances that cannot exist together,
    shares above a whole, an id or UUID that is given twice."""
    ids: set[str] = set()
    uuids: set[str] = set()
    for gpu in state.gpus:
        if gpu.id in ids:
            raise InputFault(
                f"{origin}: gpus id", f"{quoted(gpu.id)} is given twice", "Give each GPU its own id."
            )
        ids.add(gpu.id)
        for uuid in (gpu.uuid, *(item.uuid for item in gpu.instances)):
            if uuid in uuids:
                raise InputFault(
                    f"{origin}: {gpu.id}", f"has the UUID {quoted(uuid)} a second time", "Capture it anew."
                )
            if uuid is not None:
                uuids.add(uuid)
        try:
            kind = gpu_type(gpu.type)
        except InputFault as fault:
            raise InputFault(f"{origin}: {gpu.id}", fault.problem, fault.remedy) from fault
        _check_instances(gpu, kind, f"{origin}: {gpu.id}")


def _check_instances(gpu: StateGpu, kind: GpuType, where: str) -> None:
    fault = layout_fault(kind, [PlacedProfile(item.profile, item.start) for item in gpu.instances])
    if fault is not None:
        raise InputFault(
            where,
            f"has instances that no {gpu.type} can have: {fault}",
            "Capture it anew, or correct the file.",
        )
    is_whole = any(item.profile == WHOLE_GPU for item in gpu.instances)
    if has_mig(kind) and gpu.instances and gpu.mig_enabled is is_whole:
        problem = (
            "runs whole although MIG mode is on" if is_whole else "has MIG instances although MIG mode is off"
        )
        raise InputFault(where, problem, "Capture it anew, or correct mig_enabled.")
    for item in gpu.instances:
        total = sum(tenant.share for tenant in item.planned_tenants)
        if total > _MOST_SHARES:
            raise InputFault(
                f"{where}: {slice_name(item.profile, item.start)}",
                f"has tenants whose shares add up to {total:.6g}",
                "Shares of one instance add up to 1 at most.",
            )

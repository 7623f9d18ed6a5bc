"""An outcome rechecked from the request alone: no solver, no formulation, none of their data.

It shares with the planner only the catalogue and the list of the fleet's GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchsplit_core.hardware import gpu_type, plain_profiles
from torchsplit_core.hardware.layouts import layout_fault
from torchsplit_core.planning.fleet import FleetGpu, list_gpus
from torchsplit_core.planning.request_hash import request_hash
from torchsplit_core.planning.verify_models import check_models
from torchsplit_core.planning.verify_objective import check_objective
from torchsplit_core.values import (
    InternalFault,
    PlacedProfile,
    PlannedGpu,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    Point,
    Tenant,
)

TOLERANCE = 1e-6
"""Relative tolerance of sums and limits."""


def verify(request: PlanRequest, outcome: PlanOutcome) -> None:
    """Raise InternalFault with the first thing in which the outcome breaks the request or the contract."""
    for fault in violations(request, outcome):
        raise InternalFault(f"The plan fails its check: {fault}")


def violations(request: PlanRequest, outcome: PlanOutcome) -> Iterator[str]:
    """Everything that is wrong with the outcome, in words; nothing for a sound one."""
    if outcome.request_sha256 != request_hash(request):
        yield "it answers another request"
        return
    if outcome.status in ("infeasible", "timeout"):
        if outcome.gpus or outcome.models or outcome.objective.value is not None:
            yield f"status {outcome.status} with a plan"
        if outcome.status == "timeout" and outcome.conflicts:
            yield "a timeout with conflicts"
        return
    if outcome.conflicts or outcome.least_relaxation is not None:
        yield "a plan with conflicts"
    found = list(_gpus(request, outcome))
    yield from found
    if found:
        # What follows looks up points and sums over slices: it needs a sound placement.
        return
    found = list(check_models(request, outcome))
    yield from found
    if not found:
        yield from check_objective(request, outcome)


def _gpus(request: PlanRequest, outcome: PlanOutcome) -> Iterator[str]:
    fleet = list_gpus(request.gpus)
    if [(gpu.id, gpu.type) for gpu in fleet] != [(gpu.id, gpu.type) for gpu in outcome.gpus]:
        yield "its GPUs are not those of the request"
        return
    for given, planned in zip(fleet, outcome.gpus, strict=True):
        found = list(_layout(given, planned))
        yield from found
        if found:
            continue
        for item in planned.slices:
            where = f"{planned.id} {item.profile} at {item.start}"
            yield from (f"{where}: {fault}" for fault in _slice(request, given, item))


def _layout(given: FleetGpu, planned: PlannedGpu) -> Iterator[str]:
    busy = any(item.tenants for item in planned.slices)
    if planned.used != busy:
        yield f"{planned.id}: used is {planned.used} though it has {'a' if busy else 'no'} tenant"
    if not planned.used:
        if planned.slices:
            yield f"{planned.id}: not used but has slices"
        return
    gpu = gpu_type(planned.type)
    fault = layout_fault(gpu, [PlacedProfile(item.profile, item.start) for item in planned.slices])
    if fault is not None:
        yield f"{planned.id}: {fault}"
        return
    names = tuple(sorted(item.profile for item in planned.slices))
    if given.layouts is None:
        plain = {profile.name for profile in plain_profiles(gpu)}
        if not plain.issuperset(names):
            yield f"{planned.id}: {', '.join(sorted(set(names) - plain))} is no plain profile"
    elif names not in given.layouts:
        yield f"{planned.id}: layout {list(names)} was not offered"


def _slice(request: PlanRequest, given: FleetGpu, item: PlannedSlice) -> Iterator[str]:
    size = gpu_type(given.type).profile(item.profile).memory_gib
    points = []
    for tenant in item.tenants:
        point = find_point(request, given.type, item.profile, tenant)
        if point is None:
            yield f"{tenant.model} uses a point that the request has not got"
            return
        points.append(point)
        if not tenant.share > 0:
            yield f"{tenant.model} has share {tenant.share}"
        if not _same(tenant.throughput_rps, tenant.share * point.throughput_rps):
            yield f"{tenant.model} claims {tenant.throughput_rps} requests/s"
        if tenant.memory_gib != point.memory_gib:
            yield f"{tenant.model} claims {tenant.memory_gib} GiB"
    if request.sharing == "exclusive":
        if len(item.tenants) > 1 or any(tenant.share != 1.0 for tenant in item.tenants):
            yield "an exclusive slice is shared"
    elif sum(tenant.share for tenant in item.tenants) > 1 + TOLERANCE:
        yield "its shares add up to more than 1"
    elif request.max_tenants_per_slice is not None and len(item.tenants) > request.max_tenants_per_slice:
        yield f"{len(item.tenants)} tenants"
    need = sum(point.memory_gib or 0.0 for point in points)
    limited = request.objective.memory_violation_penalty is None
    if limited and size is not None and need > size * (1 + TOLERANCE):
        yield f"its tenants need {need} GiB of {size}"


def find_point(request: PlanRequest, kind: str, profile: str, tenant: Tenant) -> Point | None:
    """The point of the request that a tenant on this slice uses; None where there is none."""
    wanted = (kind, profile, tenant.batch_size, tenant.processes)
    for model in request.models:
        if model.name != tenant.model:
            continue
        for variant in model.variants:
            if variant.name != tenant.variant:
                continue
            for stage in variant.stages:
                if stage.name != tenant.stage:
                    continue
                for point in stage.points:
                    if (point.gpu_type, point.profile, point.batch_size, point.processes) == wanted:
                        return point
    return None


def _same(first: float, second: float) -> bool:
    return abs(first - second) <= TOLERANCE * max(abs(first), abs(second))

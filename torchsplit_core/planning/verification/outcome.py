"""Verifies an outcome from its request alone: no solver, no formulation, none of their data.

It shares with the planner only the catalogue, the list of the fleet's GPUs and the request's hash. Faults are values:
manual plans show them all, `verify` raises the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.verification.claims import (
    REPLAN,
    TOLERANCE,
    false_claim,
    find_point,
    same,
    throughput,
)
from torchsplit_core.planning.verification.cost import check_costs
from torchsplit_core.planning.verification.engines import engine_faults, group_faults, per_gpu
from torchsplit_core.planning.verification.flows import flow_faults
from torchsplit_core.planning.verification.layout import layout_faults
from torchsplit_core.planning.verification.models import check_models, demand_faults
from torchsplit_core.planning.verification.objective import check_objective, check_samples_held
from torchsplit_core.planning.verification.touched import is_untouched, touch_faults
from torchsplit_core.values import (
    InternalFault,
    PlanFault,
    PlannedGpu,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    Tenant,
    slice_name,
)

__all__ = ["demand_faults", "slice_faults", "verify", "violations"]


def verify(request: PlanRequest, outcome: PlanOutcome) -> None:
    """Raise InternalFault for the first thing in which the outcome breaks the request or the contract."""
    for fault in violations(request, outcome):
        raise InternalFault(f"The plan fails its check: {fault}")


def violations(request: PlanRequest, outcome: PlanOutcome) -> Iterator[PlanFault]:
    """Everything that is wrong with the outcome."""
    if outcome.request_sha256 != request_hash(request):
        yield false_claim("answers another request: its request_sha256 is not that of this one")
        return
    if outcome.status in ("infeasible", "timeout"):
        if outcome.gpus or outcome.models or outcome.objective.value is not None:
            yield false_claim(f"is {outcome.status}, and has GPUs, models or a value")
        if outcome.status == "timeout" and outcome.conflicts:
            yield false_claim("is a timeout, and has conflicts")
        return
    if outcome.conflicts or outcome.least_relaxation is not None:
        yield false_claim("is a plan, and has conflicts or a relaxation")
    for check in (
        lambda: _fleet_faults(request, outcome),
        lambda: (*_use_faults(request, outcome.gpus), *slice_faults(request, outcome.gpus)),
        lambda: _point_faults(request, outcome.gpus),
        lambda: (*demand_faults(request, outcome.gpus), *check_models(request, outcome)),
        lambda: (*check_objective(request, outcome), *check_samples_held(request, outcome)),
        lambda: flow_faults(request, outcome),
        lambda: check_costs(request, outcome),
        lambda: touch_faults(request, outcome),
    ):
        faults = tuple(check())
        yield from faults
        if faults:
            # The checks below look up points and sum over slices, so everything above must be valid.
            return


def _fleet_faults(request: PlanRequest, outcome: PlanOutcome) -> Iterator[PlanFault]:
    fleet = list_gpus(request.gpus)
    if [(gpu.id, gpu.type) for gpu in fleet] != [(gpu.id, gpu.type) for gpu in outcome.gpus]:
        yield false_claim("its GPUs are not those of the request, in their order")


def _use_faults(request: PlanRequest, gpus: Iterable[PlannedGpu]) -> Iterator[PlanFault]:
    limited = request.objective.max_touched_gpus is not None
    for gpu in gpus:
        busy = any(item.tenants for item in gpu.slices)
        if gpu.used != busy:
            yield false_claim(f"used is {gpu.used}, and it has {'a' if busy else 'no'} tenant", gpu=gpu.id)
        # Where changes are limited, instances on which nothing runs may stay.
        if not gpu.used and gpu.slices and not (limited and is_untouched(request, gpu)):
            yield false_claim(f"is not used, and has {len(gpu.slices)} slices", gpu=gpu.id)


def slice_faults(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> Iterator[PlanFault]:
    """Impossible slices, and impossible shares and numbers of their tenants, GPU by GPU; groups of GPUs that are none.

    The GPUs are some of the fleet's, by id; tenants need a share, but no point yet.
    """
    fleet = {gpu.id: gpu for gpu in list_gpus(request.gpus)}
    # Large fleets repeat a few layouts.
    sound: set[object] = set()
    for planned in gpus:
        fleet_gpu = fleet[planned.id]
        layout = (
            fleet_gpu.type,
            fleet_gpu.layouts,
            fleet_gpu.either,
            tuple((item.profile, item.start) for item in planned.slices),
        )
        if layout not in sound:
            faults = tuple(layout_faults(fleet_gpu, planned.slices))
            yield from faults
            if not faults:
                sound.add(layout)
        for item in planned.slices:
            yield from (_exclusive_faults if request.sharing == "exclusive" else _sharing_faults)(
                request, planned.id, item
            )
    yield from group_faults(request, gpus)


def _exclusive_faults(request: PlanRequest, gpu: str, item: PlannedSlice) -> Iterator[PlanFault]:
    for tenant in item.tenants[1:]:
        problem = f"stands beside {item.tenants[0].model}, and whole slices are not shared"
        yield _tenant_fault(gpu, item, tenant, problem, "Take one away, or plan with sharing.")
    for tenant in item.tenants:
        if tenant.share != 1.0:
            problem = f"has a share of {tenant.share:.3g}, and whole slices are not shared"
            yield _tenant_fault(gpu, item, tenant, problem, "Leave the share out.")


def _sharing_faults(request: PlanRequest, gpu: str, item: PlannedSlice) -> Iterator[PlanFault]:
    for tenant in item.tenants:
        if not (math.isfinite(tenant.share) and tenant.share > 0):
            problem = f"has a share of {tenant.share:.3g}, not above 0"
            yield _tenant_fault(gpu, item, tenant, problem, "Take from the others' shares.")
    total, most = sum(tenant.share for tenant in item.tenants), request.max_tenants_per_slice
    if total > 1 + TOLERANCE:
        yield _tenant_fault(gpu, item, None, f"the shares add up to {total:.7g}, above 1", "Lower them.")
    if most is not None and len(item.tenants) > most:
        problem = f"has {len(item.tenants)} tenants, at most {most} are allowed"
        yield _tenant_fault(gpu, item, None, problem, "Move one to another slice.")


def _point_faults(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> Iterator[PlanFault]:
    """Tenants without a point of the request, or with figures that the point does not give."""
    models = {model.name: model for model in request.models}
    for gpu in gpus:
        for item in gpu.slices:
            for tenant in item.tenants:
                model = models.get(tenant.model)
                point = None if model is None else find_point(model, gpu.type, item.profile, tenant)
                if point is None:
                    problem = (
                        f"uses a point that the request does not have: {tenant.variant}, {tenant.stage}, "
                        f"batch {tenant.batch_size} × {tenant.processes}"
                    )
                    yield _tenant_fault(gpu.id, item, tenant, problem, REPLAN)
                    continue
                rate = tenant.share * throughput(request, point)
                if not same(tenant.throughput_rps, rate):
                    problem = (
                        f"claims {tenant.throughput_rps} requests/s, and its share of its point gives {rate}"
                    )
                    yield _tenant_fault(gpu.id, item, tenant, problem, REPLAN)
                claimed = (tenant.basis, tenant.low_rps, tenant.high_rps)
                low, high = (per_gpu(point, end) for end in (point.low_rps, point.high_rps))
                if tenant.basis is not None and claimed != (point.basis, low, high):
                    problem = (
                        f"claims {tenant.basis}, {tenant.low_rps} to {tenant.high_rps} requests/s, and its point "
                        f"is {point.basis}, {low} to {high}"
                    )
                    yield _tenant_fault(gpu.id, item, tenant, problem, REPLAN)
                yield from engine_faults(gpu.id, item, tenant, point)
                if tenant.memory_gib != point.memory_gib:
                    problem = f"claims {tenant.memory_gib} GiB, and its point needs {point.memory_gib}"
                    yield _tenant_fault(gpu.id, item, tenant, problem, REPLAN)


def _tenant_fault(
    gpu: str, item: PlannedSlice, tenant: Tenant | None, problem: str, remedy: str
) -> PlanFault:
    model = None if tenant is None else tenant.model
    return PlanFault(gpu, slice_name(item.profile, item.start), model, problem, remedy)

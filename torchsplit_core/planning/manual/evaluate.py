"""Evaluates a manual plan: all faults at once, and its figures by the rules of every plan.

A person chooses the slices of a GPU and the models on them. The rest is chosen: the variant with the named stages, else
with the fewest; equal shares of a slice's rest; for every tenant the point with the most requests/s with which the
model's latency limit is kept and its slowest stage is as fast as possible.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.planning.manual.completion import choose_points, choose_variants
from torchsplit_core.planning.manual.values import ManualGpu, ManualInstance, ManualSlice, ManualTenant
from torchsplit_core.planning.outcome.figures import bound_for, unproven_outcome
from torchsplit_core.planning.request.fleet import FleetGpu, list_gpus
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.planning.verification.outcome import demand_faults, slice_faults, verify
from torchsplit_core.values import (
    WHOLE_GPU,
    ObjectiveValue,
    PlanFault,
    PlannedGpu,
    PlannedModel,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Tenant,
    slice_name,
)
from torchsplit_core.values.errors import quoted, suggestion

__all__ = ["ManualGpu", "ManualOutcome", "ManualSlice", "ManualTenant", "evaluate", "from_plan"]


@dataclass(frozen=True, slots=True)
class ManualOutcome:
    """`outcome` is the verified plan, None if there are `faults`. `notes`: legal but worth knowing.

    `models` and `objective` are computed even if a demand is missed; empty and None for impossible slices.
    """

    faults: tuple[PlanFault, ...]
    notes: tuple[str, ...]
    models: tuple[PlannedModel, ...]
    objective: ObjectiveValue | None
    outcome: PlanOutcome | None


def from_plan(outcome: PlanOutcome) -> tuple[ManualGpu, ...]:
    """A plan as a manual plan with everything named, ready to be edited."""
    return tuple(
        ManualGpu(
            gpu.id,
            tuple(
                ManualSlice(
                    item.profile, item.start, tuple(_manual_tenant(tenant) for tenant in item.tenants)
                )
                for item in gpu.slices
            ),
        )
        for gpu in outcome.gpus
    )


def _manual_tenant(tenant: Tenant) -> ManualTenant:
    group = None if tenant.engine is None else tenant.engine.group
    return ManualTenant(
        tenant.model, tenant.variant, tenant.stage, tenant.batch_size, tenant.processes, tenant.share,
        tenant.gpus, group,
    )  # fmt: skip


def evaluate(
    request: PlanRequest, gpus: Sequence[ManualGpu], plan: PlanOutcome | None = None
) -> ManualOutcome:
    """Evaluate these GPUs; the others are unused. `plan` of the same request lends its bound.

    Raises InputFault if the request breaks a rule or `plan` answers another one; everything wrong with the GPUs is
    among the faults.
    """
    begun = time.perf_counter()
    validate(request)
    if plan is not None:
        bound_for(request, plan)
    fleet = {gpu.id: gpu for gpu in list_gpus(request.gpus)}
    known_gpus = [manual_gpu for manual_gpu in gpus if manual_gpu.id in fleet]
    by_slice = [
        [_instances(request, fleet[manual_gpu.id], item) for item in manual_gpu.slices]
        for manual_gpu in known_gpus
    ]
    instances = [
        instance for slices in by_slice for slice_instances in slices for instance in slice_instances
    ]
    unknown = [
        fault
        for manual_gpu in known_gpus
        for item in manual_gpu.slices
        for fault in _unknown_models(request, manual_gpu.id, item)
    ]
    unknown += choose_variants(request, instances)
    unknown += choose_points(request, instances)
    planned_gpus = tuple(
        _to_planned_gpu(request, fleet[manual_gpu.id], manual_gpu, slice_instances)
        for manual_gpu, slice_instances in zip(known_gpus, by_slice, strict=True)
    )
    faults = (*_gpu_faults(gpus, fleet), *slice_faults(request, planned_gpus))
    notes = tuple(
        f"{gpu.id} has slices but no tenant: the plan leaves it unused."
        for gpu in planned_gpus
        if gpu.slices and not gpu.used
    )
    if unknown or any(not math.isfinite(instance.share) or instance.share <= 0 for instance in instances):
        return ManualOutcome((*faults, *unknown), notes, (), None, None)
    broken = tuple(demand_faults(request, planned_gpus))
    if faults:
        return ManualOutcome((*faults, *broken), notes, (), None, None)
    planned = _whole_fleet(fleet.values(), planned_gpus)
    # GPUs that miss a demand are no plan of the request, so its bounds do not apply.
    statistics = PlanStatistics(time.perf_counter() - begun, 0.0, 0.0, "none")
    outcome = unproven_outcome(request, planned, statistics, None if broken else plan)
    if broken:
        return ManualOutcome(broken, notes, outcome.models, outcome.objective, None)
    verify_begun = time.perf_counter()
    verify(request, outcome)
    statistics = replace(statistics, verify_s=time.perf_counter() - verify_begun)
    return ManualOutcome(
        (), notes, outcome.models, outcome.objective, replace(outcome, statistics=statistics)
    )


def _gpu_faults(gpus: Sequence[ManualGpu], fleet: Mapping[str, FleetGpu]) -> Iterator[PlanFault]:
    for gpu in gpus:
        if gpu.id not in fleet:
            problem = f"unknown GPU {quoted(gpu.id)}"
            yield PlanFault(None, None, None, problem, suggestion(gpu.id, fleet, "GPUs"))
    for name, count in Counter(gpu.id for gpu in gpus).items():
        if count > 1:
            yield PlanFault(name, None, None, f"is given {count} times", "Drop all but one.")


def _instances(request: PlanRequest, fleet_gpu: FleetGpu, item: ManualSlice) -> list[ManualInstance]:
    """Instances of the tenants that are models of the request, with their shares."""
    known = {model.name for model in request.models}
    tenants = [tenant for tenant in item.tenants if tenant.model in known]
    free = 1.0 - sum(tenant.share for tenant in tenants if tenant.share is not None)
    open_ = sum(tenant.share is None for tenant in tenants)
    equal = 1.0 if request.sharing == "exclusive" else free / max(1, open_)
    return [
        ManualInstance(
            fleet_gpu, item.profile, item.start, tenant, equal if tenant.share is None else tenant.share
        )
        for tenant in tenants
    ]


def _unknown_models(request: PlanRequest, gpu: str, item: ManualSlice) -> Iterator[PlanFault]:
    known = [model.name for model in request.models]
    where = slice_name(item.profile, item.start)
    for name in (tenant.model for tenant in item.tenants if tenant.model not in known):
        remedy = suggestion(name, known, "models")
        yield PlanFault(gpu, where, None, f"unknown model {quoted(name)}", remedy)


def _to_planned_gpu(
    request: PlanRequest,
    fleet_gpu: FleetGpu,
    manual_gpu: ManualGpu,
    by_slice: Sequence[Sequence[ManualInstance]],
) -> PlannedGpu:
    """The GPU as requested, with the choices made so far."""
    slices = tuple(
        PlannedSlice(
            item.profile, item.start, tuple(instance.tenant(request) for instance in slice_instances)
        )
        for item, slice_instances in zip(manual_gpu.slices, by_slice, strict=True)
    )
    used = any(item.tenants for item in manual_gpu.slices)
    mig = all(item.profile != WHOLE_GPU for item in slices) if fleet_gpu.either and used else None
    groups = (tenant.group for item in manual_gpu.slices for tenant in item.tenants)
    return PlannedGpu(fleet_gpu.id, fleet_gpu.type, used, slices, mig, next(groups, None))


def _whole_fleet(fleet: Iterable[FleetGpu], planned_gpus: Sequence[PlannedGpu]) -> tuple[PlannedGpu, ...]:
    """The whole fleet: slices in the order of their slots; GPUs without a tenant have none."""
    used = {gpu.id: gpu for gpu in planned_gpus if gpu.used}
    return tuple(
        replace(used[gpu.id], slices=tuple(sorted(used[gpu.id].slices, key=lambda item: item.start)))
        if gpu.id in used
        else PlannedGpu(gpu.id, gpu.type, False)
        for gpu in fleet
    )

"""A plan made by hand: every fault at once, and what it gives, by the rules of every other plan.

A person says which slices a GPU has and which model runs on them; what is left open is chosen:
the variant from the stages named, else the one with the fewest stages; equal shares of what is
left of a slice; and for every tenant the point with the most requests/s, so that the model's
latency limit is kept and its slowest stage is as fast as can be.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.planning.manual.points import choose_points, choose_variants
from torchsplit_core.planning.manual.values import HandGpu, HandInstance, HandSlice, HandTenant
from torchsplit_core.planning.outcome.figures import bound_for, unproven_outcome
from torchsplit_core.planning.request.fleet import FleetGpu, list_gpus
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.planning.verification.outcome import demand_faults, slice_faults, verify
from torchsplit_core.values import (
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

__all__ = ["HandGpu", "HandOutcome", "HandSlice", "HandTenant", "evaluate", "from_plan"]


@dataclass(frozen=True, slots=True)
class HandOutcome:
    """`outcome` is the verified plan, None where there are `faults`. `models` and `objective` are what it
    gives, also where a demand is broken; empty and None where slices or tenants cannot be as they are.
    `notes` tell what is legal but worth knowing."""

    faults: tuple[PlanFault, ...]
    notes: tuple[str, ...]
    models: tuple[PlannedModel, ...]
    objective: ObjectiveValue | None
    outcome: PlanOutcome | None


def from_plan(outcome: PlanOutcome) -> tuple[HandGpu, ...]:
    """A plan as if made by hand, everything named, ready to be edited."""
    return tuple(
        HandGpu(
            gpu.id,
            tuple(
                HandSlice(item.profile, item.start, tuple(_hand_tenant(tenant) for tenant in item.tenants))
                for item in gpu.slices
            ),
        )
        for gpu in outcome.gpus
    )


def _hand_tenant(tenant: Tenant) -> HandTenant:
    return HandTenant(
        tenant.model, tenant.variant, tenant.stage, tenant.batch_size, tenant.processes, tenant.share
    )


def evaluate(request: PlanRequest, gpus: Sequence[HandGpu], plan: PlanOutcome | None = None) -> HandOutcome:
    """What the GPUs named give, those not named being unused. `plan` of the same request lends its bound.

    Raises InputFault where the request breaks a rule or `plan` answers another one; everything
    wrong with the GPUs themselves is among the faults.
    """
    begun = time.perf_counter()
    validate(request)
    if plan is not None:
        bound_for(request, plan)
    fleet = {gpu.id: gpu for gpu in list_gpus(request.gpus)}
    known = [hand for hand in gpus if hand.id in fleet]
    by_slice = [[_instances(request, fleet[hand.id], item) for item in hand.slices] for hand in known]
    instances = [instance for slices in by_slice for mine in slices for instance in mine]
    unknown = [
        fault for hand in known for item in hand.slices for fault in _strangers(request, hand.id, item)
    ]
    unknown += choose_variants(request, instances)
    unknown += choose_points(request, instances)
    drawn = tuple(
        _drawn(request, fleet[hand.id], hand, mine) for hand, mine in zip(known, by_slice, strict=True)
    )
    faults = (*_gpu_faults(gpus, fleet), *slice_faults(request, drawn))
    notes = tuple(
        f"{gpu.id} has slices but no tenant: the plan leaves it unused."
        for gpu in drawn
        if gpu.slices and not gpu.used
    )
    if unknown or any(not math.isfinite(instance.share) or instance.share <= 0 for instance in instances):
        return HandOutcome((*faults, *unknown), notes, (), None, None)
    broken = tuple(demand_faults(request, drawn))
    if faults:
        return HandOutcome((*faults, *broken), notes, (), None, None)
    planned = _planned(fleet.values(), drawn)
    # What breaks a demand is no plan of the request, so no bound of one speaks of it.
    spent = PlanStatistics(time.perf_counter() - begun, 0.0, 0.0, "none")
    outcome = unproven_outcome(request, planned, spent, None if broken else plan)
    if broken:
        return HandOutcome(broken, notes, outcome.models, outcome.objective, None)
    checked = time.perf_counter()
    verify(request, outcome)
    spent = replace(spent, verify_s=time.perf_counter() - checked)
    return HandOutcome((), notes, outcome.models, outcome.objective, replace(outcome, statistics=spent))


def _gpu_faults(gpus: Sequence[HandGpu], fleet: Mapping[str, FleetGpu]) -> Iterator[PlanFault]:
    for gpu in gpus:
        if gpu.id not in fleet:
            problem = f"unknown GPU {quoted(gpu.id)}"
            yield PlanFault(None, None, None, problem, suggestion(gpu.id, fleet, "GPUs"))
    for name, count in Counter(gpu.id for gpu in gpus).items():
        if count > 1:
            yield PlanFault(name, None, None, f"is given {count} times", "Drop all but one.")


def _instances(request: PlanRequest, given: FleetGpu, item: HandSlice) -> list[HandInstance]:
    """Instances of the tenants that are models of the request, shares divided."""
    known = {model.name for model in request.models}
    mine = [tenant for tenant in item.tenants if tenant.model in known]
    free = 1.0 - sum(tenant.share for tenant in mine if tenant.share is not None)
    open_ = sum(tenant.share is None for tenant in mine)
    equal = 1.0 if request.sharing == "exclusive" else free / max(1, open_)
    return [
        HandInstance(given, item.profile, item.start, tenant, equal if tenant.share is None else tenant.share)
        for tenant in mine
    ]


def _strangers(request: PlanRequest, gpu: str, item: HandSlice) -> Iterator[PlanFault]:
    known = [model.name for model in request.models]
    where = slice_name(item.profile, item.start)
    for name in (tenant.model for tenant in item.tenants if tenant.model not in known):
        remedy = suggestion(name, known, "models")
        yield PlanFault(gpu, where, None, f"unknown model {quoted(name)}", remedy)


def _drawn(
    request: PlanRequest, given: FleetGpu, hand: HandGpu, by_slice: Sequence[Sequence[HandInstance]]
) -> PlannedGpu:
    """The GPU as it was asked for, with what was chosen by now."""
    slices = tuple(
        PlannedSlice(item.profile, item.start, tuple(instance.tenant(request) for instance in mine))
        for item, mine in zip(hand.slices, by_slice, strict=True)
    )
    return PlannedGpu(given.id, given.type, any(item.tenants for item in hand.slices), slices)


def _planned(fleet: Iterable[FleetGpu], drawn: Sequence[PlannedGpu]) -> tuple[PlannedGpu, ...]:
    """The whole fleet: slices in the order of their slots, none on a GPU that has no tenant."""
    used = {gpu.id: gpu for gpu in drawn if gpu.used}
    return tuple(
        replace(used[gpu.id], slices=tuple(sorted(used[gpu.id].slices, key=lambda item: item.start)))
        if gpu.id in used
        else PlannedGpu(gpu.id, gpu.type, False)
        for gpu in fleet
    )

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.planning.fleet import FleetGpu, list_gpus
from torchsplit_core.planning.hand_demands import demand_faults
from torchsplit_core.planning.hand_layout import layout_faults
from torchsplit_core.planning.hand_points import choose_points, choose_variants
from torchsplit_core.planning.hand_values import HandFault, HandGpu, HandSeat, HandSlice, HandTenant, place
from torchsplit_core.planning.reckon import first_bound, reckon, reckon_models
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.planning.validate import validate
from torchsplit_core.planning.verify import verify
from torchsplit_core.values import (
    ObjectiveValue,
    PlannedGpu,
    PlannedModel,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Tenant,
)

__all__ = ["HandFault", "HandGpu", "HandOutcome", "HandSlice", "HandTenant", "evaluate", "from_plan"]


@dataclass(frozen=True, slots=True)
class HandOutcome:
    """`outcome` is the verified plan, None where there are `faults`. `models` and `objective` are what it
    gives, also where a demand is broken; empty and None where slices or tenants cannot be as they are.
    `notes` tell what is legal but worth knowing."""

    faults: tuple[HandFault, ...]
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
        first_bound(request, plan)
    fleet = {gpu.id: gpu for gpu in list_gpus(request.gpus)}
    faults = _known_gpus(gpus, fleet)
    notes: list[str] = []
    seats: list[HandSeat] = []
    unknown: list[HandFault] = []
    for hand in gpus:
        if hand.id not in fleet:
            continue
        given = fleet[hand.id]
        if hand.slices:
            faults += layout_faults(given, [(item.profile, item.start) for item in hand.slices])
        if hand.slices and not any(item.tenants for item in hand.slices):
            notes.append(f"{hand.id} has slices but no tenant: the plan leaves it unused.")
        for item in hand.slices:
            found, strangers = _models_of(request, given, item)
            unknown += strangers
            seats += found
            faults += _shares(request, found)
    unknown += choose_variants(request, seats)
    unknown += choose_points(request, seats)
    if unknown or any(not math.isfinite(seat.share) or seat.share <= 0 for seat in seats):
        return HandOutcome((*faults, *unknown), tuple(notes), (), None, None)
    planned = _planned(fleet.values(), seats, gpus)
    broken = tuple(demand_faults(request, seats, reckon_models(request, planned)))
    if faults:
        return HandOutcome((*faults, *broken), tuple(notes), (), None, None)
    # What breaks a demand is no plan of the request, so no bound of one speaks of it.
    spent = PlanStatistics(time.perf_counter() - begun, 0.0, 0.0, "none")
    outcome = reckon(request, planned, spent, None if broken else plan)
    if broken:
        return HandOutcome(broken, tuple(notes), outcome.models, outcome.objective, None)
    checked = time.perf_counter()
    verify(request, outcome)
    spent = replace(spent, verify_s=time.perf_counter() - checked)
    return HandOutcome(
        (), tuple(notes), outcome.models, outcome.objective, replace(outcome, statistics=spent)
    )


def _known_gpus(gpus: Sequence[HandGpu], fleet: Mapping[str, FleetGpu]) -> list[HandFault]:
    known = [*list(fleet)[:8], "…"] if len(fleet) > 8 else list(fleet)
    faults = [
        HandFault(
            gpu.id, None, None, gpu.id, "the fleet has no such GPU", f"Its GPUs are {', '.join(known)}."
        )
        for gpu in gpus
        if gpu.id not in fleet
    ]
    return faults + [
        HandFault(name, None, None, f"{count} times", "every GPU stands once", "Drop all but one.")
        for name, count in Counter(gpu.id for gpu in gpus).items()
        if count > 1
    ]


def _models_of(
    request: PlanRequest, given: FleetGpu, item: HandSlice
) -> tuple[list[HandSeat], list[HandFault]]:
    """Seats of the tenants, shares divided; and the tenants that are no model of the request."""
    known = [model.name for model in request.models]
    mine = [tenant for tenant in item.tenants if tenant.model in known]
    free = 1.0 - sum(tenant.share for tenant in mine if tenant.share is not None)
    open_ = sum(tenant.share is None for tenant in mine)
    equal = 1.0 if request.sharing == "exclusive" else free / max(1, open_)
    seats = [
        HandSeat(given, item.profile, item.start, tenant, equal if tenant.share is None else tenant.share)
        for tenant in mine
    ]
    return seats, [
        HandFault(
            given.id,
            place(item.profile, item.start),
            tenant.model,
            tenant.model,
            "the request has no such model",
            f"Known are {', '.join(known)}.",
        )
        for tenant in item.tenants
        if tenant.model not in known
    ]


def _shares(request: PlanRequest, seats: Sequence[HandSeat]) -> list[HandFault]:
    """Faults of the tenants of one slice as its co-tenants."""
    faults = []
    if request.sharing == "exclusive":
        for seat in seats[1:]:
            faults.append(
                seat.fault(
                    f"beside {seats[0].asked.model}",
                    "with whole slices a slice has one tenant",
                    "Take one away, or plan with sharing.",
                )
            )
        for seat in seats:
            if seat.share != 1.0:
                faults.append(
                    seat.fault(
                        f"share {seat.share:.3g}", "a whole slice is a share of 1", "Leave the share out."
                    )
                )
        return faults
    for seat in seats:
        if not (math.isfinite(seat.share) and seat.share > 0):
            faults.append(
                seat.fault(f"share {seat.share:.3g}", "a share is above 0", "Take from the others' shares.")
            )
    total = sum(seat.share for seat in seats)
    if total > 1 + TOLERANCE:
        faults.append(
            replace(
                seats[0].fault(f"{total:.3g}", "shares add up to 1 at most", "Lower them."),
                model=None,
            )
        )
    most = request.max_tenants_per_slice
    if most is not None and len(seats) > most:
        faults.append(
            replace(
                seats[0].fault(
                    f"{len(seats)} tenants", f"a slice has at most {most}", "Move one to another slice."
                ),
                model=None,
            )
        )
    return faults


def _planned(
    fleet: Iterable[FleetGpu], seats: Sequence[HandSeat], gpus: Sequence[HandGpu]
) -> tuple[PlannedGpu, ...]:
    tenants: dict[tuple[str, str, int], list[Tenant]] = {}
    for seat in seats:
        assert seat.variant is not None and seat.stage is not None and seat.point is not None
        tenants.setdefault((seat.gpu.id, seat.profile, seat.start), []).append(
            Tenant(
                seat.asked.model,
                seat.variant.name,
                seat.stage.name,
                seat.share,
                seat.point.batch_size,
                seat.point.processes,
                seat.share * seat.point.throughput_rps,
                seat.point.memory_gib,
            )
        )
    slices = {gpu.id: gpu.slices for gpu in gpus}
    used = {seat.gpu.id for seat in seats}
    return tuple(
        PlannedGpu(
            gpu.id,
            gpu.type,
            gpu.id in used,
            tuple(
                PlannedSlice(
                    item.profile, item.start, tuple(tenants.get((gpu.id, item.profile, item.start), ()))
                )
                for item in sorted(slices[gpu.id], key=lambda item: item.start)
            )
            if gpu.id in used
            else (),
        )
        for gpu in fleet
    )

"""Transfers plans to another fleet: an equal one with other GPU ids, or a similar one as a warm start."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.planning.outcome.cost import with_costs
from torchsplit_core.planning.request.equivalence import ordered_gpus
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.verification.outcome import violations
from torchsplit_core.values import PlannedGpu, PlanOutcome, PlanRequest


def with_canonical_ids(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    """The outcome in the form common to all equal requests: GPUs in a fixed order with numbers as ids, without the
    explanation, since that names GPUs."""
    by_id = {gpu.id: gpu for gpu in outcome.gpus}
    gpus = tuple(
        replace(by_id[gpu.id], id=str(number))
        for number, gpu in enumerate(ordered_gpus(request))
        if gpu.id in by_id
    )
    return replace(outcome, gpus=gpus, explanation=None)


def with_request_ids(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome | None:
    """An outcome of `with_canonical_ids` with the GPU ids of an equal request; None if it does not answer it."""
    fleet = ordered_gpus(request)
    if outcome.gpus and len(fleet) != len(outcome.gpus):
        return None
    by_id = {
        own_gpu.id: replace(planned, id=own_gpu.id)
        for own_gpu, planned in zip(fleet, outcome.gpus, strict=False)
    }
    gpus = tuple(by_id[gpu.id] for gpu in list_gpus(request.gpus) if gpu.id in by_id)
    # Recompute the costs: equal requests may differ in prices, since the planner treats a missing price as 1.
    renamed = with_costs(request, replace(outcome, gpus=gpus, request_sha256=request_hash(request)))
    return None if any(violations(request, renamed)) else renamed


def move_to_fleet(request: PlanRequest, outcome: PlanOutcome) -> tuple[PlannedGpu, ...]:
    """Move the used GPUs of another fleet's plan to this fleet: to the GPU with the same id and type, else to a free
    one of the type. GPUs without a free one are left out. Nothing is verified."""
    free = {gpu.id: gpu.type for gpu in list_gpus(request.gpus)}
    placed: list[PlannedGpu] = []
    unplaced: list[PlannedGpu] = []
    for gpu in outcome.gpus:
        if free.get(gpu.id) == gpu.type:
            del free[gpu.id]
            placed.append(gpu)
        elif gpu.used:
            unplaced.append(gpu)
    # GPUs that matched but are idle are free for the GPUs in use.
    free |= {gpu.id: gpu.type for gpu in placed if not gpu.used}
    placed = [gpu for gpu in placed if gpu.used]
    for gpu in unplaced:
        target = next((id for id, kind in free.items() if kind == gpu.type), None)
        if target is not None:
            del free[target]
            placed.append(replace(gpu, id=target))
    return tuple(placed)

"""Plans carried to another fleet: to an equal one whose GPUs have other ids, or to a similar one as a start."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.planning.outcome.cost import with_costs
from torchsplit_core.planning.request.equivalence import ordered_gpus
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.verification.outcome import violations
from torchsplit_core.values import PlannedGpu, PlanOutcome, PlanRequest


def with_canonical_ids(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    """The outcome as every equal request may have it: its GPUs in one order, numbered. Its explanation, which names
    GPUs, is left out."""
    by_id = {gpu.id: gpu for gpu in outcome.gpus}
    gpus = tuple(
        replace(by_id[gpu.id], id=str(number))
        for number, gpu in enumerate(ordered_gpus(request))
        if gpu.id in by_id
    )
    return replace(outcome, gpus=gpus, explanation=None)


def with_request_ids(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome | None:
    """An outcome of `with_canonical_ids` as the answer to an equal request; None where it is none."""
    fleet = ordered_gpus(request)
    if outcome.gpus and len(fleet) != len(outcome.gpus):
        return None
    by_id = {
        own_gpu.id: replace(planned, id=own_gpu.id)
        for own_gpu, planned in zip(fleet, outcome.gpus, strict=False)
    }
    gpus = tuple(by_id[gpu.id] for gpu in list_gpus(request.gpus) if gpu.id in by_id)
    # An equal question may have other prices: none is planned like 1.
    renamed = with_costs(request, replace(outcome, gpus=gpus, request_sha256=request_hash(request)))
    return None if any(violations(request, renamed)) else renamed


def move_to_fleet(request: PlanRequest, outcome: PlanOutcome) -> tuple[PlannedGpu, ...]:
    """The GPUs in use of a plan of another fleet, on those of this one: by id where the type is the same, the others on
    whatever of their type is left. What has no place is left out, and nothing is checked."""
    free = {gpu.id: gpu.type for gpu in list_gpus(request.gpus)}
    placed: list[PlannedGpu] = []
    unplaced: list[PlannedGpu] = []
    for gpu in outcome.gpus:
        if free.get(gpu.id) == gpu.type:
            del free[gpu.id]
            placed.append(gpu)
        elif gpu.used:
            unplaced.append(gpu)
    # GPUs that are there and idle give their place to work.
    free |= {gpu.id: gpu.type for gpu in placed if not gpu.used}
    placed = [gpu for gpu in placed if gpu.used]
    for gpu in unplaced:
        target = next((id for id, kind in free.items() if kind == gpu.type), None)
        if target is not None:
            del free[target]
            placed.append(replace(gpu, id=target))
    return tuple(placed)

"""Plans carried to another fleet: to an equal one whose GPUs have other ids, or to a similar one as a start."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.planning.outcome.money import with_money
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.question import ordered_gpus
from torchsplit_core.planning.verification.outcome import violations
from torchsplit_core.values import PlannedGpu, PlanOutcome, PlanRequest


def without_ids(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    """The outcome as every equal request may have it: its GPUs in one order, numbered. Its explanation, which names
    GPUs, is left out."""
    by_id = {gpu.id: gpu for gpu in outcome.gpus}
    gpus = tuple(
        replace(by_id[gpu.id], id=str(number))
        for number, gpu in enumerate(ordered_gpus(request))
        if gpu.id in by_id
    )
    return replace(outcome, gpus=gpus, explanation=None)


def with_ids(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome | None:
    """An outcome of `without_ids` as the answer to an equal request; None where it is none."""
    fleet = ordered_gpus(request)
    if outcome.gpus and len(fleet) != len(outcome.gpus):
        return None
    by_id = {
        mine.id: replace(planned, id=mine.id) for mine, planned in zip(fleet, outcome.gpus, strict=False)
    }
    gpus = tuple(by_id[gpu.id] for gpu in list_gpus(request.gpus) if gpu.id in by_id)
    # An equal question may have other prices: none is planned like 1.
    answer = with_money(request, replace(outcome, gpus=gpus, request_sha256=request_hash(request)))
    return None if any(violations(request, answer)) else answer


def moved(request: PlanRequest, outcome: PlanOutcome) -> tuple[PlannedGpu, ...]:
    """The GPUs in use of a plan of another fleet, on those of this one: by id where the type is the same, the others on
    whatever of their type is left. What has no place is left out, and nothing is checked."""
    free = {gpu.id: gpu.type for gpu in list_gpus(request.gpus)}
    taken: list[PlannedGpu] = []
    homeless: list[PlannedGpu] = []
    for gpu in outcome.gpus:
        if free.get(gpu.id) == gpu.type:
            del free[gpu.id]
            taken.append(gpu)
        elif gpu.used:
            homeless.append(gpu)
    # GPUs that are there and idle give their place to work.
    free |= {gpu.id: gpu.type for gpu in taken if not gpu.used}
    taken = [gpu for gpu in taken if gpu.used]
    for gpu in homeless:
        place = next((id for id, kind in free.items() if kind == gpu.type), None)
        if place is not None:
            del free[place]
            taken.append(replace(gpu, id=place))
    return tuple(taken)

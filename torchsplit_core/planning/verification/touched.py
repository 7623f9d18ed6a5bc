"""Part of the verification: which GPUs have other instances or tenants than now, against the limit and the claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator

from torchsplit_core.hardware.host_state.validity import tenant_key
from torchsplit_core.planning.verification.claims import false_claim
from torchsplit_core.values import (
    PlanFault,
    PlannedGpu,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    StateInstance,
)


def touch_faults(request: PlanRequest, outcome: PlanOutcome) -> Iterator[PlanFault]:
    """More GPUs touched than allowed, instances of others that would go, or a count that is not that of the GPUs."""
    if request.current is None:
        if outcome.touched_gpus is not None:
            yield false_claim("counts touched GPUs, and the request has no current state")
        return
    touched = sum(not is_untouched(request, gpu) for gpu in outcome.gpus)
    most = request.objective.max_touched_gpus
    if most is not None and touched > most:
        yield false_claim(f"touches {touched} GPUs, at most {most} are allowed")
    if outcome.touched_gpus is not None and outcome.touched_gpus != touched:
        yield false_claim(f"counts {outcome.touched_gpus} touched GPUs, and {touched} are")
    if most is not None:
        foreign = {gpu.id for gpu in request.current.gpus if any(item.foreign for item in gpu.instances)}
        for gpu in outcome.gpus:
            if gpu.id in foreign and not is_untouched(request, gpu):
                yield false_claim("changes a GPU that somebody else uses", gpu=gpu.id)


def is_untouched(request: PlanRequest, planned: PlannedGpu) -> bool:
    """Whether the GPU has the very instances, at their starts, and tenants of the request's current state.

    On a GPU that somebody else uses too, only the tenants that the plan names are compared.
    """
    states = request.current.gpus if request.current is not None else ()
    now = next((gpu.instances for gpu in states if gpu.id == planned.id), ())
    if any(item.foreign for item in now):
        present = {(item.profile, item.start): Counter(map(tenant_key, item.planned_tenants)) for item in now}
        drawn = {
            (item.profile, item.start): Counter(map(tenant_key, item.tenants)) for item in planned.slices
        }
        return present.keys() == drawn.keys() and all(drawn[place] <= present[place] for place in drawn)
    return _content(planned.slices) == _content(now)


def _content(items: Iterable[PlannedSlice | StateInstance]) -> dict[tuple[str, int], Counter[Hashable]]:
    return {
        (item.profile, item.start): Counter(
            map(tenant_key, item.planned_tenants if isinstance(item, StateInstance) else item.tenants)
        )
        for item in items
    }

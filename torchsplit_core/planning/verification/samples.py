"""Part of the verification: which demand samples are held, counted again from slices and tenants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torchsplit_core.planning.verification.claims import TOLERANCE, false_claim
from torchsplit_core.planning.verification.models import least_rates
from torchsplit_core.values import HeldSamples, PlanFault, PlannedGpu, PlanOutcome, PlanRequest


def share_held(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> float:
    """The share of the samples of which every model has its entry."""
    held, _ = _count(request, gpus)
    return held / len(request.models[0].demand_samples)


def samples_faults(request: PlanRequest, outcome: PlanOutcome, *, read: bool) -> Iterator[PlanFault]:
    """Faults in the outcome's samples, if the objective reads them; `read`: whether it does."""
    claimed = outcome.samples
    if not read:
        if claimed is not None or any(model.samples_held is not None for model in outcome.models):
            yield false_claim("counts samples, and the objective does not read them")
        return
    if claimed is None:
        yield false_claim("does not say which samples are held")
        return
    held, by_model = _count(request, outcome.gpus)
    count, share = len(request.models[0].demand_samples), request.objective.attainment
    required = None if share is None else math.ceil(share * count - 1e-9)
    if [model.samples_held for model in outcome.models] != by_model:
        yield false_claim(f"claims other samples by model than {by_model}")
    names = [
        model.name for model, number in zip(request.models, by_model, strict=True) if number == min(by_model)
    ]
    worst = names[0] if min(by_model) < count else None
    if claimed != HeldSamples(count, held, held / count, required, worst):
        yield false_claim(
            f"claims {claimed}, and it holds {held} of {count} samples, {required} are required"
        )
    if required is not None and held < required:
        problem = f"holds {held} of {count} samples, and {required} are required"
        yield PlanFault(None, None, None, problem, "Give models more slices, or lower the attainment.")


def _count(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> tuple[int, list[int]]:
    """The samples held, and by model those of which it has its own entry."""
    least = [rate * (1 + TOLERANCE) for rate in least_rates(request, gpus)]
    served = [
        [entry <= most for entry in model.demand_samples]
        for model, most in zip(request.models, least, strict=True)
    ]
    return sum(map(all, zip(*served, strict=True))), [sum(flags) for flags in served]

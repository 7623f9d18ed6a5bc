"""What a share of samples is worth: a plan for every second of them, judged by the others."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.planning.outcome.held_samples import counted_rates
from torchsplit_core.planning.request.objective import count_held, sample_count
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest

PLANNED, HELD_OUT = slice(0, None, 2), slice(1, None, 2)


def planned_samples(request: PlanRequest) -> PlanRequest:
    """The request with the first, third, … sample. Raises InputFault if that leaves none out."""
    counts = {len(model.demand_samples) for model in request.models}
    if min(counts, default=0) < 2:
        raise InputFault(
            "demand_samples", "has fewer than two samples, so none can be held out", "Give more samples."
        )
    return of_samples(request, PLANNED)


def of_samples(request: PlanRequest, chosen: slice) -> PlanRequest:
    """The request with these of its samples, for example every second one."""
    models = (replace(model, demand_samples=model.demand_samples[chosen]) for model in request.models)
    return replace(request, models=tuple(models))


def held_of_others(request: PlanRequest, outcome: PlanOutcome) -> tuple[int, int]:
    """How many of the second, fourth, … samples of the request a plan holds, and how many there are."""
    others = of_samples(request, HELD_OUT)
    rates = counted_rates(others, outcome.gpus, outcome.models)
    return count_held([model.demand_samples for model in others.models], rates), sample_count(others)

"""Which samples a plan holds, counted from what its models have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchsplit_core.planning.outcome.resilience import rates_after_worst_failure
from torchsplit_core.planning.request.objective import (
    count_held,
    reads_samples,
    required_samples,
    sample_count,
)
from torchsplit_core.values import HeldSamples, PlannedGpu, PlannedModel, PlanOutcome, PlanRequest


def counted_rates(
    request: PlanRequest, gpus: Sequence[PlannedGpu], models: Sequence[PlannedModel]
) -> tuple[float, ...]:
    """By model the requests/s that hold samples: its throughput, or what any one lost GPU leaves of it."""
    if request.objective.survives:
        return rates_after_worst_failure(request, gpus)
    return tuple(model.throughput_rps for model in models)


def held_share(request: PlanRequest, rates: Sequence[float]) -> float:
    """The share of the request's samples that models with these requests/s hold; 0 without samples."""
    count = sample_count(request)
    return count_held([model.demand_samples for model in request.models], rates) / count if count else 0.0


def with_samples(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    """The plan with the samples that it holds, in all and by model, if its objective reads them."""
    if not outcome.gpus or not reads_samples(request):
        return outcome
    rates = counted_rates(request, outcome.gpus, outcome.models)
    by_model = [
        count_held([model.demand_samples], [rate]) for model, rate in zip(request.models, rates, strict=True)
    ]
    count = sample_count(request)
    held = count_held([model.demand_samples for model in request.models], rates)
    least = min(range(len(by_model)), key=by_model.__getitem__)
    worst = None if by_model[least] == count else request.models[least].name
    return replace(
        outcome,
        models=tuple(
            replace(model, samples_held=number)
            for model, number in zip(outcome.models, by_model, strict=True)
        ),
        samples=HeldSamples(count, held, held / count, required_samples(request), worst),
    )

"""Cost of a plan per hour, and per million served requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.values import PlannedGpu, PlanOutcome, PlanRequest

MILLION_PER_HOUR = 3600 / 1e6
"""Millions of requests per hour at one request/s."""


def with_costs(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    """The plan with the cost of its GPUs in use per hour, and per million served requests.

    A model serves its throughput, up to its demand. Both costs are None if a price is missing; the cost of requests is
    None if none are served.
    """
    if outcome.objective.value is None:
        return outcome
    if unpriced_types(request, outcome.gpus):
        return replace(outcome, cost_per_hour=None, cost_per_million_requests=None)
    prices = {gpu.id: gpu.price or 0.0 for gpu in list_gpus(request.gpus)}
    cost = sum(prices[gpu.id] for gpu in outcome.gpus if gpu.used)
    demands = {spec.name: spec.demand_rps for spec in request.models}
    served_rps = sum(min(model.throughput_rps, demands[model.name]) for model in outcome.models)
    per_million = cost / (served_rps * MILLION_PER_HOUR) if served_rps > 0 else None
    return replace(outcome, cost_per_hour=cost, cost_per_million_requests=per_million)


def unpriced_types(request: PlanRequest, gpus: Iterable[PlannedGpu]) -> tuple[str, ...]:
    """The types of GPUs in use that have no price, in the order of `gpus`."""
    without = {gpu.id for gpu in list_gpus(request.gpus) if gpu.price is None}
    return tuple(dict.fromkeys(gpu.type for gpu in gpus if gpu.used and gpu.id in without))

"""Verifies the costs of an outcome from the prices of the request."""

from __future__ import annotations

from collections.abc import Iterator

from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.verification.claims import false_claim, same
from torchsplit_core.values import PlanFault, PlanOutcome, PlanRequest


def check_costs(request: PlanRequest, outcome: PlanOutcome) -> Iterator[PlanFault]:
    """Faults in the outcome's costs; no costs, as in older outcomes, are valid."""
    claimed, per_million = outcome.cost_per_hour, outcome.cost_per_million_requests
    if claimed is None:
        if per_million is not None:
            yield false_claim("claims a cost per million requests without a cost per hour")
        return
    prices = {gpu.id: gpu.price for gpu in list_gpus(request.gpus)}
    gpu_prices = [prices[gpu.id] for gpu in outcome.gpus if gpu.used]
    known = [price for price in gpu_prices if price is not None]
    if len(known) < len(gpu_prices):
        yield false_claim("claims a cost per hour, and a GPU in use has no price")
        return
    if not same(claimed, sum(known)):
        yield false_claim(f"claims a cost of {claimed} an hour, and it is {sum(known)}")
        return
    pairs = zip(request.models, outcome.models, strict=True)
    an_hour = 3600 * sum(min(planned.throughput_rps, spec.demand_rps) for spec, planned in pairs)
    true = claimed / an_hour * 1e6 if an_hour > 0 else None
    if (true is None) != (per_million is None) or (true and per_million and not same(true, per_million)):
        yield false_claim(f"claims a cost of {per_million} for a million requests, and it is {true}")

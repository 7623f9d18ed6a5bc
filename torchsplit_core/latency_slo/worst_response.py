"""A plan's worst response time over its models, for curves of many plans: a quick look at all of them, then those near
their limits as everywhere else."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchsplit_core.latency_slo.expected_response import expected_responses
from torchsplit_core.latency_slo.simulation_input import simulation_request
from torchsplit_core.simulation import simulate_model
from torchsplit_core.values import PlanOutcome, PlanRequest, SimulatedModel, TraceArrivals

LOOK_REQUESTS, LOOK_RUNS = 20_000, 3
"""Requests of all models in a replication, and replications: about a tenth of a second."""
LEAST, MOST = 600, 10_000
"""Bounds on the requests of one model in a replication."""
NEAR, PERCENTILE = 0.8, 95.0
"""Part of the worst share of a limit from which on a model may be the worst one."""


@dataclass(frozen=True, slots=True)
class WorstResponse:
    """The p95 response, in ms, of the model closest to its limit or farthest beyond it.

    The limit is `max_response_ms`, else `max_latency_ms`. If no model has one, it is the model with the longest p95.
    `p95_ms` is None if more requests arrive than can be served.
    """

    model: str
    p95_ms: float | None
    limit_ms: float | None

    @property
    def share(self) -> float | None:
        """p95 divided by the limit; None if either is unknown."""
        return None if self.p95_ms is None or self.limit_ms is None else self.p95_ms / self.limit_ms


def worst_response(outcome: PlanOutcome, request: PlanRequest) -> WorstResponse | None:
    """Simulate the plan at its request's arrivals; None if it has no slice."""
    if not any(gpu.slices for gpu in outcome.gpus):
        return None
    simulated = simulation_request(outcome, request)
    each = max(LEAST, min(MOST, LOOK_REQUESTS // len(simulated.models)))
    models = tuple(_shortened(model, each) for model in simulated.models)
    simulated = replace(simulated, models=models, requests_per_model=each, replications=LOOK_RUNS)
    responses = [
        WorstResponse(model.name, simulate_model(simulated, number).load.response_ms.p95, model.slo_ms)
        for number, model in enumerate(simulated.models)
    ]
    limited = [response for response in responses if response.limit_ms is not None]
    if not limited:
        return max(responses, key=_limit_share)
    near = NEAR * max(map(_limit_share, limited))
    names = [response.model for response in limited if _limit_share(response) >= near]
    expected = expected_responses(request, outcome, names)
    sure = [
        WorstResponse(item.model, item.response_ms, item.limit_ms)
        for item in (() if isinstance(expected, str) else expected)
        if item.model in names and item.percentile == PERCENTILE
    ]
    return max(sure or limited, key=_limit_share)


def _limit_share(response: WorstResponse) -> float:
    return float("inf") if response.p95_ms is None else response.p95_ms / (response.limit_ms or 1.0)


def _shortened(model: SimulatedModel, most: int) -> SimulatedModel:
    if not isinstance(model.arrivals, TraceArrivals):
        return model
    return replace(model, arrivals=TraceArrivals(model.arrivals.times_s[:most]))

"""A quick look at what clients of a plan wait: the model that is worst off, for curves of many plans."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchsplit_core.latency_slo.simulation_input import simulation_request
from torchsplit_core.simulation import simulate_model
from torchsplit_core.values import PlanOutcome, PlanRequest, SimulatedModel, TraceArrivals

LOOK_REQUESTS, LOOK_RUNS = 20_000, 3
"""Of all models together in a replication, and replications: about a tenth of a second."""
LEAST, MOST = 600, 10_000
"""Requests of one model in a replication."""


@dataclass(frozen=True, slots=True)
class WorstResponse:
    """The p95 response of the model that comes nearest to its limit, or is farthest beyond it; ms.

    Limits are `max_response_ms`, else `max_latency_ms`. Without any of them it is the model of the longest p95.
    `p95_ms` None: more of it arrives than can be served.
    """

    model: str
    p95_ms: float | None
    limit_ms: float | None

    @property
    def share(self) -> float | None:
        """p95 over the limit; None where one of them is not known."""
        return None if self.p95_ms is None or self.limit_ms is None else self.p95_ms / self.limit_ms


def worst_response(outcome: PlanOutcome, request: PlanRequest) -> WorstResponse | None:
    """Of a plan at the arrivals of its request, of a long trace its beginning; None without a slice."""
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
    return max(
        [response for response in responses if response.limit_ms is not None] or responses, key=_limit_share
    )


def _limit_share(response: WorstResponse) -> float:
    return float("inf") if response.p95_ms is None else response.p95_ms / (response.limit_ms or 1.0)


def _shortened(model: SimulatedModel, most: int) -> SimulatedModel:
    if not isinstance(model.arrivals, TraceArrivals):
        return model
    return replace(model, arrivals=TraceArrivals(model.arrivals.times_s[:most]))

"""A quick estimate of a plan's worst response time over its models, for curves of many plans."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchsplit_core.latency_slo.simulation_input import simulation_request
from torchsplit_core.simulation import simulate_model
from torchsplit_core.values import PlanOutcome, PlanRequest, SimulatedModel, TraceArrivals

LOOK_REQUESTS, LOOK_RUNS = 20_000, 3
"""Requests of all models in a replication, and replications: about a tenth of a second."""
LEAST, MOST = 600, 10_000
"""Bounds on the requests of one model in a replication."""


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
    """Simulate the plan at its request's arrivals, only the start of a long trace; None if it has no slice."""
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

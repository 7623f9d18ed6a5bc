"""Response times of a plan at its demand: models with a limit are simulated and compared with it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from torchsplit_core.latency_slo.service_variance import with_pace
from torchsplit_core.latency_slo.simulation_input import simulation_request
from torchsplit_core.simulation import simulate_model
from torchsplit_core.simulation.output_statistics import half_width, mean, percentile
from torchsplit_core.simulation.validate import PACED_RUNS, validate
from torchsplit_core.values import (
    InputFault,
    MmppArrivals,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    ResponsePercentiles,
    SimulationRequest,
    TraceArrivals,
)

REQUESTS, REPLICATIONS = 20_000, 5
"""For each model: the same as in the tab Under load and the report, so that all show the same figures."""

MOST_REQUESTS = 4_000_000
"""In all models and replications together, about a second, since a page waits for them. With more than 40 limited
models, each gets fewer requests and so a wider interval."""

LOOK_REQUESTS, LOOK_REPLICATIONS = 2_000, 3
"""For a short first simulation, which suffices for models far below their limit."""
FAR_BELOW, CALM = 0.7, 0.9
"""Shares of limit and capacity up to which it suffices: short simulations are optimistic about busy servers."""


@dataclass(frozen=True, slots=True)
class ExpectedResponse:
    """A model's response-time percentile and its limit, in ms; `width_ms` is half of the 95 % interval.

    `response_ms` is None if the queue grows without bound. `promised`: the request limits the response time; else the
    limit is that of the service time, which ignores queues. `high_ms`, if the host changes its speed: 95 % of the runs
    have less; else None.
    """

    model: str
    percentile: float
    response_ms: float | None
    width_ms: float
    limit_ms: float
    promised: bool
    high_ms: float | None = None

    @property
    def exceeds(self) -> bool:
        """Whether the response is above the limit."""
        return self.response_ms is None or self.response_ms > self.limit_ms

    @property
    def within_limit(self) -> bool:
        """Whether the whole interval is within the limit."""
        if self.response_ms is None:
            return False
        return max(self.response_ms + self.width_ms, self.high_ms or 0.0) <= self.limit_ms


def expected_responses(
    request: PlanRequest, plan: PlanOutcome, among: Collection[str] | None = None
) -> tuple[ExpectedResponse, ...] | str:
    """The responses of the served models that have a limit; a fault's message if they cannot be simulated.

    `among`: only of the models of these names, and of LLMs.
    """
    if not any(gpu.slices for gpu in plan.gpus):
        return ()
    planned_response_ms = {model.name: model.response_ms for model in plan.models}
    specs = {model.name: model for model in request.models}
    tokens = tuple(_token_times(request, plan))
    if all(model.llm is not None for model in request.models):
        return tokens
    try:
        simulated = with_pace(simulation_request(plan, request), plan, request)
        limited = sum(model.slo_ms is not None for model in simulated.models)
        runs = PACED_RUNS if any(server.pace for server in simulated.batch_servers) else REPLICATIONS
        each = min(REQUESTS, MOST_REQUESTS // (runs * max(1, limited)))
        simulated = replace(simulated, requests_per_model=each, replications=REPLICATIONS)
        validate(simulated)
    except InputFault as fault:
        return str(fault)
    expected = []
    for number, model in enumerate(simulated.models):
        if model.slo_ms is None or (among is not None and model.name not in among):
            continue
        spec = specs[model.name]
        planned = _planned_ms(planned_response_ms[model.name], spec.response_percentile)
        if planned is not None:
            # The planner simulated it longer and with other draws, and returns no plan that misses a limit.
            expected.append(
                ExpectedResponse(
                    model.name, spec.response_percentile, planned, 0.0, model.slo_ms, promised=True
                )
            )
        else:
            expected.append(_expected_response(spec, simulated, number))
    return (*expected, *tokens)


def _token_times(request: PlanRequest, plan: PlanOutcome) -> Iterator[ExpectedResponse]:
    """The times to the first token and per token of LLMs with such limits, as the plan has them: the planner simulated
    them, or took them from measured points."""
    for spec, planned in zip(request.models, plan.models, strict=True):
        if spec.llm is None:
            continue
        for what, limit, figure in (
            ("first token", spec.llm.max_ttft_ms, planned.ttft_ms),
            ("per token", spec.llm.max_tpot_ms, planned.tpot_ms),
        ):
            if limit is not None and figure is not None:
                width = 0.0 if figure.high is None else figure.high - figure.value
                yield ExpectedResponse(
                    f"{spec.name}, {what}", spec.llm.percentile, figure.value, width, limit, promised=True
                )


def _planned_ms(percentiles: ResponsePercentiles | None, percent: float) -> float | None:
    return (
        None
        if percentiles is None
        else {50.0: percentiles.p50, 95.0: percentiles.p95, 99.0: percentiles.p99}.get(percent)
    )


def _expected_response(spec: PlanModel, simulated: SimulationRequest, number: int) -> ExpectedResponse:
    quick = replace(
        simulated,
        requests_per_model=min(LOOK_REQUESTS, simulated.requests_per_model),
        replications=LOOK_REPLICATIONS,
    )
    if not isinstance(spec.expected_arrivals, MmppArrivals | TraceArrivals):
        first_response, busy = _simulate_response(spec, quick, number)
        stricter = replace(first_response, limit_ms=FAR_BELOW * first_response.limit_ms)
        if busy <= CALM and stricter.within_limit:
            return first_response
    return _simulate_response(spec, simulated, number)[0]


def _simulate_response(
    spec: PlanModel, simulated: SimulationRequest, number: int
) -> tuple[ExpectedResponse, float]:
    """The response, and the utilization: offered rate over capacity."""
    run = simulate_model(simulated, number)
    promised = spec.max_response_ms is not None
    percent = spec.response_percentile if promised else 95.0
    limit = simulated.models[number].slo_ms
    assert limit is not None
    utilization = (run.load.offered_rps or 0.0) / run.load.capacity_rps
    if run.load.stable is False or not run.response_ms:
        return ExpectedResponse(spec.name, percent, None, 0.0, limit, promised), utilization
    values = [percentile(times_ms, percent) for times_ms in run.response_ms]
    high = None if run.load.response_high_ms is None else float(np.quantile(values, 0.95))
    return ExpectedResponse(
        spec.name, percent, mean(values), half_width(values) or 0.0, limit, promised, high
    ), utilization

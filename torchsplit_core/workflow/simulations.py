"""Simulates requests, scales their rates, and builds them from plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torchsplit_core.telemetry import schema, span
from torchsplit_core.values import (
    MmppArrivals,
    PlanModel,
    PlannedGpu,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    Progress,
    SimulationOutcome,
    SimulationRequest,
    Tenant,
    TraceArrivals,
    ignore_progress,
)
from torchsplit_core.values.limits import check_number
from torchsplit_core.values.simulation.request import Arrivals


def simulate(request: SimulationRequest, progress: Progress = ignore_progress) -> SimulationOutcome:
    """The outcome of a simulation request. Raises InputFault for an invalid one."""
    from torchsplit_core.simulation import simulate as run

    with span(schema.SIMULATE, models=len(request.models)):
        return run(request, progress)


def simulated_requests(request: SimulationRequest) -> str:
    """The requests of a valid simulation's engines as CSV: arrival, start, first and last token of each."""
    from torchsplit_core.simulation.continuous.request_rows import COLUMNS, request_rows
    from torchsplit_core.tables.write_csv import lists_csv

    return lists_csv(COLUMNS, request_rows(request))


def under_load(request: SimulationRequest, factor: float) -> SimulationRequest:
    """The request with every rate multiplied and every trace time divided by `factor`. Raises InputFault."""
    check_number("--load", factor, positive=True)
    if factor == 1:
        return request
    return replace(
        request,
        models=tuple(
            replace(model, arrivals=_scale_arrivals(model.arrivals, factor)) for model in request.models
        ),
    )


def _scale_arrivals(arrivals: Arrivals, factor: float) -> Arrivals:
    if isinstance(arrivals, TraceArrivals):
        return TraceArrivals(tuple(time / factor for time in arrivals.times_s))
    if isinstance(arrivals, MmppArrivals):
        states = tuple(replace(state, rate_rps=state.rate_rps * factor) for state in arrivals.states)
        return MmppArrivals(states)
    return replace(arrivals, rate_rps=arrivals.rate_rps * factor)


def simulation_request(
    outcome: PlanOutcome, request: PlanRequest, arrivals: Callable[[PlanModel], Arrivals] | None = None
) -> SimulationRequest:
    """The plan as servers and queues, see `latency_slo.simulation_input.simulation_request`. Raises InputFault.

    Servers whose points describe their device's speed changes draw these, and the variation of batch times.
    """
    from torchsplit_core.latency_slo.service_variance import with_pace
    from torchsplit_core.latency_slo.simulation_input import simulation_request as make

    return with_pace(make(outcome, request, arrivals), outcome, request)


def server_id(gpu: PlannedGpu, item: PlannedSlice, tenant: Tenant) -> str:
    """The id of a tenant's server in the plan's simulation."""
    from torchsplit_core.latency_slo.simulation_input import server_id as id_of

    return id_of(gpu, item, tenant)


def without_instance(outcome: PlanOutcome, request: PlanRequest) -> tuple[str, ...]:
    """The models that no slice of the plan serves."""
    from torchsplit_core.latency_slo.simulation_input import without_instance as left_out

    return left_out(outcome, request)

"""Batch times of a simulated plan drawn as its measured points vary, not each alike.

A point that was measured says two figures of its batches: throughput = processes · batch / mean, and latency_ms their
95th percentile. A log-normal time through both has ln(p95 / mean) = z · σ − σ² / 2 (z = 1.645: the 95 % quantile of a
standard normal) and cv = √(exp(σ²) − 1). That form because times lie above 0 and their tail is towards the slow. Draws
are independent: a core that stays slow for a while makes longer queues than they do. So where its points say how the
device changes its speed, that is drawn as well, and its periods are taken out of what is drawn batch by batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import NormalDist, fmean

from torchsplit_core.latency_slo.simulation_input import batch_points, server_id
from torchsplit_core.planning.outcome.instances import planned_instances
from torchsplit_core.simulation import simulate
from torchsplit_core.simulation.validate import CV_RANGE
from torchsplit_core.values import (
    PlanOutcome,
    PlanRequest,
    Point,
    Server,
    Service,
    SimulationOutcome,
    SimulationRequest,
    TraceArrivals,
)

NORMAL_95 = NormalDist().inv_cdf(0.95)
MOST_DRAWS, DRAWN_REQUESTS = 50, 200_000
"""A p95 of 300 to 3,000 requests is 10 to 20 % another with other draws: as many runs of the arrivals as so many
requests are, at most."""


def simulate_with_variance(simulated: SimulationRequest) -> SimulationOutcome:
    """The simulation of arrivals that are a trace, its figures the mean over draws of the batch times."""
    requests = sum(
        len(model.arrivals.times_s) for model in simulated.models if isinstance(model.arrivals, TraceArrivals)
    )
    return simulate(simulated, draws=max(1, min(MOST_DRAWS, DRAWN_REQUESTS // max(1, requests))))


def with_lognormal_service(
    simulated: SimulationRequest, outcome: PlanOutcome, request: PlanRequest
) -> SimulationRequest:
    """The simulation of the plan with the times of each server's batches drawn as its measured sizes vary.

    `simulated` is what `simulation_request` makes of plan and request, its batch times means. One spread a server, of
    all its sizes (the root of the mean σ² of those measured): a size by itself was timed for seconds, and may have
    caught a quiet or a loud moment. Servers without a measured size keep one time a batch.
    """
    points = _points(outcome, request)
    return replace(
        simulated,
        servers=tuple(_with_service_variance(server, points[server.id]) for server in simulated.servers),
    )


def with_pace(simulated: SimulationRequest, outcome: PlanOutcome, request: PlanRequest) -> SimulationRequest:
    """The same of the servers whose points say how their device changes its speed; all others are as they were."""
    points = _points(outcome, request)
    servers = (
        _with_service_variance(server, points[server.id])
        if any(point.pace for point in points[server.id])
        else server
        for server in simulated.servers
    )
    return replace(simulated, servers=tuple(servers))


def _points(outcome: PlanOutcome, request: PlanRequest) -> dict[str, tuple[Point, ...]]:
    """By server id the points that time its batches."""
    return {
        server_id(instance.gpu, instance.slice, instance.tenant): batch_points(instance)
        for instance in planned_instances(outcome.gpus, request)
    }


def _sigma(points: Iterable[Point]) -> float:
    """σ of the logarithm of a batch's time; 0 where no point tells it."""
    squares = [_point_sigma(point) ** 2 for point in points if _has_percentile(point)]
    return math.sqrt(fmean(squares)) if squares else 0.0


def _has_percentile(point: Point) -> bool:
    """Whether its two figures are a mean and a 95th percentile of runs: a measurement gives the mean's interval.

    Rows of others often have mean times in both, rounded, or a client's times with the queue in them.
    """
    return point.basis == "measured" and point.low_rps is not None


def _point_sigma(point: Point) -> float:
    """No less than 0, as a p95 below the mean is the noise of three runs; z at most, which no p95 passes."""
    mean_ms = 1000.0 * point.processes * point.batch_size / point.throughput_rps
    beyond = math.log(max(1.0, point.latency_ms / mean_ms))
    return NORMAL_95 - math.sqrt(max(0.0, NORMAL_95**2 - 2.0 * beyond))


def _with_service_variance(server: Server, points: Sequence[Point]) -> Server:
    """The server with log-normal times of those means, at the pace of its device; one whose times vary by less than can
    be told as it was."""
    pace = next((point.pace for point in points if point.pace), None)
    # The slow periods were among the runs whose 95th percentile a point tells.
    periods = math.log1p(pace.cv**2) if pace else 0.0
    cv = math.sqrt(math.expm1(max(0.0, _sigma(points) ** 2 - periods)))
    service = server.service if cv < CV_RANGE[0] else Service("lognormal", cv)
    return replace(server, service=service, pace=pace)

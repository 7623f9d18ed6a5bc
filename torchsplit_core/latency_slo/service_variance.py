"""Random batch times of a simulated plan, with the variance of its measured points.

A measured point gives two figures of its batch times: the mean (throughput = processes · batch / mean) and the 95th
percentile (latency_ms). A log-normal time with both has ln(p95 / mean) = z · σ − σ² / 2 (z = 1.645: the 95 % quantile
of a standard normal) and cv = √(exp(σ²) − 1). Log-normal, because times are positive and their tail is on the slow
side. Draws are independent, but a core that stays slow for a while causes longer queues than they do. So if the points
say how the device changes its speed, that is drawn too, and its variance is subtracted from the draws by batch.
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
"""The p95 of 300 to 3,000 requests differs by 10 to 20 % between draws: the arrivals are repeated up to this number of
times, or until this number of requests is simulated."""


def simulate_with_variance(simulated: SimulationRequest) -> SimulationOutcome:
    """Simulate trace arrivals; figures are means over repeated draws of the batch times."""
    requests = sum(
        len(model.arrivals.times_s) for model in simulated.models if isinstance(model.arrivals, TraceArrivals)
    )
    return simulate(simulated, draws=max(1, min(MOST_DRAWS, DRAWN_REQUESTS // max(1, requests))))


def with_lognormal_service(
    simulated: SimulationRequest, outcome: PlanOutcome, request: PlanRequest
) -> SimulationRequest:
    """The simulation request with log-normal batch times, as variable as each server's measured batch sizes.

    `simulated` is the result of `simulation_request`, with mean batch times. A server has one σ for all its sizes (the
    root of the mean σ² of those measured): a single size was timed for seconds and may have met a quiet or a busy
    moment. Servers without a measured size keep constant batch times.
    """
    points = _points(outcome, request)
    return replace(
        simulated,
        servers=tuple(
            _with_service_variance(server, points[server.id]) if isinstance(server, Server) else server
            for server in simulated.servers
        ),
    )


def with_pace(simulated: SimulationRequest, outcome: PlanOutcome, request: PlanRequest) -> SimulationRequest:
    """Like `with_lognormal_service`, only for servers whose points say how their device changes its speed."""
    points = _points(outcome, request)
    servers = (
        _with_service_variance(server, points[server.id])
        if isinstance(server, Server) and any(point.pace for point in points[server.id])
        else server
        for server in simulated.servers
    )
    return replace(simulated, servers=tuple(servers))


def _points(outcome: PlanOutcome, request: PlanRequest) -> dict[str, tuple[Point, ...]]:
    """By server id, the points that give its batch times."""
    return {
        server_id(instance.gpu, instance.slice, instance.tenant): batch_points(instance)
        for instance in planned_instances(outcome.gpus, request)
        if instance.tenant.engine is None
    }


def _sigma(points: Iterable[Point]) -> float:
    """σ of the logarithm of a batch's time; 0 if no point gives it."""
    squares = [_point_sigma(point) ** 2 for point in points if _has_percentile(point)]
    return math.sqrt(fmean(squares)) if squares else 0.0


def _has_percentile(point: Point) -> bool:
    """Whether its two figures are the mean and the 95th percentile of runs; a measurement has the mean's interval.

    Imported rows often have rounded mean times in both, or a client's times, which include queueing.
    """
    return point.basis == "measured" and point.low_rps is not None


def _point_sigma(point: Point) -> float:
    """σ of a point: at least 0, as a p95 below the mean is noise of three runs; at most z, where p95 / mean peaks."""
    mean_ms = 1000.0 * point.processes * point.batch_size / point.throughput_rps
    beyond = math.log(max(1.0, point.latency_ms / mean_ms))
    return NORMAL_95 - math.sqrt(max(0.0, NORMAL_95**2 - 2.0 * beyond))


def _with_service_variance(server: Server, points: Sequence[Point]) -> Server:
    """The server at its device's pace, with log-normal times of the same means unless their cv is below the least that
    can be simulated."""
    pace = next((point.pace for point in points if point.pace), None)
    # A point's 95th percentile includes the slow periods.
    periods = math.log1p(pace.cv**2) if pace else 0.0
    cv = math.sqrt(math.expm1(max(0.0, _sigma(points) ** 2 - periods)))
    service = server.service if cv < CV_RANGE[0] else Service("lognormal", cv)
    return replace(server, service=service, pace=pace)

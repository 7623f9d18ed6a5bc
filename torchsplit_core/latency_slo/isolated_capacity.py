"""What slices carry within a response-time limit: the largest rate of one alone, its best points, and sets of slices.

The processes of slices are servers of one queue; a batch starts as soon as a server is free. The rates come from short
simulations with the same draws at every rate: they guide the search, but no plan is accepted on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.latency_slo.simulation_input import batch_times, points_up_to
from torchsplit_core.latency_slo.slo_check import TOO_BUSY
from torchsplit_core.simulation.arrivals import offered_rps
from torchsplit_core.simulation.output_statistics import percentile, without_warmup
from torchsplit_core.simulation.replication import PreparedModel, prepare_model, run_model
from torchsplit_core.values import (
    GammaArrivals,
    MmppArrivals,
    PlanModel,
    Point,
    PoissonArrivals,
    Server,
    SimulatedModel,
    SimulationRequest,
    Stage,
)

STEPS = 6
"""Bisection steps between 0 and the capacity: to 1.6 % of it."""

BATCHES, FEWEST_REQUESTS, MOST_REQUESTS = 300, 6_000, 30_000
"""Approximate batches of each process simulated for one rate, and bounds on the number of requests."""

MOST_BEHIND = 4
"""Points tried without improvement before a slice's search stops."""

SET_REQUESTS = (4_000, 20_000)
"""Requests simulated of a set of slices; the more where the fewer leave it between parts CLEAR of the limit."""

CLEAR = (0.8, 1.25)
"""A percentile below the first part of the limit keeps it, one above the second does not."""

ROUNDING = 1e-9
"""Of a batch size."""

BETTER = 1.03
"""A point is simulated in full only if it carries this factor more than the best so far."""


@dataclass(frozen=True, slots=True)
class MaxRate:
    """A point and the requests/s that it carries alone within the limit."""

    point: Point
    rate_rps: float


def best_rates(model: PlanModel, stage: Stage, limit_ms: float) -> tuple[MaxRate, ...]:
    """For every slice, the point that carries most within the stage's `limit_ms`; slices without any are omitted."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in stage.points:
        if point.throughput_rps > 0:
            groups.setdefault((point.gpu_type, point.profile), []).append(point)
    rates = (_best_rate(model, stage, points, limit_ms) for points in groups.values())
    return tuple(rate for rate in rates if rate is not None)


def _best_rate(model: PlanModel, stage: Stage, points: Sequence[Point], limit_ms: float) -> MaxRate | None:
    """The best point of a slice. Tries points by decreasing upper bound; skips those that cannot beat the best."""
    tables = {id(point): batch_times(points_up_to(stage, point)) for point in points}
    most = {id(point): max_rps_within(tables[id(point)], limit_ms, point.processes) for point in points}
    best: MaxRate | None = None
    tries_since_best = 0
    for point in sorted(points, key=lambda point: (-most[id(point)], point.batch_size)):
        floor = 0.0 if best is None else best.rate_rps * BETTER
        if most[id(point)] <= floor or tries_since_best == MOST_BEHIND:
            break
        tries_since_best += best is not None
        rate = _max_rate_rps(model, point, tables[id(point)], limit_ms, floor)
        if rate > floor:
            best, tries_since_best = MaxRate(point, rate), 0
    return best


def max_rps_within(times: Mapping[int, float], limit_ms: float, processes: int) -> float:
    """Largest requests/s of all processes in batches that take no longer than the limit.

    Between two sizes with known times the rate rises or falls throughout, so few sizes matter.
    """
    within = [size for size in sorted(times) if times[size] <= limit_ms]
    if not within:
        return 0.0
    most = max(size / times[size] for size in within)
    last = within[-1]
    larger = min((size for size in times if size > last), default=None)
    if larger is not None:
        slope = (times[larger] - times[last]) / (larger - last)
        # Rounding leaves out no size: a bound is proven by this rate.
        further = min(math.floor((limit_ms - times[last]) / slope + ROUNDING), larger - last)
        most = max(most, (last + further) / (times[last] + slope * further))
    return processes * most * 1000


def _full_batches_rps(point: Point, times: Mapping[int, float]) -> float:
    """Requests/s of the point's processes in batches of its size."""
    return point.processes * point.batch_size / times[point.batch_size] * 1000


def _max_rate_rps(
    model: PlanModel, point: Point, times: Mapping[int, float], limit_ms: float, floor: float
) -> float:
    """Largest rate within the limit; 0 if it is not above the floor."""
    most = _full_batches_rps(point, times)
    prepared = _isolated_model(model, point, times, most)

    def holds(rate: float) -> bool:
        responses = run_model(prepared, 0, rate / most).response_ms
        return percentile(without_warmup(responses, 0.1), model.response_percentile) <= limit_ms

    if floor >= most or (floor and not holds(floor)):
        return 0.0
    low, high = floor, most
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _isolated_model(model: PlanModel, point: Point, times: Mapping[int, float], rate: float) -> PreparedModel:
    """The point alone under the model's arrival process at this rate; Poisson if the arrivals are not random."""
    wanted = BATCHES * point.batch_size * point.processes
    requests = min(MOST_REQUESTS, max(FEWEST_REQUESTS, wanted))
    simulated = SimulatedModel(model.name, ("alone",), _random_arrivals(model, rate))
    server = Server("alone", model.name, "alone", point.batch_size, times, point.processes)
    return prepare_model(SimulationRequest((simulated,), (server,), requests_per_model=requests), 0)


def _random_arrivals(model: PlanModel, rate: float) -> GammaArrivals | MmppArrivals | PoissonArrivals:
    """The model's arrival process at this rate; Poisson if its arrivals are not random."""
    arrivals = model.expected_arrivals
    if isinstance(arrivals, GammaArrivals):
        return replace(arrivals, rate_rps=rate)
    if isinstance(arrivals, MmppArrivals):
        scale = rate / (offered_rps(arrivals) or rate)
        return MmppArrivals(
            tuple(replace(state, rate_rps=state.rate_rps * scale) for state in arrivals.states)
        )
    return PoissonArrivals(rate)


def quick_points(stage: Stage, limits_ms: Sequence[float]) -> tuple[tuple[Point, ...], ...]:
    """By limit, for every slice, the point that carries most in batches that take no longer; if any does."""
    best: list[dict[tuple[str, str], tuple[float, int, Point]]] = [{} for _ in limits_ms]
    for point in stage.points:
        if point.throughput_rps <= 0:
            continue
        times = batch_times(points_up_to(stage, point))
        key = (point.gpu_type, point.profile)
        for limit, of_limit in zip(limits_ms, best, strict=True):
            most = max_rps_within(times, limit, point.processes)
            if most > 0 and (key not in of_limit or (most, -point.batch_size) > of_limit[key][:2]):
                of_limit[key] = (most, -point.batch_size, point)
    return tuple(tuple(point for *_, point in of_limit.values()) for of_limit in best)


def keeps_limit(model: PlanModel, stage: Stage, running: Sequence[tuple[Point, int, float]]) -> bool:
    """Whether slices with one queue keep the model's limit at what it is offered.

    `running`: points, each with how many slices run it and the share of them that is the model's.
    """
    rate = offered_rps(model.expected_arrivals) or 0.0
    servers = []
    capacity = 0.0
    for number, (point, count, share) in enumerate(running):
        times = batch_times(points_up_to(stage, point), share)
        capacity += count * _full_batches_rps(point, times)
        server = Server(f"{number}", model.name, stage.name, point.batch_size, times, point.processes)
        servers += [replace(server, id=f"{number}/{copy}") for copy in range(count)]
    if rate >= TOO_BUSY * capacity:
        return False
    # As in a plan's simulation, those fastest per request come first.
    servers.sort(key=lambda server: server.batch_ms[server.max_batch] / server.max_batch)
    simulated = SimulatedModel(model.name, (stage.name,), _random_arrivals(model, rate))
    part = 0.0
    for requests in SET_REQUESTS:
        request = SimulationRequest((simulated,), tuple(servers), requests_per_model=requests)
        responses = without_warmup(run_model(prepare_model(request, 0), 0).response_ms, 0.1)
        part = percentile(responses, model.response_percentile) / (model.max_response_ms or 1.0)
        if not CLEAR[0] < part < CLEAR[1]:
            break
    return part <= 1.0

"""One model of a request, made ready: its stations in the clock's unit, its arrivals, its draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from torchsplit_core.simulation.arrivals import arrival_times_ms, is_random, request_count
from torchsplit_core.simulation.frontend import (
    FrontendTraffic,
    frontend_departures_ms,
    frontend_traffic,
    limit_requests,
)
from torchsplit_core.simulation.pace_process import PaceProcess
from torchsplit_core.simulation.station import (
    Factors,
    PaceFunction,
    draw_factors,
    duration_units,
    make_station,
)
from torchsplit_core.simulation.tandem import ReplicationRun, run_tandem
from torchsplit_core.simulation.time_base import (
    Instants,
    TimeBase,
    as_fraction,
    choose_time_base,
    to_decimal_ticks,
)
from torchsplit_core.simulation.validate import PACED_RUNS
from torchsplit_core.values import (
    DeterministicArrivals,
    Server,
    SimulatedModel,
    SimulationRequest,
    TraceArrivals,
)
from torchsplit_core.values.simulation.request import QueueKind


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model, and of each of its stages the servers: place in the request's list, and entry.

    `paces`, by server id, are what a batch takes over its time in `batch_ms`, and nothing of that is drawn then; an
    instant is in ms from the first arrival. A trace is run `draws` times where service is drawn. `frontend` has all
    models that pass the front, this one among them.
    """

    number: int
    model: SimulatedModel
    stages: tuple[tuple[tuple[int, Server], ...], ...]
    requests: int
    queue: QueueKind
    seed: int
    paces: Mapping[str, PaceFunction] = field(default_factory=dict)
    draws: int = 1
    frontend: tuple[FrontendTraffic, ...] = ()

    @property
    def random(self) -> bool:
        """Whether replications differ."""
        return is_random(self.model.arrivals) or self.random_service or self.random_frontend

    @property
    def random_frontend(self) -> bool:
        """Whether what else passes the front is drawn."""
        return any(is_random(flow.arrivals) for flow in self.frontend)

    @property
    def random_service(self) -> bool:
        """Whether the time of a batch is drawn."""
        return self.paced or any(
            server.service.kind != "deterministic" for stage in self.stages for _, server in stage
        )

    @property
    def paced(self) -> bool:
        """Whether the speed of a server is drawn."""
        return any(server.pace is not None for stage in self.stages for _, server in stage)


def prepare_model(request: SimulationRequest, number: int, draws: int = 1) -> PreparedModel:
    """The request's model of this number."""
    model = request.models[number]
    frontend = frontend_traffic(request) if model.front_ms else ()
    requests = limit_requests(frontend, number, request_count(model.arrivals, request.requests_per_model))
    of_stage: dict[str, list[tuple[int, Server]]] = {name: [] for name in model.stages}
    for place, server in enumerate(request.servers):
        if server.model == model.name:
            of_stage[server.stage].append((place, server))
    stages = tuple(tuple(of_stage[name]) for name in model.stages)
    return PreparedModel(
        number, model, stages, requests, request.queue, request.seed, draws=draws, frontend=frontend
    )


def replication_count(prepared: PreparedModel, wanted: int) -> int:
    """How many runs tell more than one: a trace has its own number, and without anything drawn all are the same.

    Where servers change their speed, enough for what 90 % of the runs lie between.
    """
    if not prepared.random:
        return 1
    is_trace = isinstance(prepared.model.arrivals, TraceArrivals) and not prepared.random_frontend
    count = prepared.draws if is_trace else wanted
    return max(count, PACED_RUNS) if prepared.paced else count


def run_model(prepared: PreparedModel, replication: int, factor: float = 1.0) -> ReplicationRun:
    """One replication, with every rate times `factor`; the same draws for every factor."""
    rng = np.random.default_rng([prepared.seed, prepared.number, replication, 0])
    exact_arrivals = (
        _arrivals_in_ticks(prepared) if factor == 1 and not prepared.paces and not prepared.frontend else None
    )
    time_base, arrivals = exact_arrivals or (
        TimeBase(),
        arrival_times_ms(prepared.model.arrivals, prepared.requests, rng, factor),
    )
    stages = []
    for depth, servers in enumerate(prepared.stages):
        drawn = _batch_factors(servers, prepared, [prepared.seed, prepared.number, replication, depth + 1])
        stages.append(
            [
                make_station(place, server, time_base, None, prepared.paces[server.id])
                if server.id in prepared.paces
                else make_station(
                    place,
                    server,
                    time_base,
                    drawn[server.service.kind, server.service.cv],
                    _pace_process(server, [prepared.seed, prepared.number, replication, 0, place]),
                )
                for place, server in servers
            ]
        )
    transfers = [time_base.from_ms(as_fraction(time)) for time in prepared.model.transfer_ms]
    if not transfers:
        transfers = [time_base.from_ms(Fraction(0))] * (len(stages) - 1)
    frontend = None
    if prepared.frontend:
        seed = (prepared.seed, replication)
        departures = frontend_departures_ms(prepared.frontend, prepared.number, arrivals, seed, factor)
        frontend = (departures, prepared.model.front_ms)
    return run_tandem(arrivals, stages, transfers, prepared.queue, time_base, frontend)


def _pace_process(server: Server, seed: list[int]) -> PaceProcess | None:
    """By draws of its own, so that all other draws are what they are without it."""
    return None if server.pace is None else PaceProcess(server.pace, np.random.default_rng(seed))


def _batch_factors(
    servers: Sequence[tuple[int, Server]], prepared: PreparedModel, seed: list[int]
) -> dict[tuple[str, float | None], Factors]:
    """Of each kind of service in a stage, the factors of its batches: there are as many as requests, at most."""
    rng = np.random.default_rng(seed)
    factors: dict[tuple[str, float | None], Factors] = {}
    for _, server in servers:
        key = (server.service.kind, server.service.cv)
        if key not in factors:
            factors[key] = draw_factors(server.service, prepared.requests, rng)
    return factors


def _arrivals_in_ticks(prepared: PreparedModel) -> tuple[TimeBase, Instants] | None:
    """The clock and arrivals of a model of which all times are decimals; None for any other."""
    if prepared.random:
        return None
    arrivals = prepared.model.arrivals
    spans = {as_fraction(time) for time in prepared.model.transfer_ms}
    slowest = 0.0
    for stage in prepared.stages:
        for _, server in stage:
            spans.update(duration_units(server.batch_ms))
            spans.add(as_fraction(server.max_wait_ms))
            slowest = max(slowest, *server.batch_ms.values(), server.max_wait_ms)
    busy_ms = (prepared.requests + 1) * slowest * len(prepared.stages) + math.fsum(prepared.model.transfer_ms)
    if isinstance(arrivals, TraceArrivals):
        return _trace_in_ticks(arrivals, spans, busy_ms)
    assert isinstance(arrivals, DeterministicArrivals)
    between = 1000 / as_fraction(arrivals.rate_rps)
    time_base = choose_time_base({*spans, between}, 1, busy_ms + float(between) * prepared.requests)
    if time_base.ticks_per_ms is None:
        return None
    return time_base, np.arange(1, prepared.requests + 1, dtype=np.int64) * time_base.from_ms(between)


def _trace_in_ticks(
    arrivals: TraceArrivals, spans: set[Fraction], busy_ms: float
) -> tuple[TimeBase, Instants] | None:
    ticks = to_decimal_ticks(arrivals.times_s)
    if ticks is None:
        return None
    parts, per_s = ticks
    length_ms = 1e3 * (arrivals.times_s[-1] - arrivals.times_s[0])
    time_base = choose_time_base(spans, per_s // 1000, busy_ms + length_ms)
    if time_base.ticks_per_ms is None:
        return None
    return time_base, (parts - parts[0]) * (time_base.ticks_per_ms // (per_s // 1000))


def simulate_one(
    model: SimulatedModel,
    servers: Sequence[Server],
    times_s: Sequence[float],
    *,
    queue: QueueKind = "shared",
    seed: int = 0,
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Response times, ms, of requests that arrive at these seconds, which never fall; in the order of arrival.

    `model.arrivals` plays no part; servers of other models are left out. For many simulations of one model: what
    a request is checked for is taken as given.
    """
    traced = replace(model, arrivals=TraceArrivals(tuple(times_s)))
    request = SimulationRequest((traced,), tuple(servers), queue, seed=seed)
    return run_model(prepare_model(request, 0), 0).response_ms


def simulate_paced(
    request: SimulationRequest, number: int, paces: Mapping[str, PaceFunction]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Response times, ms, of the request's model of this number, in the order of arrival, without a warm-up.

    A batch of a server in `paces` (by id) takes its time of the request times the server's pace at the instant at
    which it begins, in ms from the first arrival. The request is taken as valid.
    """
    return run_model(replace(prepare_model(request, number), paces=paces), 0).response_ms

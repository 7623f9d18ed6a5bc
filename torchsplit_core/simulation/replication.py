"""Prepares one model of a request and runs its replications: stations, arrivals and random draws."""

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
    """A model and the servers of each of its stages, each as (index in the request's list, server).

    `paces` maps a server id to the factor on `batch_ms` at an instant, in ms from the first arrival; such a server
    draws nothing. A trace is run `draws` times if service times are drawn. `frontend` holds all models that pass the
    front, this one included.
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
        """Whether the arrivals of any model at the front are drawn."""
        return any(is_random(flow.arrivals) for flow in self.frontend)

    @property
    def random_service(self) -> bool:
        """Whether batch times are drawn."""
        return self.paced or any(
            server.service.kind != "deterministic" for stage in self.stages for _, server in stage
        )

    @property
    def paced(self) -> bool:
        """Whether a server's speed is drawn."""
        return any(server.pace is not None for stage in self.stages for _, server in stage)


def prepare_model(request: SimulationRequest, number: int, draws: int = 1) -> PreparedModel:
    """Prepare the model of this index."""
    model = request.models[number]
    frontend = frontend_traffic(request) if model.front_ms else ()
    requests = limit_requests(frontend, number, request_count(model.arrivals, request.requests_per_model))
    of_stage: dict[str, list[tuple[int, Server]]] = {name: [] for name in model.stages}
    for place, server in enumerate(request.servers):
        if isinstance(server, Server) and server.model == model.name:
            of_stage[server.stage].append((place, server))
    stages = tuple(tuple(of_stage[name]) for name in model.stages)
    return PreparedModel(
        number, model, stages, requests, request.queue, request.seed, draws=draws, frontend=frontend
    )


def replication_count(prepared: PreparedModel, wanted: int) -> int:
    """How many replications to run: `draws` for a trace, and 1 if nothing is drawn, since all would be equal.

    If a server's speed is drawn, at least as many as a 5 to 95 % band of the runs needs.
    """
    if not prepared.random:
        return 1
    is_trace = isinstance(prepared.model.arrivals, TraceArrivals) and not prepared.random_frontend
    count = prepared.draws if is_trace else wanted
    return max(count, PACED_RUNS) if prepared.paced else count


def run_model(prepared: PreparedModel, replication: int, factor: float = 1.0) -> ReplicationRun:
    """Run one replication with every rate times `factor`; every factor uses the same draws."""
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
    """Has a generator of its own, so the other draws are the same without it."""
    return None if server.pace is None else PaceProcess(server.pace, np.random.default_rng(seed))


def _batch_factors(
    servers: Sequence[tuple[int, Server]], prepared: PreparedModel, seed: list[int]
) -> dict[tuple[str, float | None], Factors]:
    """The batch factors for each kind of service in a stage: one per request, since there are no more batches."""
    rng = np.random.default_rng(seed)
    factors: dict[tuple[str, float | None], Factors] = {}
    for _, server in servers:
        key = (server.service.kind, server.service.cv)
        if key not in factors:
            factors[key] = draw_factors(server.service, prepared.requests, rng)
    return factors


def _arrivals_in_ticks(prepared: PreparedModel) -> tuple[TimeBase, Instants] | None:
    """The time base and arrivals in exact ticks if nothing is drawn and all times are decimals; otherwise None."""
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
    """Response times, ms, of requests that arrive at these seconds (non-decreasing), in order of arrival.

    Ignores `model.arrivals` and the servers of other models. Meant for many simulations of one model: the input is
    not validated.
    """
    traced = replace(model, arrivals=TraceArrivals(tuple(times_s)))
    request = SimulationRequest((traced,), tuple(servers), queue, seed=seed)
    return run_model(prepare_model(request, 0), 0).response_ms


def simulate_paced(
    request: SimulationRequest, number: int, paces: Mapping[str, PaceFunction]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Response times, ms, of the model of this index, in order of arrival; no warm-up is removed.

    A server in `paces` (by id) takes `batch_ms` times its pace at the instant, in ms from the first arrival, at which
    the batch begins. The request is not validated.
    """
    return run_model(replace(prepare_model(request, number), paces=paces), 0).response_ms

"""One model of a request, made ready: its stations in the clock's unit, its arrivals, its draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from torchsplit_core.simulation.arrivals import count_of, is_random, times_ms
from torchsplit_core.simulation.chain import Run, run_chain
from torchsplit_core.simulation.clock import Clock, Instants, clock_for, exact, on_grid
from torchsplit_core.simulation.drawn_pace import DrawnPace
from torchsplit_core.simulation.front import Passing, behind_front, most_requests, passing
from torchsplit_core.simulation.station import Factors, Pace, draw_factors, station, table_spans
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
class Prepared:
    """A model, and of each of its stages the servers: place in the request's list, and entry.

    `paces`, by server id, are what a batch takes over its time in `batch_ms`, and nothing of that is drawn then; an
    instant is in ms from the first arrival. A trace is run `draws` times where service is drawn. `front` has all
    models that pass the front, this one among them.
    """

    number: int
    model: SimulatedModel
    stages: tuple[tuple[tuple[int, Server], ...], ...]
    requests: int
    queue: QueueKind
    seed: int
    paces: Mapping[str, Pace] = field(default_factory=dict)
    draws: int = 1
    front: tuple[Passing, ...] = ()

    @property
    def random(self) -> bool:
        """Whether replications differ."""
        return is_random(self.model.arrivals) or self.random_service or self.random_front

    @property
    def random_front(self) -> bool:
        """Whether what else passes the front is drawn."""
        return any(is_random(one.arrivals) for one in self.front)

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


def prepare(request: SimulationRequest, number: int, draws: int = 1) -> Prepared:
    """The request's model of this number."""
    model = request.models[number]
    front = passing(request) if model.front_ms else ()
    requests = most_requests(front, number, count_of(model.arrivals, request.requests_per_model))
    of_stage: dict[str, list[tuple[int, Server]]] = {name: [] for name in model.stages}
    for place, server in enumerate(request.servers):
        if server.model == model.name:
            of_stage[server.stage].append((place, server))
    stages = tuple(tuple(of_stage[name]) for name in model.stages)
    return Prepared(number, model, stages, requests, request.queue, request.seed, draws=draws, front=front)


def replications(prepared: Prepared, wanted: int) -> int:
    """How many runs tell more than one: a trace has its own number, and without anything drawn all are the same.

    Where servers change their speed, enough for what 90 % of the runs lie between.
    """
    if not prepared.random:
        return 1
    trace = isinstance(prepared.model.arrivals, TraceArrivals) and not prepared.random_front
    told = prepared.draws if trace else wanted
    return max(told, PACED_RUNS) if prepared.paced else told


def run_model(prepared: Prepared, replication: int, factor: float = 1.0) -> Run:
    """One replication, with every rate times `factor`; the same draws for every factor."""
    rng = np.random.default_rng([prepared.seed, prepared.number, replication, 0])
    found = _in_ticks(prepared) if factor == 1 and not prepared.paces and not prepared.front else None
    clock, arrivals = found or (
        Clock(),
        times_ms(prepared.model.arrivals, prepared.requests, rng, factor),
    )
    stages = []
    for depth, servers in enumerate(prepared.stages):
        drawn = _factors(servers, prepared, [prepared.seed, prepared.number, replication, depth + 1])
        stages.append(
            [
                station(place, server, clock, None, prepared.paces[server.id])
                if server.id in prepared.paces
                else station(
                    place,
                    server,
                    clock,
                    drawn[server.service.kind, server.service.cv],
                    _pace(server, [prepared.seed, prepared.number, replication, 0, place]),
                )
                for place, server in servers
            ]
        )
    transfers = [clock.span(exact(time)) for time in prepared.model.transfer_ms]
    if not transfers:
        transfers = [clock.span(Fraction(0))] * (len(stages) - 1)
    front = None
    if prepared.front:
        seed = (prepared.seed, replication)
        left = behind_front(prepared.front, prepared.number, arrivals, seed, factor)
        front = (left, prepared.model.front_ms)
    return run_chain(arrivals, stages, transfers, prepared.queue, clock, front)


def _pace(server: Server, seed: list[int]) -> DrawnPace | None:
    """By draws of its own, so that all other draws are what they are without it."""
    return None if server.pace is None else DrawnPace(server.pace, np.random.default_rng(seed))


def _factors(
    servers: Sequence[tuple[int, Server]], prepared: Prepared, seed: list[int]
) -> dict[tuple[str, float | None], Factors]:
    """Of each kind of service in a stage, the factors of its batches: there are as many as requests, at most."""
    rng = np.random.default_rng(seed)
    found: dict[tuple[str, float | None], Factors] = {}
    for _, server in servers:
        key = (server.service.kind, server.service.cv)
        if key not in found:
            found[key] = draw_factors(server.service, prepared.requests, rng)
    return found


def _in_ticks(prepared: Prepared) -> tuple[Clock, Instants] | None:
    """The clock and arrivals of a model of which all times are decimals; None for any other."""
    if prepared.random:
        return None
    arrivals = prepared.model.arrivals
    spans = {exact(time) for time in prepared.model.transfer_ms}
    slowest = 0.0
    for stage in prepared.stages:
        for _, server in stage:
            spans.update(table_spans(server.batch_ms))
            spans.add(exact(server.max_wait_ms))
            slowest = max(slowest, *server.batch_ms.values(), server.max_wait_ms)
    busy_ms = (prepared.requests + 1) * slowest * len(prepared.stages) + math.fsum(prepared.model.transfer_ms)
    if isinstance(arrivals, TraceArrivals):
        return _trace_in_ticks(arrivals, spans, busy_ms)
    assert isinstance(arrivals, DeterministicArrivals)
    between = 1000 / exact(arrivals.rate_rps)
    clock = clock_for({*spans, between}, 1, busy_ms + float(between) * prepared.requests)
    if clock.ticks_per_ms is None:
        return None
    return clock, np.arange(1, prepared.requests + 1, dtype=np.int64) * clock.span(between)


def _trace_in_ticks(
    arrivals: TraceArrivals, spans: set[Fraction], busy_ms: float
) -> tuple[Clock, Instants] | None:
    found = on_grid(arrivals.times_s)
    if found is None:
        return None
    parts, per_s = found
    length_ms = 1e3 * (arrivals.times_s[-1] - arrivals.times_s[0])
    clock = clock_for(spans, per_s // 1000, busy_ms + length_ms)
    if clock.ticks_per_ms is None:
        return None
    return clock, (parts - parts[0]) * (clock.ticks_per_ms // (per_s // 1000))


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
    return run_model(prepare(request, 0), 0).response_ms


def simulate_paced(
    request: SimulationRequest, number: int, paces: Mapping[str, Pace]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Response times, ms, of the request's model of this number, in the order of arrival, without a warm-up.

    A batch of a server in `paces` (by id) takes its time of the request times the server's pace at the instant at
    which it begins, in ms from the first arrival. The request is taken as valid.
    """
    return run_model(replace(prepare(request, number), paces=paces), 0).response_ms

"""What one model's day is made of on a side: its pieces of one rate and the same servers, and its queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np

from torchsplit_core.day_plans.replay.server_periods import ServedDay, ServerPeriod
from torchsplit_core.day_plans.replay.time_sample import HOUR_S, ReplayPiece, SimulatedAxis, with_whole_pieces
from torchsplit_core.day_plans.replay.variant_flow import QueuesOfVariant
from torchsplit_core.simulation.changing.routed_engines import ChangingEngines, OpenEngine
from torchsplit_core.simulation.changing.stage_line import StageLine
from torchsplit_core.simulation.changing.stage_queue import DrawnFactors, OpenStation, StageQueue
from torchsplit_core.simulation.continuous.engines import run_engines
from torchsplit_core.simulation.continuous.request_tokens import RequestTokens, request_tokens
from torchsplit_core.simulation.station import batch_time, make_station
from torchsplit_core.simulation.time_base import TimeBase
from torchsplit_core.tables.demand_trace.trace_csv import DAY_S, DemandTrace
from torchsplit_core.values import EngineServer, PoissonArrivals, Server, Service, SimulatedModel

ROUNDS, MOST_AT_ONCE = 8, 2000
"""Requests that are there at once, times the sequences of an engine, where its capacity is taken."""
TOKENS_AT_A_TIME = 4096


@dataclass(frozen=True, slots=True)
class ModelDay:
    """A model's servers by variant in the order in which they are chosen, and its pieces."""

    name: str
    variants: Mapping[str, SimulatedModel]
    periods: tuple[ServerPeriod, ...]
    pieces: tuple[ReplayPiece, ...]


def model_day(day: ServedDay, name: str, trace: DemandTrace) -> ModelDay:
    """The model's part of a served day; the trace has a column for it."""
    variants = {variant: model for (model_name, variant), model in day.models.items() if model_name == name}
    periods = sorted(
        (period for period in day.periods if period.server.model == name),
        key=_ms_per_request,
    )
    bounds = {0.0, float(DAY_S)}
    bounds |= {float(step * trace.step_s) for step in range(trace.moments)}
    bounds |= {float(moment) for moment in range(-trace.first_s % HOUR_S, DAY_S, HOUR_S)}
    bounds |= {moment for period in periods for moment in (period.begin_s, period.end_s)}
    # Engines that close work on what they have: how long it takes counts, so that time is not left out.
    drains = [
        (period.end_s, min(float(DAY_S), period.end_s + period.drain_s))
        for period in periods
        if isinstance(period.server, EngineServer) and period.end_s < DAY_S
    ]
    moments = sorted(bounds | {moment for drain in drains for moment in drain})
    pieces = tuple(_piece(begin, end, trace, name, periods, variants) for begin, end in pairwise(moments))
    return ModelDay(name, variants, tuple(periods), with_whole_pieces(pieces, drains))


def _piece(
    begin: float,
    end: float,
    trace: DemandTrace,
    name: str,
    periods: Sequence[ServerPeriod],
    variants: Mapping[str, SimulatedModel],
) -> ReplayPiece:
    step = int((begin + end) / 2 // trace.step_s)
    running = [period for period in periods if period.begin_s <= begin and end <= period.end_s]
    capacities = {}
    for variant, model in variants.items():
        by_stage = tuple(
            sum(_capacity_rps(period.server, model) for period in running
                if period.variant == variant and period.server.stage == stage)
            for stage in model.stages
        )  # fmt: skip
        if all(by_stage):
            capacities[variant] = by_stage
    count = sum(period.server.count for period in running)
    held = sum(period.server.count * _batch(period.server) for period in running)
    hour = int((begin + end) / 2 + trace.first_s) // HOUR_S % 24
    return ReplayPiece(begin, end, step, trace.rates[name][step], capacities, count, held, hour=hour)


def _batch(server: Server | EngineServer) -> int:
    """Requests that it works on at once, at most."""
    return server.max_batch if isinstance(server, Server) else server.max_num_seqs


def _capacity_rps(server: Server | EngineServer, model: SimulatedModel) -> float:
    """Requests/s in full batches; of engines while many more wait than they take."""
    if isinstance(server, EngineServer):
        alone = replace(server, id="engine", count=1)
        return server.count * _engine_rps(alone, replace(model, arrivals=PoissonArrivals(1.0)))
    batch_ms = float(batch_time(server.batch_ms, server.max_batch))
    return server.count * server.max_batch / batch_ms * 1e3


@cache
def _engine_rps(engine: EngineServer, model: SimulatedModel) -> float:
    count = min(ROUNDS * engine.max_num_seqs, MOST_AT_ONCE)
    tokens = request_tokens(model, (engine,), count, (0,))
    run = run_engines(engine, np.zeros(count), tokens.prompts, tokens.outputs, tokens.cached)
    # The middle half of the answers: at the beginning and at the end the engine is not full.
    early, late = np.quantile(run.last_token_s, (0.25, 0.75))
    return count / 2 / float(late - early) if late > early else count / float(run.last_token_s.max())


def _ms_per_request(period: ServerPeriod) -> float:
    """Of a full batch: the fastest servers stand first, as in the simulation of a plan."""
    server = period.server
    return server.batch_ms[server.max_batch] / server.max_batch if isinstance(server, Server) else 0.0


def make_queues(
    day: ModelDay, axis: SimulatedAxis, rng: np.random.Generator
) -> Mapping[str, QueuesOfVariant]:
    """The queues of the model's variants, on an axis of simulated time."""
    lines: dict[str, QueuesOfVariant] = {}
    for variant, model in day.variants.items():
        periods = [period for period in day.periods if period.variant == variant]
        if any(isinstance(period.server, EngineServer) for period in periods):
            lines[variant] = _engines(periods, model, axis, rng)
        else:
            stages = [_stage(periods, stage, axis, rng) for stage in model.stages]
            lines[variant] = StageLine(stages, model.transfer_ms)
    return lines


def _stage(
    periods: Sequence[ServerPeriod], stage: str, axis: SimulatedAxis, rng: np.random.Generator
) -> StageQueue:
    factors: dict[Service, DrawnFactors] = {}
    stations = []
    for place, period in enumerate(periods):
        server = period.server
        if isinstance(server, Server) and server.stage == stage:
            drawn: DrawnFactors | None = None
            if server.service.kind != "deterministic":
                drawn = factors.setdefault(server.service, DrawnFactors(server.service, rng))
            station = make_station(place, server, TimeBase(), drawn)
            stations.append(OpenStation(station, axis.to_ms(period.begin_s), axis.to_ms(period.end_s)))
    return StageQueue(stations)


def _engines(
    periods: Sequence[ServerPeriod], model: SimulatedModel, axis: SimulatedAxis, rng: np.random.Generator
) -> ChangingEngines:
    seeds = [int(seed) for seed in rng.integers(2**31, size=2)]
    engines = [
        OpenEngine(period.server, axis.to_ms(period.begin_s), axis.to_ms(period.end_s), 1e3 * period.drain_s)
        for period in periods
        if isinstance(period.server, EngineServer)
    ]
    servers = [item.server for item in engines]

    def draw(block: int) -> RequestTokens:
        return request_tokens(model, servers, TOKENS_AT_A_TIME, (*seeds, block))

    return ChangingEngines(engines, draw)

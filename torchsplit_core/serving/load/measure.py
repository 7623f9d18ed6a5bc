"""A plan served and loaded: arrivals as the simulation makes them, sent, and set beside plan and simulation."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from torchsplit_core.hardware import discover_host, unsteady_words, watch_cores
from torchsplit_core.responding.front import beside_generator, front_load, front_ms, held_ms, short_words
from torchsplit_core.responding.servers import simulation_request
from torchsplit_core.responding.spread import simulate_drawn, with_spread
from torchsplit_core.serving.load.compare import Measured, outcome_of
from torchsplit_core.serving.load.session import Served, send, served
from torchsplit_core.serving.roster import Roster
from torchsplit_core.serving.settings import LoadSettings, ServeSettings
from torchsplit_core.simulation.arrivals import offered_rps, times_ms
from torchsplit_core.simulation.validate import check_arrivals
from torchsplit_core.values import (
    InputFault,
    MmppArrivals,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Progress,
    SimulationRequest,
    TraceArrivals,
    ignore_progress,
)
from torchsplit_core.values.limits import check_number
from torchsplit_core.values.serving.measurement import Measurement
from torchsplit_core.values.simulation.request import Arrivals

LONGEST_S = 3600.0
MOST_REQUESTS = 5_000_000
HOP_REQUESTS = 40
"""Of each model at start, one at a time: the way through the front while nothing else is on it."""
LEAST_GAP_S = 0.05

ArrivalsOf = Callable[[PlanModel], Arrivals]


def measure(
    outcome: PlanOutcome,
    request: PlanRequest,
    serving: ServeSettings,
    load: LoadSettings | None = None,
    *,
    arrivals: ArrivalsOf = lambda model: model.expected_arrivals,
    progress: Progress = ignore_progress,
    hear: Callable[[dict[str, Any]], None] = lambda moment: None,
) -> Measurement:
    """Serve the plan in a process of its own, load it, and say where measured, simulated and planned part.

    `hear` gets a moment of the run twice a second: `at_s`, and by model what the generator and the queues say.
    Raises InputFault as `serve` does, and for a load that makes no sense.
    """
    from torchsplit_core.serving.front.server import prepare, slices_held

    load = load or LoadSettings()
    check_number("--load", load.load, positive=True)
    check_number("--duration-s", load.duration_s, positive=True)
    if load.duration_s > LONGEST_S:
        problem = f"is {load.duration_s:g}, above the longest measurement, {LONGEST_S:g} s"
        raise InputFault("--duration-s", problem, "Measure for less time.")
    roster = prepare(outcome, request, serving)
    # The server takes them for as long as it is there; one that has them already is not disturbed meanwhile.
    with slices_held(roster, serving):
        pass
    times = arrival_times(request, roster, load, arrivals)
    of_slices = {core for place in roster.slices for core in place.cores}
    cores = sorted(os.sched_getaffinity(0) - of_slices)
    front = front_warning(outcome, request, load.load) if serving.stand_in == "none" else ""
    if front:
        progress(0.0, front)
    if of_slices:
        progress(0.0, "checking whether the cores keep their speed")
    unsteady = unsteady_words(watch_cores(of_slices))
    with served(outcome, request, serving, lambda share, text: progress(0.2 * share, text)) as server:
        requests = {model.name: server.request_of(model.name) for model in roster.models}
        hops: dict[str, Hop] = {}
        for number, model in enumerate(roster.models):
            progress(0.2 + 0.1 * number / len(roster.models), f"timing single requests to {model.name}")
            hops[model.name] = _hop(server, roster, model.name, requests[model.name], cores)
        server.ask("DELETE", "/torchsplit/tallies")

        def moment(told: dict[str, Any]) -> None:
            at = float(told["at_s"])
            progress(0.3 + 0.6 * min(1.0, at / load.duration_s), f"{at:.0f} of {load.duration_s:g} s of load")
            hear(told | {"queues": server.ask("GET", "/torchsplit/state")["models"]})

        sent = send(server, requests, times, cores, moment)
        tallies = server.ask("GET", "/torchsplit/tallies")
        warnings = server.warnings
    progress(0.95, "simulating the same arrivals")
    asked = simulation_of(outcome, request, times, hops_of(hops))
    simulated = simulate_drawn(asked)
    report = discover_host()
    where = f"{report.cpu_name}, {report.cpu_cores} cores"
    gpus = sorted({place.device.name for place in roster.slices if place.device.kind != "cpu"})
    total = {name: hop.total_ms for name, hop in hops.items()}
    in_front = {model.name: model.front_ms for model in asked.models}
    measured = Measured(sent, tallies, total, hops_of(hops), load.duration_s, in_front)
    found = outcome_of(outcome, roster, measured, asked, simulated, points=serving.stand_in == "none")
    return replace(
        found,
        load=load.load,
        host="; ".join([where, *gpus]),
        stand_in=serving.stand_in,
        warnings=(
            *warnings,
            *crowding(cores),
            *filter(None, [front, unsteady]),
            *deaths(tallies),
            *simulated.warnings,
        ),
    )


def front_warning(outcome: PlanOutcome, request: PlanRequest, load: float = 1.0) -> str:
    """What of so many times the demands the front does not pass, with our own load generator beside it.

    Empty where all of it passes, and where the request does not tell what the front costs.
    """
    found = front_load(beside_generator(request, outcome, load), outcome)
    return "" if found is None else short_words(found)


def crowding(cores: Sequence[int]) -> tuple[str, ...]:
    """What a reader must know of the cores that front and load had."""
    if cores:
        return ()
    return (
        "every core of this host belongs to a slice: the front and the load generator took time from the models",
    )


def deaths(tallies: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Which servers lost workers while they were under load."""
    for server, tally in tallies.items():
        if count := tally["deaths"]:
            workers = "a worker" if count == 1 else f"{count} workers"
            yield (
                f"{server}: {workers} died under load and the next was started; what waited meanwhile counts in the "
                "measured times"
            )


def arrival_times(
    request: PlanRequest, roster: Roster, load: LoadSettings, arrivals: ArrivalsOf
) -> dict[str, list[float]]:
    """Seconds at which each served model's requests are due. Raises InputFault for too many or none at all."""
    served_names = {model.name for model in roster.models}
    found: dict[str, list[float]] = {}
    for number, model in enumerate(request.models):
        if model.name not in served_names:
            continue
        kind = arrivals(model)
        where = f"models: {model.name}: arrivals"
        check_arrivals(where, kind, 1)
        rate = (offered_rps(kind) or 0.0) * load.load
        most = (
            len(kind.times_s) if isinstance(kind, TraceArrivals) else int(rate * load.duration_s * 1.5) + 100
        )
        if most > MOST_REQUESTS:
            problem = (
                f"makes {most:,} requests of {rate:g}/s, above the {MOST_REQUESTS:,} that are sent to a model"
            )
            raise InputFault(
                f"models: {model.name}: demand_rps", problem, "Use a smaller --load or --duration-s."
            )
        if isinstance(kind, MmppArrivals):
            # Which states it goes through is drawn for all of the requests.
            check_arrivals(where, kind, most)
        rng = np.random.default_rng([load.seed, number])
        due = times_ms(kind, most, rng, load.load) / 1e3
        found[model.name] = [float(time) for time in due[due <= load.duration_s]]
    if not any(found.values()):
        problem = f"is {load.duration_s:g}, and no request is due in that time"
        raise InputFault("--duration-s", problem, "Measure for longer, or raise --load.")
    return found


@dataclass(frozen=True, slots=True)
class Hop:
    """ms of an idle request beside the computing: all of it, and by server id what keeps a worker busy meanwhile."""

    total_ms: float
    hand_over_ms: Mapping[str, float]


def hops_of(hops: Mapping[str, Hop]) -> dict[str, float]:
    """Hand-over by server id, of all models."""
    return {server: ms for hop in hops.values() for server, ms in hop.hand_over_ms.items()}


def _hop(server: Served, roster: Roster, model: str, request: bytes, cores: Sequence[int]) -> Hop:
    """Requests one at a time while nothing else runs: response less computing, medians."""
    server.ask("DELETE", "/torchsplit/tallies")
    warm = send(server, {model: request}, {model: [0.0]}, cores).answers[model]
    gap = max(LEAST_GAP_S, 2 * warm[0][1])
    times = [(1 + number) * gap for number in range(HOP_REQUESTS)]
    server.ask("DELETE", "/torchsplit/tallies")
    answers = send(server, {model: request}, {model: times}, cores).answers[model]
    good = [response for _, response, status in answers if status == 200]
    if not good:
        told = f"status {answers[0][2]}" if answers[0][2] else "no answer"
        raise InputFault(
            model,
            f"gives {told} to its own example",
            "Serve the plan by itself to see why (torchsplit serve).",
        )
    tallies = server.ask("GET", "/torchsplit/tallies")
    compute = 0.0
    hand_over: dict[str, float] = {}
    for position, _ in enumerate(next(one for one in roster.models if one.name == model).stages):
        ids = {one.server for one in roster.workers if (one.model, one.position) == (model, position)}
        alone = {id_: tallies[id_] for id_ in ids if tallies[id_]["compute_ms"]}
        own = [ms for tally in alone.values() for times_ in tally["compute_ms"].values() for ms in times_]
        whole = [ms for tally in alone.values() for times_ in tally["whole_ms"].values() for ms in times_]
        compute += statistics.median(own)
        hand_over |= dict.fromkeys(ids, max(0.0, statistics.median(whole) - statistics.median(own)))
    return Hop(max(0.0, statistics.median(good) * 1e3 - compute), hand_over)


def simulation_of(
    outcome: PlanOutcome,
    request: PlanRequest,
    times: Mapping[str, Sequence[float]],
    hand_over_ms: Mapping[str, float],
) -> SimulationRequest:
    """The plan's simulation of these very arrivals, its batches drawn as the measured points vary.

    A hand-over keeps a worker busy as its batch does, and is as slow as that is. The front, where the request tells its
    costs, has the load generator on its core where there is no other.
    """
    asked = simulation_request(
        outcome,
        replace(request, front=None),
        lambda model: TraceArrivals(tuple(times.get(model.name) or (0.0,))),
    )
    front = front_ms(beside_generator(request, outcome, 1.0), outcome)
    servers = tuple(
        replace(
            one,
            batch_ms={
                size: held_ms(ms, size, hand_over_ms.get(one.id, 0.0), front.get(one.model, 0.0))
                for size, ms in one.batch_ms.items()
            },
        )
        for one in asked.servers
    )
    models = tuple(replace(model, front_ms=front.get(model.name, 0.0)) for model in asked.models)
    asked = replace(asked, models=models, servers=servers, replications=1)
    return with_spread(asked, outcome, request)

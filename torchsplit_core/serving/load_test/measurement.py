"""Measures a plan: serves it, sends the simulation's arrivals and compares the result with plan and simulation."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from torchsplit_core.hardware import discover_host, instability_words, measure_cores
from torchsplit_core.latency_slo.frontend import (
    describe_shortfall,
    frontend_load,
    frontend_ms,
    with_load_generator,
    worker_busy_ms,
)
from torchsplit_core.latency_slo.service_variance import simulate_with_variance, with_lognormal_service
from torchsplit_core.latency_slo.simulation_input import simulation_request
from torchsplit_core.serving.load_test.comparison import LoadTestData, build_measurement
from torchsplit_core.serving.load_test.llm_comparison import LlmResult, with_llms
from torchsplit_core.serving.load_test.llm_load import (
    cache_warnings,
    fetch_steps,
    llm_load,
    llm_traffic,
    measure_llm_hop,
    without_llms,
)
from torchsplit_core.serving.load_test.session import LoadResult, ServerHandle, send_load, serving_session
from torchsplit_core.serving.plan import ServingPlan
from torchsplit_core.serving.settings import LoadSettings, ServeSettings
from torchsplit_core.simulation.arrivals import arrival_times_ms, offered_rps
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
"""Single requests to each model at the start, which measure the idle frontend."""
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
    on_progress: Callable[[dict[str, Any]], None] = lambda report_progress: None,
) -> Measurement:
    """Serve the plan in a child process, load it, and compare measured, simulated and planned figures.

    `on_progress` gets a sample of the run twice a second: `at_s`, and by model the generator's figures and the queues.
    Raises InputFault as `serve` does, and for invalid load settings.
    """
    from torchsplit_core.serving.frontend.server import prepare_serving, reserve_slices

    load = load or LoadSettings()
    check_number("--load", load.load, positive=True)
    check_number("--duration-s", load.duration_s, positive=True)
    if load.duration_s > LONGEST_S:
        problem = f"is {load.duration_s:g}, above the longest measurement, {LONGEST_S:g} s"
        raise InputFault("--duration-s", problem, "Measure for less time.")
    serving_plan = prepare_serving(outcome, request, serving)
    # Fail early, before a server that already has these slices is disturbed.
    with reserve_slices(serving_plan, serving):
        pass
    planned_rps = {model.name: model.throughput_rps for model in outcome.models}
    times = arrival_times(request, serving_plan, load, arrivals, planned_rps)
    traffic = llm_traffic(outcome, request, serving_plan, times, load.seed)
    batch_outcome, batch_request = without_llms(outcome, request) if traffic else (outcome, request)
    slice_cores = {core for bound_slice in serving_plan.slices for core in bound_slice.cores}
    cores = sorted(os.sched_getaffinity(0) - slice_cores)
    front = front_warning(outcome, request, load.load) if serving.stand_in == "none" else ""
    if front:
        progress(0.0, front)
    if slice_cores:
        progress(0.0, "checking whether the cores keep their speed")
    unsteady = instability_words(measure_cores(slice_cores))
    with serving_session(
        outcome, request, serving, lambda share, text: progress(0.2 * share, text)
    ) as server:
        llm_hops: dict[str, float] = {}
        for item in traffic:
            progress(0.2, f"timing single requests to {item.name}")
            llm_hops[item.name] = measure_llm_hop(server, item, slice_cores)
        requests = {model.name: server.example_request(model.name) for model in serving_plan.models}
        hops: dict[str, Hop] = {}
        for number, model in enumerate(serving_plan.models):
            progress(0.2 + 0.1 * number / len(serving_plan.models), f"timing single requests to {model.name}")
            hops[model.name] = _measure_hop(server, serving_plan, model.name, requests[model.name], cores)
        server.fetch_json("DELETE", "/torchsplit/tallies")

        def report_progress(sample: dict[str, Any]) -> None:
            at = float(sample["at_s"])
            progress(0.3 + 0.6 * min(1.0, at / load.duration_s), f"{at:.0f} of {load.duration_s:g} s of load")
            on_progress(sample | {"queues": server.fetch_json("GET", "/torchsplit/state")["models"]})

        def report_llm(share: float, text: str) -> None:
            progress(0.3 + 0.6 * share, text)

        with llm_load(
            server, traffic, slice_cores, report_llm if not serving_plan.models else None
        ) as answers:
            load_result = LoadResult({}, 0.0)
            if serving_plan.models:
                batch_times = {model.name: times[model.name] for model in serving_plan.models}
                load_result = send_load(server, requests, batch_times, cores, report_progress)
        steps = fetch_steps(server) if traffic else {}
        tallies = server.fetch_json("GET", "/torchsplit/tallies")
        warnings = server.warnings
    progress(0.95, "simulating the same arrivals")
    measurement = Measurement(outcome.request_sha256, load.duration_s, load.load, "", ())
    simulated_warnings: tuple[str, ...] = ()
    if serving_plan.models:
        sim_request = build_simulation(batch_outcome, batch_request, times, hand_over_by_server(hops))
        simulated = simulate_with_variance(sim_request)
        simulated_warnings = simulated.warnings
        total = {name: hop.total_ms for name, hop in hops.items()}
        in_front = {model.name: model.front_ms for model in sim_request.models}
        measured = LoadTestData(
            load_result, tallies, total, hand_over_by_server(hops), load.duration_s, in_front
        )
        measurement = build_measurement(
            batch_outcome, serving_plan, measured, sim_request, simulated, points=serving.stand_in == "none"
        )
    results = {
        name: LlmResult(sent.result(), steps, llm_hops[name], load.duration_s)
        for name, sent in answers.items()
    }
    measurement = with_llms(measurement, traffic, results)
    report = discover_host()
    processor = f"{report.cpu_name}, {report.cpu_cores} cores"
    gpus = sorted({bound.device.name for bound in serving_plan.slices if bound.device.kind != "cpu"})
    return replace(
        measurement,
        load=load.load,
        host="; ".join([processor, *gpus]),
        stand_in=serving.stand_in,
        warnings=(
            *warnings,
            *core_warnings(cores),
            *filter(None, [front, unsteady]),
            *death_warnings(tallies),
            *cache_warnings(traffic),
            *simulated_warnings,
        ),
    )


def front_warning(outcome: PlanOutcome, request: PlanRequest, load: float = 1.0) -> str:
    """A warning if the frontend, with the load generator beside it, cannot carry `load` times the demands.

    Empty if it can, or if the request has no costs of the frontend.
    """
    overload = frontend_load(with_load_generator(request, outcome, load), outcome)
    return "" if overload is None else describe_shortfall(overload)


def core_warnings(cores: Sequence[int]) -> tuple[str, ...]:
    """A warning if frontend and load generator had no cores of their own."""
    if cores:
        return ()
    return (
        "every core of this host belongs to a slice: the front and the load generator took time from the models",
    )


def death_warnings(tallies: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Warnings of workers that died under load."""
    for server, tally in tallies.items():
        if count := tally["deaths"]:
            workers = "a worker" if count == 1 else f"{count} workers"
            yield (
                f"{server}: {workers} died under load and the next was started; what waited meanwhile counts in the "
                "measured times"
            )


def arrival_times(
    request: PlanRequest,
    serving_plan: ServingPlan,
    load: LoadSettings,
    arrivals: ArrivalsOf,
    planned_rps: Mapping[str, float] = {},
) -> dict[str, list[float]]:
    """Due times (s) of each served model's requests; an LLM gets `load` times the lesser of its demand and its planned
    rate. Raises InputFault for too many, or none.
    """
    served_names = {served.model for served in serving_plan.engines}
    served_names |= {model.name for model in serving_plan.models}
    times_s: dict[str, list[float]] = {}
    for number, model in enumerate(request.models):
        if model.name not in served_names:
            continue
        kind = arrivals(model)
        where = f"models: {model.name}: arrivals"
        check_arrivals(where, kind, 1)
        offered, factor = offered_rps(kind) or 0.0, load.load
        if model.llm is not None and offered:
            factor *= min(1.0, planned_rps.get(model.name, offered) / offered)
        rate = offered * factor
        most = int(rate * load.duration_s * 1.5) + 100
        if isinstance(kind, TraceArrivals):
            most = len(kind.times_s)
        if most > MOST_REQUESTS:
            problem = (
                f"makes {most:,} requests of {rate:g}/s, above the {MOST_REQUESTS:,} that are sent to a model"
            )
            raise InputFault(
                f"models: {model.name}: demand_rps", problem, "Use a smaller --load or --duration-s."
            )
        if isinstance(kind, MmppArrivals):
            # Its states are drawn for all requests.
            check_arrivals(where, kind, most)
        rng = np.random.default_rng([load.seed, number])
        due = arrival_times_ms(kind, most, rng, factor) / 1e3
        times_s[model.name] = [float(time) for time in due[due <= load.duration_s]]
    if not any(times_s.values()):
        problem = f"is {load.duration_s:g}, and no request is due in that time"
        raise InputFault("--duration-s", problem, "Measure for longer, or raise --load.")
    return times_s


@dataclass(frozen=True, slots=True)
class Hop:
    """Time (ms) of an idle request besides computing: in total, and by server id while it keeps a worker busy."""

    total_ms: float
    hand_over_ms: Mapping[str, float]


def hand_over_by_server(hops: Mapping[str, Hop]) -> dict[str, float]:
    """Hand-over time of all models, by server id."""
    return {server: ms for hop in hops.values() for server, ms in hop.hand_over_ms.items()}


def _measure_hop(
    server: ServerHandle, serving_plan: ServingPlan, model: str, request: bytes, cores: Sequence[int]
) -> Hop:
    """Measure single requests on an idle server: median response minus median compute time."""
    server.fetch_json("DELETE", "/torchsplit/tallies")
    warm = send_load(server, {model: request}, {model: [0.0]}, cores).answers[model]
    gap = max(LEAST_GAP_S, 2 * warm[0][1])
    times = [(1 + number) * gap for number in range(HOP_REQUESTS)]
    server.fetch_json("DELETE", "/torchsplit/tallies")
    answers = send_load(server, {model: request}, {model: times}, cores).answers[model]
    response_times = [response for _, response, status in answers if status == 200]
    if not response_times:
        status_text = f"status {answers[0][2]}" if answers[0][2] else "no answer"
        raise InputFault(
            model,
            f"gives {status_text} to its own example",
            "Serve the plan by itself to see why (torchsplit serve).",
        )
    tallies = server.fetch_json("GET", "/torchsplit/tallies")
    by_position: dict[int, set[str]] = {}
    for worker in serving_plan.workers:
        if worker.model == model:
            by_position.setdefault(worker.position, set()).add(worker.server)

    def median_ms(ids: set[str], kind: str) -> float:
        batches = [times_ms for id_ in ids for times_ms in tallies[id_][kind].values()]
        return float(statistics.median(chain.from_iterable(batches)))

    compute = 0.0
    hand_over: dict[str, float] = {}
    for ids in by_position.values():
        stage_compute = median_ms(ids, "compute_ms")
        compute += stage_compute
        hand_over |= dict.fromkeys(ids, max(0.0, median_ms(ids, "whole_ms") - stage_compute))
    return Hop(max(0.0, statistics.median(response_times) * 1e3 - compute), hand_over)


def build_simulation(
    outcome: PlanOutcome,
    request: PlanRequest,
    times: Mapping[str, Sequence[float]],
    hand_over_ms: Mapping[str, float],
) -> SimulationRequest:
    """The simulation of the plan with these arrivals; batch times vary as the measured points do.

    A hand-over keeps the worker busy, and slows down as its batch does. The frontend, if the request has its costs,
    shares its core with the load generator where there is no other.
    """
    sim_request = simulation_request(
        outcome,
        replace(request, front=None),
        lambda model: TraceArrivals(tuple(times.get(model.name) or (0.0,))),
    )
    front = frontend_ms(with_load_generator(request, outcome, 1.0), outcome)
    servers = tuple(
        replace(
            server,
            batch_ms={
                size: worker_busy_ms(ms, size, hand_over_ms.get(server.id, 0.0), front.get(server.model, 0.0))
                for size, ms in server.batch_ms.items()
            },
        )
        for server in sim_request.batch_servers
    )
    models = tuple(replace(model, front_ms=front.get(model.name, 0.0)) for model in sim_request.models)
    sim_request = replace(sim_request, models=models, servers=servers, replications=1)
    return with_lognormal_service(sim_request, outcome, request)

"""Compares a load test with plan and simulation, and names what disagrees."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchsplit_core.profiling.measuring.run_statistics import percentile, summarise
from torchsplit_core.serving.load_test.replay import batch_ms, replay_batches
from torchsplit_core.serving.load_test.session import LoadResult
from torchsplit_core.serving.plan import ServingPlan, WorkerSpec
from torchsplit_core.values import (
    ModelLoad,
    PlanOutcome,
    ResponseTimes,
    SimulationOutcome,
    SimulationRequest,
    Tenant,
    point_type,
    tenants_on,
)
from torchsplit_core.values.serving.measurement import (
    Disagreement,
    MeasuredModel,
    MeasuredPoint,
    MeasuredServer,
    MeasuredTimes,
    Measurement,
)

RATE_BAND, TIME_BAND = 0.10, 0.15
"""Relative tolerances of rates and of times."""
LEAST_MS = 0.3
"""Smaller differences are ignored: timers of the event loop are no finer."""
LEAST_BATCHES = 20
"""Least number of batches of one size for a measured point."""
WARM_UP = 0.1
"""First share of a model's requests that percentiles leave out, as in the simulation."""


@dataclass(frozen=True, slots=True)
class LoadTestData:
    """The data of a load test: responses, batch statistics by server id, and hop times.

    `hop_ms`, by model: the time of an idle request besides computing. `hand_over_ms`, by server id: the part of it in
    which the worker takes no other batch. `front_ms`, by model: the part that the simulation has as the frontend.
    """

    load: LoadResult
    tallies: Mapping[str, Mapping[str, Any]]
    hop_ms: Mapping[str, float]
    hand_over_ms: Mapping[str, float]
    duration_s: float
    front_ms: Mapping[str, float] = field(default_factory=dict)


def build_measurement(
    outcome: PlanOutcome,
    serving_plan: ServingPlan,
    measured: LoadTestData,
    sim_request: SimulationRequest,
    simulated: SimulationOutcome,
    *,
    points: bool = True,
) -> Measurement:
    """Build the measurement; without `points` if stand-ins ran instead of the plan's slices."""
    loads = {model.name: model for model in simulated.models}
    planned = {model.name: model.throughput_rps for model in outcome.models}
    servers = tuple(_measured_servers(serving_plan, measured, sim_request, simulated))
    traces = {id_: tally["course"] for id_, tally in measured.tallies.items()}
    replayed_ms = replay_batches(sim_request, traces, measured.load.begun_s)
    models = tuple(
        _measured_model(
            model.name, serving_plan, measured, planned, loads[model.name], replayed_ms.get(model.name, ())
        )
        for model in serving_plan.models
    )
    return Measurement(
        request_sha256=outcome.request_sha256,
        duration_s=measured.duration_s,
        load=1.0,
        host="",
        models=models,
        servers=servers,
        points=tuple(_measured_points(outcome, measured.tallies)) if points else (),
        disagreements=tuple(
            fault
            for model in models
            for fault in _disagreements(
                model, [server for server in servers if server.model == model.name], measured
            )
        ),
    )


def _measured_model(
    name: str,
    serving_plan: ServingPlan,
    measured: LoadTestData,
    planned: Mapping[str, float],
    load: ModelLoad,
    replayed_ms: Iterable[float],
) -> MeasuredModel:
    answers = sorted(measured.load.answers.get(name, []))
    good = [(due, response) for due, response, status in answers if status == 200]
    last = max((due + response for due, response in good), default=0.0)
    offered = len(answers) / measured.duration_s
    statuses = Counter(status for _, _, status in answers)
    # Time that keeps neither a worker nor the simulated frontend busy is added to simulated and replayed responses.
    inside = _hand_over(name, serving_plan, measured) + measured.front_ms.get(name, 0.0)
    on_top = max(0.0, measured.hop_ms[name] - inside)
    times = load.response_ms
    return MeasuredModel(
        name,
        offered,
        min(offered, planned[name]),
        len(good) / max(measured.duration_s, last),
        _add_ms(times, on_top),
        percentiles(without_warm_up([response for _, response in good])),
        measured.hop_ms[name],
        len(answers) - len(good),
        tuple(sorted(statuses.items())),
        percentiles(without_warm_up([(ms + on_top) / 1e3 for ms in replayed_ms])),
        simulated_low_ms=_add_bound(load.response_low_ms, on_top),
        simulated_high_ms=_add_bound(load.response_high_ms, on_top),
    )


def _add_ms(times: ResponseTimes, on_top: float) -> MeasuredTimes:
    return MeasuredTimes(*(None if ms is None else ms + on_top for ms in (times.p50, times.p95, times.p99)))


def _add_bound(times: ResponseTimes | None, on_top: float) -> MeasuredTimes | None:
    return None if times is None else _add_ms(times, on_top)


def _hand_over(name: str, serving_plan: ServingPlan, measured: LoadTestData) -> float:
    """Hand-over time (ms) of all stages of a model."""
    by_stage: dict[int, float] = {}
    for worker in serving_plan.workers:
        if worker.model == name:
            by_stage[worker.position] = measured.hand_over_ms.get(worker.server, 0.0)
    return sum(by_stage.values())


def without_warm_up(responses_s: Sequence[float]) -> Sequence[float]:
    """Responses without the warm-up; they are in the order of arrival."""
    return responses_s[math.floor(WARM_UP * len(responses_s)) :]


def percentiles(responses_s: Sequence[float]) -> MeasuredTimes:
    """Nearest-rank percentiles in ms, as in the simulation."""
    ordered = sorted(responses_s)
    if not ordered:
        return MeasuredTimes()
    return MeasuredTimes(*(ordered[math.ceil(q * len(ordered)) - 1] * 1e3 for q in (0.50, 0.95, 0.99)))


def _measured_servers(
    serving_plan: ServingPlan,
    measured: LoadTestData,
    sim_request: SimulationRequest,
    simulated: SimulationOutcome,
) -> Iterator[MeasuredServer]:
    specs: dict[str, WorkerSpec] = {}
    for worker in serving_plan.workers:
        specs.setdefault(worker.server, worker)
    entries = {server.id: server for server in sim_request.batch_servers}
    loads = {server.id: server for server in simulated.servers}
    for id_, spec in specs.items():
        tally, load = measured.tallies[id_], loads[id_]
        batches = [(int(rows), ms) for rows, times in tally["whole_ms"].items() for ms in times]
        count = len(batches)
        yield MeasuredServer(
            id_,
            spec.model,
            spec.stage,
            sum(batch_ms(entries[id_], rows) for rows, _ in batches) * spec.share / count if count else None,
            sum(ms for _, ms in batches) / count if count else None,
            load.utilisation,
            tally["busy_s"] / (measured.duration_s * spec.processes),
            load.mean_batch,
            tally["rows"] / tally["batches"] if tally["batches"] else None,
            tally["waited_s"] * 1e3 / tally["rows"] if tally["rows"] else None,
        )


def _measured_points(
    outcome: PlanOutcome, tallies: Mapping[str, Mapping[str, Any]]
) -> Iterator[MeasuredPoint]:
    """A point for each batch size with enough batches; like a profile's it counts compute time only."""
    from torchsplit_core.latency_slo.simulation_input import server_id

    times_by_point: dict[tuple[str, ...], tuple[str, str, Tenant, dict[int, list[float]]]] = {}
    for gpu, item, tenant in tenants_on(outcome.gpus):
        kind = point_type(gpu.type)
        key = (tenant.model, tenant.variant, tenant.stage, kind, item.profile, str(tenant.processes))
        *_, times = times_by_point.setdefault(key, (kind, item.profile, tenant, {}))
        for rows, rows_ms in tallies[server_id(gpu, item, tenant)]["compute_ms"].items():
            times.setdefault(int(rows), []).extend(rows_ms)
    for kind, profile, tenant, times in times_by_point.values():
        for rows, rows_ms in sorted(times.items()):
            if len(rows_ms) < LEAST_BATCHES:
                continue
            summary = summarise([rows_ms])
            scale = 1000.0 * tenant.processes * rows
            yield MeasuredPoint(
                tenant.model, tenant.variant, tenant.stage, kind, profile, rows, tenant.processes,
                scale / summary.mean_ms, summary.latency.p95.value,
                scale / summary.mean_high_ms, scale / summary.mean_low_ms, len(rows_ms),
            )  # fmt: skip


def _disagreements(
    model: MeasuredModel, servers: Sequence[MeasuredServer], measured: LoadTestData
) -> Iterator[Disagreement]:
    """Disagreements of a model: slow batches, failed requests, waiting, or the frontend."""
    replay = _describe_replay(model)
    slow = False
    for server in servers:
        batch_ms, planned_ms = server.batch_ms, server.planned_batch_ms
        if batch_ms is None or planned_ms is None or not exceeds_tolerance(batch_ms, planned_ms, TIME_BAND):
            continue
        slow = True
        words = (
            f"{model.name} on {server.id}, stage {server.stage}: its batches take {three_digits(batch_ms)} ms, "
            f"{batch_ms / planned_ms - 1:+.0%} against {three_digits(planned_ms)} ms planned ({replay})"
        )
        yield Disagreement(model.name, "service", words, server.id, server.stage)
    if model.errors:
        statuses = ", ".join(
            f"{count} × {status or 'no answer'}" for status, count in model.statuses if status != 200
        )
        yield Disagreement(
            model.name, "load", f"{model.name}: {model.errors} requests got no result ({statuses})"
        )
    rate = abs(model.measured_rps - model.predicted_rps) > RATE_BAND * model.predicted_rps
    late = exceeds_tolerance(
        model.measured_ms.p95, model.simulated_ms.p95, TIME_BAND
    ) and not _within_simulated_range(model)
    if slow or not (rate or late):
        return
    response = [r for _, r, status in measured.load.answers.get(model.name, []) if status == 200]
    if not response or not servers:
        return
    against = (
        f"p95 {_format_ms(model.measured_ms.p95)} against {_format_ms(model.simulated_ms.p95)} simulated, "
        f"{model.measured_rps:.4g} of {model.predicted_rps:.4g} requests/s"
    )
    longest = max(servers, key=lambda server: server.wait_ms or 0.0)
    if model.replayed_ms.p95 is not None and not exceeds_tolerance(
        model.measured_ms.p95, model.replayed_ms.p95, TIME_BAND
    ):
        words = (
            f"{model.name}: the batches took other times than planned, and the queues follow from that ({replay}); "
            f"{_describe_spread(measured.tallies[longest.id])} on {longest.id}, stage {longest.stage} ({against})"
        )
        yield Disagreement(model.name, "service", words, longest.id, longest.stage)
        return
    inside = sum(_stage_ms(servers, stage) for stage in dict.fromkeys(server.stage for server in servers))
    outside = sum(response) * 1e3 / len(response) - inside
    if outside > model.hop_ms + max(LEAST_MS, TIME_BAND * inside):
        words = (
            f"{model.name}: passing through the front takes {three_digits(outside)} ms under load and "
            f"{three_digits(model.hop_ms)} ms alone ({against})"
        )
        yield Disagreement(model.name, "front", words)
        return
    sooner = (model.measured_ms.p95 or 0.0) < (model.simulated_ms.p95 or 0.0)
    words = (
        f"{model.name}: answers {'faster' if sooner else 'slower'} than simulated ({against}), and its batches take "
        f"what was planned. Its longest wait is {three_digits(longest.wait_ms or 0.0)} ms, before stage "
        f"{longest.stage} on {longest.id} ({replay})"
    )
    yield Disagreement(model.name, "wait", words, longest.id, longest.stage)


def three_digits(value: float) -> str:
    """The value with three digits and without an exponent."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _format_ms(value: float | None) -> str:
    return "n/a" if value is None else f"{three_digits(value)} ms"


def _describe_replay(model: MeasuredModel) -> str:
    """Say how far the replayed p95 is from the measured one."""
    replayed_p95, measured_p95 = model.replayed_ms.p95, model.measured_ms.p95
    if replayed_p95 is None or measured_p95 is None:
        return "replayed p95 n/a"
    return f"replayed p95 {three_digits(replayed_p95)} ms, {replayed_p95 / measured_p95 - 1:+.0%} against measured"


def _describe_spread(tally: Mapping[str, Any]) -> str:
    """The spread of times of the most frequent batch size."""
    rows, times = max(tally["whole_ms"].items(), key=lambda pair: len(pair[1]))
    ordered = sorted(times)
    low, high = percentile(ordered, 0.05), percentile(ordered, 0.95)
    return f"batches of {rows} took {three_digits(low)} to {three_digits(high)} ms (5 to 95 %)"


def _stage_ms(servers: Sequence[MeasuredServer], stage: str) -> float:
    """Mean waiting and service time of a stage, its servers weighted by utilisation."""
    stage_servers = [server for server in servers if server.stage == stage and server.batch_ms is not None]
    weight = sum(server.utilisation for server in stage_servers)
    total = sum(
        ((server.wait_ms or 0.0) + (server.batch_ms or 0.0)) * server.utilisation for server in stage_servers
    )
    return total / weight if weight else 0.0


def _within_simulated_range(model: MeasuredModel) -> bool:
    """Whether the measured p95 is within the simulation's range for this host's changes of speed."""
    low, high, measured_p95 = model.simulated_low_ms, model.simulated_high_ms, model.measured_ms.p95
    if low is None or high is None or None in (low.p95, high.p95, measured_p95):
        return False
    assert low.p95 is not None and high.p95 is not None and measured_p95 is not None
    return low.p95 <= measured_p95 <= high.p95


def exceeds_tolerance(value: float | None, reference: float | None, band: float) -> bool:
    """Whether a time (ms) is off by more than this share of the reference; not where either is unknown."""
    if value is None or reference is None:
        return False
    return abs(value - reference) > max(LEAST_MS, band * reference)

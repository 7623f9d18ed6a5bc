"""What a run gave, beside what plan and simulation said, and by name what parts from them."""

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
"""Shares by which a rate, and a time, may differ before that is called a disagreement."""
LEAST_MS = 0.3
"""Times that differ by less are alike: a timer of the event loop is not finer."""
LEAST_BATCHES = 20
"""Of one size, before their mean is a point or a disagreement."""
WARM_UP = 0.1
"""Share of a model's requests, by arrival, that percentiles leave out, as the simulation does."""


@dataclass(frozen=True, slots=True)
class LoadTestData:
    """What came back: every answer, each worker's batches by server id, and ms of the way through the front, by model.

    `hand_over_ms`, by server id, is the part of that in which the worker takes no other batch, `front_ms`, by model,
    the part that the simulation has as the front.
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
    """The measurement; `points` False where what ran is not what the plan's points are of."""
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
    # What keeps neither a worker nor the simulated front busy comes on top of the simulated and the replayed response.
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
        *(
            None if bound is None else _add_ms(bound, on_top)
            for bound in (load.response_low_ms, load.response_high_ms)
        ),
    )


def _add_ms(times: ResponseTimes, on_top: float) -> MeasuredTimes:
    return MeasuredTimes(*(None if ms is None else ms + on_top for ms in (times.p50, times.p95, times.p99)))


def _hand_over(name: str, serving_plan: ServingPlan, measured: LoadTestData) -> float:
    """ms of hand-over through all stages of a model."""
    by_stage: dict[int, float] = {}
    for worker in serving_plan.workers:
        if worker.model == name:
            by_stage[worker.position] = measured.hand_over_ms.get(worker.server, 0.0)
    return sum(by_stage.values())


def without_warm_up(responses_s: Sequence[float]) -> Sequence[float]:
    """Responses in the order of arrival, without the first of them."""
    return responses_s[math.floor(WARM_UP * len(responses_s)) :]


def percentiles(responses_s: Sequence[float]) -> MeasuredTimes:
    """Nearest ranks, in ms, as a simulation's are."""
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
    entries = {server.id: server for server in sim_request.servers}
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
    """A point for each size of batch that came often enough: the computing alone, as a profile has it."""
    from torchsplit_core.latency_slo.simulation_input import server_id

    times_by_point: dict[tuple[str, ...], tuple[str, str, Tenant, dict[int, list[float]]]] = {}
    for gpu in outcome.gpus:
        for item in gpu.slices:
            for tenant in item.tenants:
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
    """Which slice and which stage, in service or in waiting; or the front; or requests that got no answer."""
    slow = [
        server
        for server in servers
        if _exceeds_tolerance(server.batch_ms, server.planned_batch_ms, TIME_BAND)
    ]
    replay = _describe_replay(model)
    for one in slow:
        assert one.batch_ms is not None and one.planned_batch_ms is not None
        words = (
            f"{one.model} on {one.id}, stage {one.stage}: its batches take {_three_digits(one.batch_ms)} ms, "
            f"{one.batch_ms / one.planned_batch_ms - 1:+.0%} against {_three_digits(one.planned_batch_ms)} ms planned "
            f"({replay})"
        )
        yield Disagreement(one.model, "service", words, one.id, one.stage)
    if model.errors:
        statuses = ", ".join(
            f"{count} × {status or 'no answer'}" for status, count in model.statuses if status != 200
        )
        yield Disagreement(
            model.name, "load", f"{model.name}: {model.errors} requests got no result ({statuses})"
        )
    rate = abs(model.measured_rps - model.predicted_rps) > RATE_BAND * model.predicted_rps
    late = _exceeds_tolerance(
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
    if model.replayed_ms.p95 is not None and not _exceeds_tolerance(
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
            f"{model.name}: passing through the front takes {_three_digits(outside)} ms under load and "
            f"{_three_digits(model.hop_ms)} ms alone ({against})"
        )
        yield Disagreement(model.name, "front", words)
        return
    sooner = (model.measured_ms.p95 or 0.0) < (model.simulated_ms.p95 or 0.0)
    words = (
        f"{model.name}: answers {'faster' if sooner else 'slower'} than simulated ({against}), and its batches take "
        f"what was planned. Its longest wait is {_three_digits(longest.wait_ms or 0.0)} ms, before stage {longest.stage} on "
        f"{longest.id} ({replay})"
    )
    yield Disagreement(model.name, "wait", words, longest.id, longest.stage)


def _three_digits(value: float) -> str:
    """Three digits, and no exponent however large."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _format_ms(value: float | None) -> str:
    return "n/a" if value is None else f"{_three_digits(value)} ms"


def _describe_replay(model: MeasuredModel) -> str:
    """How near the queues come with the times that the batches took."""
    replayed_p95, measured_p95 = model.replayed_ms.p95, model.measured_ms.p95
    if replayed_p95 is None or measured_p95 is None:
        return "replayed p95 n/a"
    return f"replayed p95 {_three_digits(replayed_p95)} ms, {replayed_p95 / measured_p95 - 1:+.0%} against measured"


def _describe_spread(tally: Mapping[str, Any]) -> str:
    """What batches of the size that came most often took, from the fast to the slow."""
    rows, times = max(tally["whole_ms"].items(), key=lambda pair: len(pair[1]))
    ordered = sorted(times)
    low, high = percentile(ordered, 0.05), percentile(ordered, 0.95)
    return f"batches of {rows} took {_three_digits(low)} to {_three_digits(high)} ms (5 to 95 %)"


def _stage_ms(servers: Sequence[MeasuredServer], stage: str) -> float:
    """Waiting and service of a stage's requests, the mean of its servers weighted by their time at work."""
    stage_servers = [server for server in servers if server.stage == stage and server.batch_ms is not None]
    weight = sum(server.utilisation for server in stage_servers)
    if not weight:
        return 0.0
    return (
        sum(
            ((server.wait_ms or 0.0) + (server.batch_ms or 0.0)) * server.utilisation
            for server in stage_servers
        )
        / weight
    )


def _within_simulated_range(model: MeasuredModel) -> bool:
    """Whether the measured p95 is one that the simulation has for the changes of speed of this host."""
    low, high, measured_p95 = model.simulated_low_ms, model.simulated_high_ms, model.measured_ms.p95
    if low is None or high is None or None in (low.p95, high.p95, measured_p95):
        return False
    assert low.p95 is not None and high.p95 is not None and measured_p95 is not None
    return low.p95 <= measured_p95 <= high.p95


def _exceeds_tolerance(value: float | None, reference: float | None, band: float) -> bool:
    if value is None or reference is None:
        return False
    return abs(value - reference) > max(LEAST_MS, band * reference)

"""What a run gave, beside what plan and simulation said, and by name what parts from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchsplit_core.profiling.measuring.statistics import percentile, summarise
from torchsplit_core.serving.load.replay import batch_ms, replayed
from torchsplit_core.serving.load.session import Sent
from torchsplit_core.serving.roster import Roster, WorkerSpec
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
class Measured:
    """What came back: every answer, each worker's batches by server id, and ms of the way through the front, by model.

    `hand_over_ms`, by server id, is the part of that in which the worker takes no other batch, `front_ms`, by model,
    the part that the simulation has as the front.
    """

    sent: Sent
    tallies: Mapping[str, Mapping[str, Any]]
    hop_ms: Mapping[str, float]
    hand_over_ms: Mapping[str, float]
    duration_s: float
    front_ms: Mapping[str, float] = field(default_factory=dict)


def outcome_of(
    outcome: PlanOutcome,
    roster: Roster,
    measured: Measured,
    asked: SimulationRequest,
    simulated: SimulationOutcome,
    *,
    points: bool = True,
) -> Measurement:
    """The measurement; `points` False where what ran is not what the plan's points are of."""
    loads = {model.name: model for model in simulated.models}
    planned = {model.name: model.throughput_rps for model in outcome.models}
    servers = tuple(_servers(roster, measured, asked, simulated))
    courses = {id_: tally["course"] for id_, tally in measured.tallies.items()}
    again = replayed(asked, courses, measured.sent.begun_s)
    models = tuple(
        _model(model.name, roster, measured, planned, loads[model.name], again.get(model.name, ()))
        for model in roster.models
    )
    return Measurement(
        request_sha256=outcome.request_sha256,
        duration_s=measured.duration_s,
        load=1.0,
        host="",
        models=models,
        servers=servers,
        points=tuple(_points(outcome, measured.tallies)) if points else (),
        disagreements=tuple(
            fault
            for model in models
            for fault in _disagreements(model, [one for one in servers if one.model == model.name], measured)
        ),
    )


def _model(
    name: str,
    roster: Roster,
    measured: Measured,
    planned: Mapping[str, float],
    load: ModelLoad,
    again_ms: Iterable[float],
) -> MeasuredModel:
    answers = sorted(measured.sent.answers.get(name, []))
    good = [(due, response) for due, response, status in answers if status == 200]
    last = max((due + response for due, response in good), default=0.0)
    offered = len(answers) / measured.duration_s
    statuses = Counter(status for _, _, status in answers)
    # What keeps neither a worker nor the simulated front busy comes on top of the simulated and the replayed response.
    inside = _hand_over(name, roster, measured) + measured.front_ms.get(name, 0.0)
    on_top = max(0.0, measured.hop_ms[name] - inside)
    times = load.response_ms
    return MeasuredModel(
        name,
        offered,
        min(offered, planned[name]),
        len(good) / max(measured.duration_s, last),
        _with(times, on_top),
        percentiles(without_warm_up([response for _, response in good])),
        measured.hop_ms[name],
        len(answers) - len(good),
        tuple(sorted(statuses.items())),
        percentiles(without_warm_up([(ms + on_top) / 1e3 for ms in again_ms])),
        *(
            None if end is None else _with(end, on_top)
            for end in (load.response_low_ms, load.response_high_ms)
        ),
    )


def _with(times: ResponseTimes, on_top: float) -> MeasuredTimes:
    return MeasuredTimes(*(None if ms is None else ms + on_top for ms in (times.p50, times.p95, times.p99)))


def _hand_over(name: str, roster: Roster, measured: Measured) -> float:
    """ms of hand-over through all stages of a model."""
    by_stage: dict[int, float] = {}
    for worker in roster.workers:
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


def _servers(
    roster: Roster, measured: Measured, asked: SimulationRequest, simulated: SimulationOutcome
) -> Iterator[MeasuredServer]:
    specs: dict[str, WorkerSpec] = {}
    for worker in roster.workers:
        specs.setdefault(worker.server, worker)
    entries = {one.id: one for one in asked.servers}
    loads = {one.id: one for one in simulated.servers}
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


def _points(outcome: PlanOutcome, tallies: Mapping[str, Mapping[str, Any]]) -> Iterator[MeasuredPoint]:
    """A point for each size of batch that came often enough: the computing alone, as a profile has it."""
    from torchsplit_core.responding.servers import server_id

    found: dict[tuple[str, ...], tuple[str, str, Tenant, dict[int, list[float]]]] = {}
    for gpu in outcome.gpus:
        for item in gpu.slices:
            for tenant in item.tenants:
                kind = point_type(gpu.type)
                key = (tenant.model, tenant.variant, tenant.stage, kind, item.profile, str(tenant.processes))
                *_, times = found.setdefault(key, (kind, item.profile, tenant, {}))
                for rows, own in tallies[server_id(gpu, item, tenant)]["compute_ms"].items():
                    times.setdefault(int(rows), []).extend(own)
    for kind, profile, tenant, times in found.values():
        for rows, own in sorted(times.items()):
            if len(own) < LEAST_BATCHES:
                continue
            summary = summarise([own])
            scale = 1000.0 * tenant.processes * rows
            yield MeasuredPoint(
                tenant.model, tenant.variant, tenant.stage, kind, profile, rows, tenant.processes,
                scale / summary.mean_ms, summary.latency.p95.value,
                scale / summary.mean_high_ms, scale / summary.mean_low_ms, len(own),
            )  # fmt: skip


def _disagreements(
    model: MeasuredModel, servers: Sequence[MeasuredServer], measured: Measured
) -> Iterator[Disagreement]:
    """Which slice and which stage, in service or in waiting; or the front; or requests that got no answer."""
    slow = [one for one in servers if _apart(one.batch_ms, one.planned_batch_ms, TIME_BAND)]
    replay = _replay_words(model)
    for one in slow:
        assert one.batch_ms is not None and one.planned_batch_ms is not None
        words = (
            f"{one.model} on {one.id}, stage {one.stage}: its batches take {_three(one.batch_ms)} ms, "
            f"{one.batch_ms / one.planned_batch_ms - 1:+.0%} against {_three(one.planned_batch_ms)} ms planned "
            f"({replay})"
        )
        yield Disagreement(one.model, "service", words, one.id, one.stage)
    if model.errors:
        told = ", ".join(
            f"{count} × {status or 'no answer'}" for status, count in model.statuses if status != 200
        )
        yield Disagreement(
            model.name, "load", f"{model.name}: {model.errors} requests got no result ({told})"
        )
    rate = abs(model.measured_rps - model.predicted_rps) > RATE_BAND * model.predicted_rps
    late = _apart(model.measured_ms.p95, model.simulated_ms.p95, TIME_BAND) and not _between(model)
    if slow or not (rate or late):
        return
    response = [r for _, r, status in measured.sent.answers.get(model.name, []) if status == 200]
    if not response or not servers:
        return
    against = (
        f"p95 {_ms(model.measured_ms.p95)} against {_ms(model.simulated_ms.p95)} simulated, "
        f"{model.measured_rps:.4g} of {model.predicted_rps:.4g} requests/s"
    )
    longest = max(servers, key=lambda one: one.wait_ms or 0.0)
    if model.replayed_ms.p95 is not None and not _apart(
        model.measured_ms.p95, model.replayed_ms.p95, TIME_BAND
    ):
        words = (
            f"{model.name}: the batches took other times than planned, and the queues follow from that ({replay}); "
            f"{_spread(measured.tallies[longest.id])} on {longest.id}, stage {longest.stage} ({against})"
        )
        yield Disagreement(model.name, "service", words, longest.id, longest.stage)
        return
    inside = sum(_stage_ms(servers, stage) for stage in dict.fromkeys(one.stage for one in servers))
    outside = sum(response) * 1e3 / len(response) - inside
    if outside > model.hop_ms + max(LEAST_MS, TIME_BAND * inside):
        words = (
            f"{model.name}: passing through the front takes {_three(outside)} ms under load and "
            f"{_three(model.hop_ms)} ms alone ({against})"
        )
        yield Disagreement(model.name, "front", words)
        return
    sooner = (model.measured_ms.p95 or 0.0) < (model.simulated_ms.p95 or 0.0)
    words = (
        f"{model.name}: answers {'faster' if sooner else 'slower'} than simulated ({against}), and its batches take "
        f"what was planned. Its longest wait is {_three(longest.wait_ms or 0.0)} ms, before stage {longest.stage} on "
        f"{longest.id} ({replay})"
    )
    yield Disagreement(model.name, "wait", words, longest.id, longest.stage)


def _three(value: float) -> str:
    """Three digits, and no exponent however large."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _ms(value: float | None) -> str:
    return "n/a" if value is None else f"{_three(value)} ms"


def _replay_words(model: MeasuredModel) -> str:
    """How near the queues come with the times that the batches took."""
    found, wanted = model.replayed_ms.p95, model.measured_ms.p95
    if found is None or wanted is None:
        return "replayed p95 n/a"
    return f"replayed p95 {_three(found)} ms, {found / wanted - 1:+.0%} against measured"


def _spread(tally: Mapping[str, Any]) -> str:
    """What batches of the size that came most often took, from the fast to the slow."""
    rows, times = max(tally["whole_ms"].items(), key=lambda pair: len(pair[1]))
    ordered = sorted(times)
    low, high = percentile(ordered, 0.05), percentile(ordered, 0.95)
    return f"batches of {rows} took {_three(low)} to {_three(high)} ms (5 to 95 %)"


def _stage_ms(servers: Sequence[MeasuredServer], stage: str) -> float:
    """Waiting and service of a stage's requests, the mean of its servers weighted by their time at work."""
    own = [one for one in servers if one.stage == stage and one.batch_ms is not None]
    weight = sum(one.utilisation for one in own)
    if not weight:
        return 0.0
    return sum(((one.wait_ms or 0.0) + (one.batch_ms or 0.0)) * one.utilisation for one in own) / weight


def _between(model: MeasuredModel) -> bool:
    """Whether the measured p95 is one that the simulation has for the changes of speed of this host."""
    low, high, found = model.simulated_low_ms, model.simulated_high_ms, model.measured_ms.p95
    if low is None or high is None or None in (low.p95, high.p95, found):
        return False
    assert low.p95 is not None and high.p95 is not None and found is not None
    return low.p95 <= found <= high.p95


def _apart(found: float | None, wanted: float | None, band: float) -> bool:
    if found is None or wanted is None:
        return False
    return abs(found - wanted) > max(LEAST_MS, band * wanted)

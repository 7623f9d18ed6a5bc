"""Simulates a request. Each model runs by itself, since models share no server except the front."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.simulation.arrivals import is_random, offered_rps, request_count
from torchsplit_core.simulation.capacity import capacity_rps, is_stable
from torchsplit_core.simulation.continuous.engine_load import engine_loads, engine_model_load
from torchsplit_core.simulation.continuous.engine_model import EngineModel, prepare_engine_model
from torchsplit_core.simulation.frontend import MOST_PASSED, frontend_capacity_rps
from torchsplit_core.simulation.max_load import find_max_load
from torchsplit_core.simulation.output_statistics import half_width, mean, response_statistics, without_warmup
from torchsplit_core.simulation.replication import PreparedModel, prepare_model, replication_count, run_model
from torchsplit_core.simulation.tandem import ReplicationRun
from torchsplit_core.simulation.validate import request_warnings, validate
from torchsplit_core.values import (
    HalfWidths,
    ModelLoad,
    Progress,
    ResponseTimes,
    ServerLoad,
    SimulatedModel,
    SimulationOutcome,
    SimulationRequest,
    TraceArrivals,
    WaitTimes,
    ignore_progress,
)


@dataclass(frozen=True, slots=True)
class ModelRun:
    """One simulated model: its load, its servers' loads by index in the request's list, and warnings.

    `response_ms` holds each replication's response times after the warm-up, in order of arrival. It is empty if
    random arrivals exceed the capacity, since response times then grow without limit.
    """

    load: ModelLoad
    servers: Mapping[int, ServerLoad]
    warnings: tuple[str, ...]
    response_ms: tuple[NDArray[np.float64], ...]


def prepare(request: SimulationRequest, number: int, draws: int = 1) -> PreparedModel | EngineModel:
    """Prepare the model of this index, for servers that take batches or for engines."""
    name = request.models[number].name
    if any(engine.model == name for engine in request.engines):
        return prepare_engine_model(request, number, draws)
    return prepare_model(request, number, draws)


def simulate_model(request: SimulationRequest, number: int) -> ModelRun:
    """Simulate the model of this index alone, with the draws that `simulate` uses. The request is not validated."""
    return _run_model(request, prepare(request, number))


def simulate(
    request: SimulationRequest, progress: Progress = ignore_progress, *, draws: int = 1
) -> SimulationOutcome:
    """Simulate a request. Raises InputFault for a request that fails validation.

    `draws` is the number of replications of a model whose arrivals are a trace and whose service times or lengths are
    drawn.
    """
    began = perf_counter()
    validate(request)
    warnings = list(request_warnings(request))
    prepared = [prepare(request, number, draws) for number in range(len(request.models))]
    models = []
    servers: dict[int, ServerLoad] = {}
    simulate_share = 0.5 if request.find else 1.0
    for number, prepared_model in enumerate(prepared):
        progress(simulate_share * number / len(prepared), f"simulating {prepared_model.model.name}")
        run = _run_model(request, prepared_model)
        models.append(run.load)
        servers.update(run.servers)
        warnings += run.warnings
    simulated = perf_counter()
    max_load = None
    if request.find is not None:
        if not all(model.has_limit for model in request.models):
            warnings.append("Models without a limit (slo_ms) do not limit the highest load.")
        max_load = find_max_load(
            request,
            prepared,
            lambda share, text: progress(simulate_share + (1 - simulate_share) * share, text),
        )
    statistics: dict[str, str | int | float] = {
        "simulate_s": simulated - began,
        "find_s": perf_counter() - simulated,
        "requests": sum(
            prepared_model.requests
            * (
                prepared_model.replications
                if isinstance(prepared_model, EngineModel)
                else replication_count(prepared_model, request.replications)
            )
            for prepared_model in prepared
        ),
    }
    return SimulationOutcome(
        tuple(models),
        tuple(servers[place] for place in range(len(request.servers))),
        max_load,
        tuple(warnings),
        statistics,
    )


def _run_model(request: SimulationRequest, prepared: PreparedModel | EngineModel) -> ModelRun:
    if isinstance(prepared, EngineModel):
        return _run_engines(request, prepared)
    return _run_batches(request, prepared)


def _run_engines(request: SimulationRequest, prepared: EngineModel) -> ModelRun:
    runs = [prepared.run(replication) for replication in range(prepared.replications)]
    load = engine_model_load(prepared, runs, request.replications)
    warnings = [*_reduced_requests_warnings(request, prepared)]
    if load.stable is False:
        warnings.insert(0, _unstable_warning(load, prepared))
    if load.cut_requests:
        warnings.append(
            f"{load.name}: {load.cut_requests} of {load.completed} requests were drawn longer than an engine takes, "
            "and cut."
        )
    counted = tuple(run.response_ms for run in runs) if load.response_ms.mean is not None else ()
    return ModelRun(load, engine_loads(prepared, runs), tuple(warnings), counted)


def _run_batches(request: SimulationRequest, prepared: PreparedModel) -> ModelRun:
    runs = [run_model(prepared, k) for k in range(replication_count(prepared, request.replications))]
    counted = tuple(without_warmup(run.response_ms, request.warmup_share) for run in runs)
    load = _model_load(request, prepared, runs, counted)
    has_statistics = load.response_ms.mean is not None
    warnings = (_unstable_warning(load, prepared),) if load.stable is False else ()
    return ModelRun(
        load,
        _server_loads(prepared, runs),
        (*warnings, *_reduced_requests_warnings(request, prepared)),
        counted if has_statistics else (),
    )


def _reduced_requests_warnings(
    request: SimulationRequest, prepared: PreparedModel | EngineModel
) -> Iterator[str]:
    wanted = request_count(prepared.model.arrivals, request.requests_per_model)
    if prepared.requests < wanted:
        yield (
            f"{prepared.model.name}: {prepared.requests} of {wanted} requests are simulated in a replication, while "
            f"{MOST_PASSED} of all models pass the front."
        )


def _unstable_warning(load: ModelLoad, prepared: PreparedModel | EngineModel) -> str:
    arriving = "all requests" if load.offered_rps is None else f"{load.offered_rps:.6g} requests/s"
    at_once = " at once" if load.offered_rps is None else ""
    front = frontend_capacity_rps(prepared.frontend, prepared.number) == load.capacity_rps
    beside = ", beside those of the other models," if len(prepared.frontend) > 1 else ""
    by = f"passed on by the front{beside}".rstrip(",") if front else "served"
    text = f"{load.name}: {arriving} arrive{at_once} and {load.capacity_rps:.6g} requests/s can be {by}"
    if is_random(prepared.model.arrivals):
        return f"{text}, so its queue grows without limit."
    return f"{text}, so it is not stable: its times are of these arrivals alone."


def _model_load(
    request: SimulationRequest,
    prepared: PreparedModel,
    runs: Sequence[ReplicationRun],
    counted: Sequence[NDArray[np.float64]],
) -> ModelLoad:
    model = prepared.model
    stable = is_stable(prepared)
    has_statistics = stable is not False or not is_random(model.arrivals)
    waited = [without_warmup(run.wait_ms, request.warmup_share) for run in runs]
    figures = [response_statistics(values) for values in counted]
    alike = not prepared.random and not isinstance(model.arrivals, TraceArrivals)
    widths: dict[str, float | None] = {}
    if has_statistics:
        for name in ("mean", "p50", "p95", "p99"):
            known = [figure[name] for figure in figures]
            # Replications without draws are all equal.
            widths[name] = 0.0 if alike and request.replications > 1 else half_width(known)
    response = (
        {name: mean([figure[name] for figure in figures]) for name in figures[0]} if has_statistics else {}
    )
    if has_statistics:
        response["max"] = max(figure["max"] for figure in figures)
    attainment = None
    if has_statistics and model.slo_ms is not None:
        attainment = mean(
            [float(np.count_nonzero(values <= model.slo_ms)) / len(values) for values in counted]
        )
    batches = [batch for run in runs for batch in run.stages]
    copies = request.replications if alike else 1
    return ModelLoad(
        model.name,
        offered_rps(model.arrivals),
        capacity_rps(prepared),
        stable,
        copies * sum(len(run.response_ms) for run in runs),
        mean([len(run.response_ms) / run.length_ms * 1e3 for run in runs]),
        ResponseTimes(**response),
        HalfWidths(**widths),
        WaitTimes(mean([float(values.mean()) for values in waited]) if has_statistics else None),
        attainment,
        sum(int(batch.sizes.sum()) for batch in batches) / sum(len(batch.sizes) for batch in batches),
        _bytes_across_cuts(model, runs),
        *(_percentile_bands(figures) if has_statistics and prepared.paced else (None, None)),
    )


def _percentile_bands(figures: Sequence[Mapping[str, float]]) -> tuple[ResponseTimes, ResponseTimes]:
    """The 5 % and 95 % quantiles of each figure over the replications, interpolated linearly."""
    names = list(figures[0])
    ends = np.quantile([[figure[name] for name in names] for figure in figures], (0.05, 0.95), axis=0)
    low, high = (ResponseTimes(**dict(zip(names, map(float, end), strict=True))) for end in ends)
    return low, high


def _bytes_across_cuts(model: SimulatedModel, runs: Sequence[ReplicationRun]) -> float | None:
    """Bytes/s over all cuts: those per batch of the stage before the cut plus those per request."""
    if not model.cut_bytes and not model.cut_bytes_per_request:
        return None
    rates = []
    for run in runs:
        fixed = sum(
            len(batches.sizes) * carried
            for batches, carried in zip(run.stages, model.cut_bytes, strict=False)
        )
        adding = len(run.response_ms) * sum(model.cut_bytes_per_request)
        rates.append((fixed + adding) / run.length_ms * 1e3)
    return mean(rates)


def _server_loads(prepared: PreparedModel, runs: Sequence[ReplicationRun]) -> dict[int, ServerLoad]:
    """Utilization of each entry, over all its servers, by its index in the request's list."""
    loads = {}
    for depth, stage in enumerate(prepared.stages):
        served = [(run, run.stages[depth]) for run in runs]
        most = 1 + max(place for place, _ in stage)
        busy = []
        requests, batches = np.zeros(most), np.zeros(most)
        for run, batch_log in served:
            spans = np.bincount(
                batch_log.entries,
                weights=run.time_base.to_ms(batch_log.ends - batch_log.starts),
                minlength=most,
            )
            busy.append(spans / run.length_ms)
            requests += np.bincount(batch_log.entries, weights=batch_log.sizes, minlength=most)
            batches += np.bincount(batch_log.entries, minlength=most)
        for place, server in stage:
            used = mean([float(shares[place]) / server.count for shares in busy])
            size = float(requests[place] / batches[place]) if batches[place] else None
            loads[place] = ServerLoad(server.id, used, size)
    return loads

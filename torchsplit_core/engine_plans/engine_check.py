"""The engines of a plan, model by model, at the load that they get: whether they keep the limits, and their figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.engine_plans.engine_figures import (
    MOST_REMEMBERED,
    EngineRequests,
    engine_requests,
    engine_server,
    request_count,
)
from torchsplit_core.simulation.arrivals import offered_rps
from torchsplit_core.simulation.continuous.engine_model import prepare_engine_model
from torchsplit_core.simulation.continuous.largest_rate import BUSY
from torchsplit_core.simulation.output_statistics import half_width, mean, percentile
from torchsplit_core.values import (
    EnginePoint,
    PlanModel,
    PlannedEngine,
    PlannedGpu,
    PlanOutcome,
    PlanRequest,
    TokenFigure,
    tenants_on,
)

ROUNDING = 1e-9
"""Relative part of a limit that rounding may add."""


@dataclass(frozen=True, slots=True)
class CheckedEngines:
    """A model's engines under load. `broken`: the limits whose percentile's upper end is above them."""

    broken: tuple[str, ...]
    ttft_ms: TokenFigure | None = None
    tpot_ms: TokenFigure | None = None
    output_tokens_per_s: float | None = None


def planned_engines(gpus: Iterable[PlannedGpu]) -> dict[str, list[PlannedEngine]]:
    """The engines of each model in the order of the plan, one on several GPUs once."""
    engines: dict[str, list[PlannedEngine]] = {}
    seen: set[str] = set()
    for _, _, tenant in tenants_on(gpus):
        if tenant.engine is None or tenant.engine.group in seen:
            continue
        if tenant.engine.group is not None:
            seen.add(tenant.engine.group)
        engines.setdefault(tenant.model, []).append(tenant.engine)
    return engines


def check_engines(request: PlanRequest, outcome: PlanOutcome) -> dict[str, CheckedEngines]:
    """By name the LLMs of a plan that have engines, at the lesser of their demand and their throughput."""
    engines = planned_engines(outcome.gpus)
    rates = {model.name: model.throughput_rps for model in outcome.models}
    return {
        model.name: check_model(request, model, engines[model.name], min(model.demand_rps, rates[model.name]))
        for model in request.models
        if model.llm is not None and model.name in engines
    }


def check_model(
    request: PlanRequest, model: PlanModel, engines: Sequence[PlannedEngine], rate_rps: float
) -> CheckedEngines:
    """One LLM on these engines at this rate; from measured points where one of them has no steps."""
    llm = model.llm
    assert llm is not None
    if llm.config is None or any(engine.step is None for engine in engines):
        return _measured(model, engines)
    # Equal models need no further simulation, whichever GPUs they are on.
    ungrouped = sorted((replace(engine, group=None) for engine in engines), key=repr)
    return _simulated(tuple(ungrouped), engine_requests(llm, request.seed), rate_rps)


def _measured(model: PlanModel, engines: Sequence[PlannedEngine]) -> CheckedEngines:
    """The largest times of the points in use, which stand for the simulation."""
    points = [
        point
        for point in model.points
        if isinstance(point, EnginePoint) and point.engine in {replace(item, group=None) for item in engines}
    ]
    ttft, tpot = ([t for t in times if t is not None] for times in (
        [point.ttft_ms for point in points], [point.tpot_ms for point in points]
    ))  # fmt: skip
    return CheckedEngines(
        (), TokenFigure(max(ttft)) if ttft else None, TokenFigure(max(tpot)) if tpot else None
    )


@lru_cache(maxsize=MOST_REMEMBERED)
def _simulated(
    engines: tuple[PlannedEngine, ...], requests: EngineRequests, rate_rps: float
) -> CheckedEngines:
    if not rate_rps:
        return CheckedEngines(())
    servers = tuple(engine_server("llm", engine, str(number)) for number, engine in enumerate(engines))
    count = sum(request_count(server, requests) for server in servers)
    prepared = prepare_engine_model(requests.simulation("llm", servers, count), 0)
    base = offered_rps(requests.arrivals)
    assert base is not None
    # Each engine's own capacity, as its rate was found: a run of all together ends with some engines idle.
    if rate_rps > BUSY * sum(_capacity_rps(engine, requests) for engine in engines) * (1 + ROUNDING):
        limits = zip(("max_ttft_ms", "max_tpot_ms"), requests.limits, strict=True)
        return CheckedEngines(tuple(name for name, limit in limits if limit is not None))
    runs = [prepared.run(number, rate_rps / base) for number in range(prepared.replications)]
    ttft = _figure([run.ttft_ms for run in runs], requests.percentile)
    tpot = _figure([run.tpot_ms for run in runs if len(run.tpot_ms)], requests.percentile)
    broken = tuple(
        name
        for name, limit, figure in (
            ("max_ttft_ms", requests.max_ttft_ms, ttft),
            ("max_tpot_ms", requests.max_tpot_ms, tpot),
        )
        if limit is not None and figure is not None and (figure.high or figure.value) > limit * (1 + ROUNDING)
    )
    tokens = mean([float(run.tokens.outputs.mean()) for run in runs])
    return CheckedEngines(broken, ttft, tpot, rate_rps * tokens)


@lru_cache(maxsize=MOST_REMEMBERED)
def _capacity_rps(engine: PlannedEngine, requests: EngineRequests) -> float:
    server = engine_server("llm", engine)
    simulation = requests.simulation("llm", (server,), request_count(server, requests))
    return prepare_engine_model(simulation, 0).capacity_rps


def _figure(times_ms: Sequence[NDArray[np.float64]], percent: float) -> TokenFigure | None:
    """The percentile over replications, with its 95 % interval."""
    if not times_ms:
        return None
    values = [percentile(times, percent) for times in times_ms]
    value, half = mean(values), half_width(values)
    p50, p95, p99 = (mean([percentile(times, p) for times in times_ms]) for p in (50.0, 95.0, 99.0))
    if half is None:
        return TokenFigure(value, p50=p50, p95=p95, p99=p99)
    return TokenFigure(value, max(value - half, 0.0), value + half, p50, p95, p99)

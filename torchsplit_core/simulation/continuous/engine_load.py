"""What a simulation answers of a model with engines: its times, rates and shares, and how busy each engine was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from torchsplit_core.simulation.arrivals import is_random, offered_rps
from torchsplit_core.simulation.continuous.engine_model import EngineModel, EngineReplication
from torchsplit_core.simulation.output_statistics import (
    TOKEN_PERCENTILES,
    half_width,
    mean,
    response_statistics,
)
from torchsplit_core.values import (
    HalfWidths,
    ModelLoad,
    ResponseTimes,
    ServerLoad,
    TokenTimes,
    TraceArrivals,
    WaitTimes,
)

Figures = Sequence[Mapping[str, float]]
"""mean, percentiles and max of each replication."""


def engine_model_load(prepared: EngineModel, runs: Sequence[EngineReplication], wanted: int) -> ModelLoad:
    """The load of a model. `wanted` replications were asked for; without draws one stands for all of them."""
    model, stable = prepared.model, is_stable(prepared)
    known = runs if stable is not False or not is_random(model.arrivals) else ()
    copies = wanted // len(runs) if not isinstance(model.arrivals, TraceArrivals) else 1
    response = _figures(known, lambda run: run.response_ms)
    ttft = _figures(known, lambda run: run.ttft_ms)
    tpot = _figures(known, lambda run: run.tpot_ms)
    gaps = [run.run.gaps.statistics(TOKEN_PERCENTILES) for run in known if run.run.gaps.count]
    uses = [use for run in runs for use in run.run.engines]
    goodput = None
    if known and (model.max_ttft_ms is not None or model.max_tpot_ms is not None):
        goodput = mean([float(run.is_good(model.max_ttft_ms, model.max_tpot_ms).mean()) for run in known])
    attainment = None
    if known and model.slo_ms is not None:
        attainment = mean([float((run.response_ms <= model.slo_ms).mean()) for run in known])
    return ModelLoad(
        model.name,
        offered_rps(model.arrivals),
        prepared.capacity_rps,
        stable,
        copies * len(runs) * prepared.requests,
        mean([prepared.requests / run.length_s for run in runs]),
        ResponseTimes(**_means(response)),
        _half_widths(response, copies),
        WaitTimes(mean([float(run.wait_ms.mean()) for run in known]) if known else None),
        attainment,
        sum(use.sequences for use in uses) / sum(use.steps for use in uses),
        ttft_ms=TokenTimes(**_means(ttft)),
        ttft_ci95_ms=_half_widths(ttft, copies),
        tpot_ms=TokenTimes(**_means(tpot)),
        tpot_ci95_ms=_half_widths(tpot, copies),
        itl_ms=TokenTimes(**_means(gaps)),
        goodput=goodput,
        prompt_tokens_per_s=mean([int(run.tokens.prompts.sum()) / run.length_s for run in runs]),
        output_tokens_per_s=mean([int(run.tokens.outputs.sum()) / run.length_s for run in runs]),
        preemptions=copies * sum(run.run.preemptions for run in runs),
        cut_requests=copies * sum(run.tokens.cut for run in runs),
    )


def is_stable(prepared: EngineModel) -> bool | None:
    """Whether the offered load is below the capacity; None for a single arrival, which has no rate."""
    offered = offered_rps(prepared.model.arrivals)
    if offered is None:
        return None if prepared.requests == 1 else False
    return offered < prepared.capacity_rps


def engine_loads(prepared: EngineModel, runs: Sequence[EngineReplication]) -> dict[int, ServerLoad]:
    """The load of each entry, over all its engines, by its index in the request's list."""
    loads = {}
    for entry, (place, server) in enumerate(prepared.engines):
        by_run = [[use for use in run.run.engines if use.entry == entry] for run in runs]
        uses = [use for of_run in by_run for use in of_run]
        busy = [
            sum(use.busy_s for use in of_run) / server.count / run.length_s
            for run, of_run in zip(runs, by_run, strict=True)
        ]
        sequences = sum(use.sequences for use in uses) / sum(use.steps for use in uses) if uses else None
        peak = max((use.kv_peak_blocks for use in uses), default=0)
        loads[place] = ServerLoad(server.id, mean(busy), sequences, peak)
    return loads


def _figures(
    runs: Sequence[EngineReplication], times_of: Callable[[EngineReplication], np.ndarray[Any, Any]]
) -> Figures:
    times = [times_of(run) for run in runs]
    return [response_statistics(values, TOKEN_PERCENTILES) for values in times if len(values)]


def _means(figures: Figures) -> dict[str, float]:
    """The mean of each figure over the replications, the largest of `max`."""
    if not figures:
        return {}
    means = {name: mean([figure[name] for figure in figures]) for name in figures[0]}
    return means | {"max": max(figure["max"] for figure in figures)}


def _half_widths(figures: Figures, copies: int) -> HalfWidths:
    if not figures:
        return HalfWidths()
    names = ("mean", "p50", "p95", "p99")
    # Replications without draws are all equal.
    if copies > 1:
        return HalfWidths(**dict.fromkeys(names, 0.0))
    return HalfWidths(**{name: half_width([figure[name] for figure in figures]) for name in names})

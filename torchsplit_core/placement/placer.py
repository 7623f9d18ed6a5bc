"""From a placement request to its verified outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

from torchsplit_core.placement.block_search import exceeds_enumeration, search_blocks
from torchsplit_core.placement.latency.in_flight import best_pipeline
from torchsplit_core.placement.literal.size import literal_size
from torchsplit_core.placement.model.instance import ProblemInstance, SearchResult
from torchsplit_core.placement.model.memory import missing_memory
from torchsplit_core.placement.model.segments import SegmentModel, build_instance
from torchsplit_core.placement.outcome.infeasibility import explain_infeasibility
from torchsplit_core.placement.outcome.pipeline import build_pipeline
from torchsplit_core.placement.outcome.verification import verify
from torchsplit_core.placement.replicas import PipelineSetResult, replicas_outcome, search_pipelines
from torchsplit_core.placement.request.validate import validate
from torchsplit_core.placement.search.warm_start import warm_start_from
from torchsplit_core.solver.highs import solver_name
from torchsplit_core.values import (
    PlacementOutcome,
    PlacementRequest,
    Progress,
    TableThroughput,
    ignore_progress,
)


def place(
    request: PlacementRequest,
    *,
    warm_start: PlacementOutcome | None = None,
    progress: Progress = ignore_progress,
) -> PlacementOutcome:
    """The best placement, verified, by the method of `request.solver`.

    warm_start: an earlier outcome of a similar request, whose pipeline the exact search tries first if it still fits.
    Raises InputFault for an invalid request, or one that is too large for the literal program.
    """
    begun = time.perf_counter()
    validate(request)
    missing = missing_memory(request)
    if missing is not None:
        nothing = PlacementOutcome("infeasible", None, None, None, message=missing, units=request.units)
        return replace(
            nothing, statistics={"method": request.solver.method, "solve_s": time.perf_counter() - begun}
        )
    model = SegmentModel(request)
    instance = build_instance(model)
    limit = request.solver.time_limit_s
    result: SearchResult | PipelineSetResult
    if request.solver.method == "literal":
        # Pyomo takes longer to load than most searches run.
        from torchsplit_core.placement.literal.solve import solve_literal

        size = literal_size(instance)
        progress(
            0.0,
            f"building the literal program, {size.describe()}" if size else "building the literal program",
        )
        result = solve_literal(instance, time_limit_s=limit)
    else:

        def tell(value: float, bound: float) -> None:
            progress(
                min(1.0, (time.perf_counter() - begun) / limit), _describe_progress(request, value, bound)
            )

        first = warm_start_from(request, warm_start) if warm_start is not None else None
        if exceeds_enumeration(model, instance):
            result = search_blocks(model, instance, time_limit_s=limit, progress=tell)
        elif request.max_replicas > 1:
            result = search_pipelines(
                instance, request.max_replicas, time_limit_s=limit, progress=tell, warm_start=first
            )
        else:
            result = best_pipeline(instance, time_limit_s=limit, progress=tell, warm_start=first)
    solved = time.perf_counter()
    measured = isinstance(request.throughput, TableThroughput)
    outcome = replace(_build_outcome(model, instance, result), basis="measured" if measured else "estimated")
    verify(request, outcome)
    seconds = {"solve_s": solved - begun, "verify_s": time.perf_counter() - solved}
    return replace(outcome, statistics=_statistics(request, result, seconds))


def _describe_progress(request: PlacementRequest, value: float, bound: float) -> str:
    """Progress of a search in words. In the literal units a figure may be a link's, so it has no single unit."""
    unit = " tokens/s" if request.units == "tokens_per_s" else ""
    shown = f"best so far {_figure(value)}{unit}" if value > 0 else "looking for a first placement"
    return shown + (f", none is above {_figure(bound)}{unit}" if math.isfinite(bound) else "")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _statistics(
    request: PlacementRequest, result: SearchResult | PipelineSetResult, seconds: Mapping[str, float]
) -> dict[str, str | int | float]:
    statistics: dict[str, str | int | float] = {"method": request.solver.method}
    if request.solver.method == "literal":
        statistics["solver"] = solver_name()
    return {**statistics, **seconds, **result.statistics}


def _build_outcome(
    model: SegmentModel, instance: ProblemInstance, result: SearchResult | PipelineSetResult
) -> PlacementOutcome:
    request = model.request
    if isinstance(result, PipelineSetResult) and result.pipelines:
        return replicas_outcome(model, instance, result)
    if isinstance(result, PipelineSetResult) or not result.segments:
        if result.proven:
            return PlacementOutcome(
                "infeasible",
                None,
                None,
                None,
                message=explain_infeasibility(model, instance),
                units=request.units,
            )
        bound = result.bound if math.isfinite(result.bound) else None
        return PlacementOutcome(
            "timeout",
            None,
            bound,
            None,
            message="Nothing was found in the time given, and nothing says that there is no placement.",
            units=request.units,
        )
    pipeline = build_pipeline(model, instance, result.segments)
    bound = pipeline.throughput if result.proven else max(pipeline.throughput, result.bound)
    return PlacementOutcome(
        "optimal" if result.proven else "feasible",
        pipeline.throughput,
        bound if math.isfinite(bound) else None,
        (bound - pipeline.throughput) / bound if math.isfinite(bound) else None,
        pipeline.segments,
        pipeline.links,
        units=request.units,
        latency_s=pipeline.latency_s,
        sequences_in_flight=pipeline.sequences_in_flight,
    )

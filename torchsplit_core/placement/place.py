"""From a placement request to its verified outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

from torchsplit_core.placement.blocks import search_blocks, too_many_sorts
from torchsplit_core.placement.latency.in_flight import best_pipeline
from torchsplit_core.placement.literal.size import literal_size
from torchsplit_core.placement.model.instance import Found, Instance
from torchsplit_core.placement.model.memory import missing_memory
from torchsplit_core.placement.model.segments import SegmentModel, instance_of
from torchsplit_core.placement.outcome.infeasibility import why_infeasible
from torchsplit_core.placement.outcome.pipeline import placed
from torchsplit_core.placement.outcome.verification import verify
from torchsplit_core.placement.replicas import Pipelines, outcome_of, search_pipelines
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

    warm_start: an earlier outcome, of a similar request; the exact search tries its pipeline first where it still fits.
    Raises InputFault for a request that makes no sense, or that the literal program is too small for.
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
    instance = instance_of(model)
    limit = request.solver.time_limit_s
    found: Found | Pipelines
    if request.solver.method == "literal":
        # Pyomo takes longer to load than most searches take.
        from torchsplit_core.placement.literal.solve import solve_literal

        size = literal_size(instance)
        progress(
            0.0, f"building the literal program, {size.words()}" if size else "building the literal program"
        )
        found = solve_literal(instance, time_limit_s=limit)
    else:

        def tell(value: float, bound: float) -> None:
            progress(min(1.0, (time.perf_counter() - begun) / limit), _so_far(request, value, bound))

        first = warm_start_from(request, warm_start) if warm_start is not None else None
        if too_many_sorts(model, instance):
            found = search_blocks(model, instance, time_limit_s=limit, progress=tell)
        elif request.max_replicas > 1:
            found = search_pipelines(
                instance, request.max_replicas, time_limit_s=limit, progress=tell, warm_start=first
            )
        else:
            found = best_pipeline(instance, time_limit_s=limit, progress=tell, warm_start=first)
    solved = time.perf_counter()
    measured = isinstance(request.throughput, TableThroughput)
    outcome = replace(_outcome(model, instance, found), basis="measured" if measured else "estimated")
    verify(request, outcome)
    seconds = {"solve_s": solved - begun, "verify_s": time.perf_counter() - solved}
    return replace(outcome, statistics=_statistics(request, found, seconds))


def _so_far(request: PlacementRequest, value: float, bound: float) -> str:
    """How far a search is, in words. In the literal units a figure may be a link's: it then has no one unit."""
    unit = " tokens/s" if request.units == "tokens_per_s" else ""
    shown = f"best so far {_figure(value)}{unit}" if value > 0 else "looking for a first placement"
    return shown + (f", none is above {_figure(bound)}{unit}" if math.isfinite(bound) else "")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _statistics(
    request: PlacementRequest, found: Found | Pipelines, seconds: Mapping[str, float]
) -> dict[str, str | int | float]:
    told: dict[str, str | int | float] = {"method": request.solver.method}
    if request.solver.method == "literal":
        told["solver"] = solver_name()
    return {**told, **seconds, **found.statistics}


def _outcome(model: SegmentModel, instance: Instance, found: Found | Pipelines) -> PlacementOutcome:
    request = model.request
    if isinstance(found, Pipelines) and found.pipelines:
        return outcome_of(model, instance, found)
    if isinstance(found, Pipelines) or not found.segments:
        if found.proven:
            return PlacementOutcome(
                "infeasible", None, None, None, message=why_infeasible(model, instance), units=request.units
            )
        bound = found.bound if math.isfinite(found.bound) else None
        return PlacementOutcome(
            "timeout",
            None,
            bound,
            None,
            message="Nothing was found in the time given, and nothing says that there is no placement.",
            units=request.units,
        )
    one = placed(model, instance, found.segments)
    bound = one.throughput if found.proven else max(one.throughput, found.bound)
    return PlacementOutcome(
        "optimal" if found.proven else "feasible",
        one.throughput,
        bound if math.isfinite(bound) else None,
        (bound - one.throughput) / bound if math.isfinite(bound) else None,
        one.segments,
        one.links,
        units=request.units,
        latency_s=one.latency_s,
        sequences_in_flight=one.sequences_in_flight,
    )

"""From a placement request to the verified curve of throughput against latency."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from torchsplit_core.placement.frontier.curve import CurvePoint, FrontierResult
from torchsplit_core.placement.frontier.curve_search import trace_frontier
from torchsplit_core.placement.frontier.verification import verify_frontier
from torchsplit_core.placement.latency.pipeline_plan import PassCosts
from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.model.latency import link_tokens_per_s, tokens_per_pass
from torchsplit_core.placement.model.memory import missing_memory
from torchsplit_core.placement.model.segments import SegmentModel, build_instance
from torchsplit_core.placement.outcome.infeasibility import explain_infeasibility
from torchsplit_core.placement.outcome.pipeline import build_pipeline
from torchsplit_core.placement.request.validate import validate
from torchsplit_core.values import (
    FrontierPoint,
    InputFault,
    PlacementFrontier,
    PlacementRequest,
    Progress,
    TableThroughput,
    ignore_progress,
)
from torchsplit_core.values.profile import Basis
from torchsplit_core.values.status import SolveStatus


def frontier(request: PlacementRequest, *, progress: Progress = ignore_progress) -> PlacementFrontier:
    """The nondominated pipelines in throughput and latency, verified; ignores `max_replicas`.

    Raises InputFault for an invalid request, or one for the literal program.
    """
    begun = time.perf_counter()
    validate(request)
    if request.solver.method == "literal":
        raise InputFault(
            "solver.method",
            "the published program (literal) has one answer and no curve of throughput against latency",
            "Use exact for the curve.",
        )
    basis: Basis = "measured" if isinstance(request.throughput, TableThroughput) else "estimated"
    missing = missing_memory(request)
    if missing is not None:
        seconds = {"solve_s": time.perf_counter() - begun}
        return PlacementFrontier(
            "infeasible",
            complete=True,
            message=missing,
            units=request.units,
            basis=basis,
            statistics=seconds,
        )
    model = SegmentModel(request)
    instance = build_instance(model)
    limit = request.solver.time_limit_s

    def tell(points: tuple[CurvePoint, ...]) -> None:
        low, high = points[0].plan, points[-1].plan
        count = f"{len(points)} points" if len(points) > 1 else "one point"
        text = f"{count} from {low.latency_s:.4g} s to {high.latency_s:.4g} s"
        progress(min(1.0, (time.perf_counter() - begun) / limit), text)

    def tell_top(value: float, bound: float) -> None:
        text = f"highest throughput: {value:.4g} so far, none is above {bound:.4g}"
        progress(min(1.0, (time.perf_counter() - begun) / limit), text)

    progress(0.0, "looking for the highest throughput")
    traced = trace_frontier(instance, pass_costs(request), time_limit_s=limit, tell=tell, tell_top=tell_top)
    solved = time.perf_counter()
    points = tuple(_frontier_point(model, instance, point) for point in traced.points)
    status, message = _status_and_message(model, instance, traced)
    curve = PlacementFrontier(
        status,
        points,
        _bound(traced),
        traced.complete,
        message,
        request.units,
        basis,
    )
    verify_frontier(request, curve)
    seconds = {"solve_s": solved - begun, "verify_s": time.perf_counter() - solved}
    return replace(curve, statistics={**seconds, **traced.statistics})


def pass_costs(request: PlacementRequest) -> PassCosts:
    """The tokens of a pass, and tokens/s of a link value of 1."""
    return PassCosts(float(tokens_per_pass(request)), link_tokens_per_s(request, 1.0))


def _frontier_point(model: SegmentModel, instance: ProblemInstance, point: CurvePoint) -> FrontierPoint:
    pipeline = build_pipeline(model, instance, point.plan.segments)
    bound = pipeline.latency_s if point.proven else min(pipeline.latency_s, point.bound_s)
    return FrontierPoint(
        point.plan.throughput,
        pipeline.latency_s,
        bound,
        point.proven,
        pipeline.segments,
        pipeline.links,
        pipeline.sequences_in_flight,
    )


def _status_and_message(
    model: SegmentModel, instance: ProblemInstance, traced: FrontierResult
) -> tuple[SolveStatus, str]:
    """The status, and the message to go with it."""
    if not traced.points:
        if traced.top_proven:
            return "infeasible", explain_infeasibility(model, instance)
        return (
            "timeout",
            "Nothing was found in the time given, and nothing says that there is no placement.",
        )
    proven = sum(point.proven for point in traced.points)
    notes = []
    if not traced.closed:
        notes.append("The curve is coarse: between its points there may be others.")
    if proven < len(traced.points):
        notes.append(f"{proven} of {len(traced.points)} points are proven.")
    if not traced.top_proven:
        notes.append("A throughput above the last point's is not excluded.")
    done = traced.top_proven and proven == len(traced.points)
    return "optimal" if done else "feasible", " ".join(notes)


def _bound(traced: FrontierResult) -> float | None:
    """The bound of the throughput; exactly the last point's figure if that is proven."""
    if traced.points and traced.top_proven:
        return traced.points[-1].plan.throughput
    if traced.top_proven or not math.isfinite(traced.throughput_bound):
        return None
    return max(traced.throughput_bound, traced.points[-1].plan.throughput if traced.points else 0.0)

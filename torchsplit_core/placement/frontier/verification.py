"""Verifies a curve from the request alone: every point like an outcome, their order, and their proofs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from torchsplit_core.placement.outcome.verification import PROVEN, TOLERANCE, violations
from torchsplit_core.values import InternalFault, PlacementFrontier, PlacementOutcome, PlacementRequest


def verify_frontier(request: PlacementRequest, curve: PlacementFrontier) -> None:
    """Raise InternalFault for the first thing in which the curve breaks the request or the contract."""
    for fault in frontier_violations(request, curve):
        raise InternalFault(f"The curve fails its check: {fault}")


def frontier_violations(request: PlacementRequest, curve: PlacementFrontier) -> Iterator[str]:
    """Everything that is wrong with the curve, in words."""
    points, bound = curve.points, curve.throughput_bound
    if bool(points) != (curve.status in ("optimal", "feasible")):
        yield f"status {curve.status} with {len(points)} points"
    if curve.status == "infeasible" and (bound is not None or not curve.message):
        yield "infeasible with a bound, or without its cause"
    if curve.units != request.units:
        yield f"its units are {curve.units}, not {request.units}"
    alone = replace(request, max_replicas=1)
    for number, point in enumerate(points):
        outcome = PlacementOutcome(
            "feasible",
            point.throughput,
            None,
            None,
            point.segments,
            point.links,
            units=curve.units,
            basis=curve.basis,
            latency_s=point.latency_s,
            sequences_in_flight=point.sequences_in_flight,
        )
        yield from (f"point {number}: {fault}" for fault in violations(alone, outcome))
        if point.latency_bound_s > point.latency_s * (1 + TOLERANCE):
            yield f"point {number} takes {point.latency_s} s, below its bound {point.latency_bound_s}"
        if point.proven != (point.latency_s <= point.latency_bound_s * (1 + PROVEN)):
            yield f"point {number} is told proven {point.proven} with a bound of {point.latency_bound_s} s"
    for number, (low, high) in enumerate(pairwise(points)):
        if not (low.throughput < high.throughput and low.latency_s < high.latency_s):
            yield f"one of the points {number} and {number + 1} beats the other, or they are out of order"
        if low.latency_bound_s > high.latency_s * (1 + TOLERANCE):
            yield f"point {number + 1} is quicker than the bound of point {number}"
    top = points[-1].throughput if points else 0.0
    if points and bound is not None and bound < top * (1 - TOLERANCE):
        yield f"its bound {bound} is below the throughput {top}"
    best = bound is not None and top >= bound * (1 - PROVEN)
    proven = best and all(point.proven for point in points)
    if points and (curve.status == "optimal") != proven:
        yield f"status {curve.status}, though its points are {'' if proven else 'not all '}proven"
    if curve.complete and curve.status not in ("optimal", "infeasible"):
        yield f"complete with status {curve.status}"

"""The counted throughput of a point in a case."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.planning.problem.transfers import link_rps
from torchsplit_core.values import PlanRequest, Point, Variant

UNBOUNDED = float("inf")


@dataclass(frozen=True, slots=True)
class EffectivePoint:
    """A point with the counted requests/s of a whole slice, and the most of one instance.

    The link limits an instance at any share. With whole slices `rate_rps` is already the lesser, and `cap_rps` never
    binds.
    """

    point: Point
    rate_rps: float
    cap_rps: float = UNBOUNDED


def planned_rps(request: PlanRequest, point: Point) -> float:
    """The throughput of a point by which the request is planned: nominal, or its lower end."""
    if request.solver.plan_at == "low" and point.low_rps is not None:
        return point.low_rps
    return point.throughput_rps


def effective_point(
    request: PlanRequest, variant: Variant, stage: int, point: Point, link_gb_per_s: float | None
) -> EffectivePoint:
    """What a point counts for behind a link."""
    rate, cap = planned_rps(request, point), link_rps(variant, stage, point.batch_size, link_gb_per_s)
    if request.sharing == "exclusive":
        return EffectivePoint(point, min(rate, cap))
    return EffectivePoint(point, rate, cap if cap < rate else UNBOUNDED)

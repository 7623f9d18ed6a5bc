"""A point as a case may use it: what of its throughput counts there."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.planning.problem.transfers import link_rps
from torchsplit_core.values import PlanRequest, Point, Variant

UNBOUNDED = float("inf")


@dataclass(frozen=True, slots=True)
class EffectivePoint:
    """A point with the requests/s that a whole slice of it counts for, and the most that one instance may have.

    The link limits an instance, whatever its share. With whole slices the two are one: `rate_rps` is the
    lesser, and nothing is left for `cap_rps` to bind.
    """

    point: Point
    rate_rps: float
    cap_rps: float = UNBOUNDED


def planned_rps(request: PlanRequest, point: Point) -> float:
    """The throughput of a point that the request plans with: as it is, or its lower end."""
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

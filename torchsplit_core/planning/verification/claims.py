"""Shared by every part of the verification: tolerance, point of a tenant, fault of a false figure."""

from __future__ import annotations

from typing import Literal

from torchsplit_core.values import EnginePoint, PlanFault, PlanModel, PlanRequest, Point, Tenant, point_type

TOLERANCE = 1e-6
"""Relative tolerance of sums and limits, separate from the planner's so that widening that does not weaken this."""

REPLAN = "Plan the request again."
"""The remedy for a figure that its slices do not give: only the planner can correct it."""


def same(first: float, second: float) -> bool:
    """Whether two figures are equal within the tolerance."""
    return abs(first - second) <= TOLERANCE * max(abs(first), abs(second))


def find_point(model: PlanModel, kind: str, profile: str, tenant: Tenant) -> Point | None:
    """The model's point that a tenant on a slice of this GPU type and profile uses; None if there is none."""
    gpus = 1 if tenant.engine is None else tenant.engine.tensor_parallel
    key = (point_type(kind), profile, tenant.batch_size, tenant.processes, gpus)
    for variant in model.variants:
        for stage in variant.stages:
            if (variant.name, stage.name) != (tenant.variant, tenant.stage):
                continue
            for point in stage.points:
                engine = point.engine if isinstance(point, EnginePoint) else None
                of_point = 1 if engine is None else engine.tensor_parallel
                if (point.gpu_type, point.profile, point.batch_size, point.processes, of_point) == key:
                    return point
    return None


def throughput(
    request: PlanRequest, point: Point, end: Literal["low_rps", "high_rps"] | None = None
) -> float:
    """The requests/s of a point by which the request is planned, or at an end of its interval if known.

    Of an engine on several GPUs: what each of them has of it.
    """
    ends = {"low_rps": point.low_rps, "high_rps": point.high_rps, None: None}
    known = ends[end]
    if known is None:
        planned = point.low_rps if request.solver.plan_at == "low" else None
        known = point.throughput_rps if planned is None else planned
    if isinstance(point, EnginePoint) and point.engine is not None:
        return known / point.engine.tensor_parallel
    return known


def false_claim(problem: str, model: str | None = None, gpu: str | None = None) -> PlanFault:
    """A fault of an outcome that says something false about its plan."""
    return PlanFault(gpu, None, model, problem, REPLAN)

"""What names a point of a request, and which point each tenant of a plan uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchsplit_core.values import PlannedGpu, PlanRequest, Point, Tenant, point_type

PointKey = tuple[str, str, str, str, str, int, int]
"""Model, variant, stage, gpu_type of the point, profile, batch size, processes."""


def point_table(request: PlanRequest) -> dict[PointKey, Point]:
    """Every point of the request by what names it."""
    return {
        (
            model.name,
            variant.name,
            stage.name,
            point.gpu_type,
            point.profile,
            point.batch_size,
            point.processes,
        ): point
        for model in request.models
        for variant in model.variants
        for stage in variant.stages
        for point in stage.points
    }


def keyed_tenants(gpus: Iterable[PlannedGpu]) -> Iterator[tuple[Tenant, PointKey]]:
    """Every tenant, GPU by GPU and slice by slice, with the name of its point."""
    for gpu in gpus:
        for item in gpu.slices:
            for tenant in item.tenants:
                yield (
                    tenant,
                    (
                        tenant.model,
                        tenant.variant,
                        tenant.stage,
                        point_type(gpu.type),
                        item.profile,
                        tenant.batch_size,
                        tenant.processes,
                    ),
                )

"""Joins the tenants of a plan with its request: the stage that each runs, and its point."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchsplit_core.values import (
    InputFault,
    PlanModel,
    PlannedGpu,
    PlannedSlice,
    PlanRequest,
    Point,
    Stage,
    Tenant,
    Variant,
    point_type,
    tenants_on,
)

PointKey = tuple[str, str, str, str, str, int, int, int]
"""Model, variant, stage, GPU type of the point, profile, batch size, processes, GPUs of an engine."""


def point_table(request: PlanRequest) -> dict[PointKey, Point]:
    """Every point of the request by its key."""
    return {
        (
            model.name,
            variant.name,
            stage.name,
            point.gpu_type,
            point.profile,
            point.batch_size,
            point.processes,
            point.tensor_parallel,
        ): point
        for model in request.models
        for variant in model.variants
        for stage in variant.stages
        for point in stage.points
    }


def point_key(gpu_type: str, profile: str, tenant: Tenant) -> PointKey:
    """The key of a tenant's point on a slice of this profile of a GPU of this type."""
    return (
        tenant.model,
        tenant.variant,
        tenant.stage,
        point_type(gpu_type),
        profile,
        tenant.batch_size,
        tenant.processes,
        tenant.gpus,
    )


ENGINES = Variant("whole", (Stage("whole"),))
"""The variant of an LLM whose engines are not made of it yet: a tenant has all of its engine that is needed."""


@dataclass(frozen=True, slots=True)
class PlannedInstance:
    """A tenant on its slice and GPU, with the model, variant and stage of the request that it runs."""

    gpu: PlannedGpu
    slice: PlannedSlice
    tenant: Tenant
    model: PlanModel
    variant: Variant
    stage: Stage


def planned_instances(gpus: Iterable[PlannedGpu], request: PlanRequest) -> tuple[PlannedInstance, ...]:
    """Every tenant, in the order of the plan. Raises InputFault if the request does not have its stage."""
    stages = {
        (model.name, variant.name, stage.name): (model, variant, stage)
        for model in request.models
        for variant in model.variants or ((ENGINES,) if model.llm is not None else ())
        for stage in variant.stages
    }
    instances = []
    for gpu, item, tenant in tenants_on(gpus):
        requested = stages.get((tenant.model, tenant.variant, tenant.stage))
        if requested is None:
            raise InputFault(
                "the plan",
                f"runs {tenant.model} / {tenant.variant} / {tenant.stage}, which the request does not have",
                "Give the request that this plan answers.",
            )
        instances.append(PlannedInstance(gpu, item, tenant, *requested))
    return tuple(instances)

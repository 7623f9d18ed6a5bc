"""Joins the tenants of a plan with its request: the stage that each runs, and its point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.planning.request.fleet import list_gpus
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


def choices_by_point(problem: Problem) -> dict[tuple[int, PointKey], int]:
    """The index of a choice by its group and point."""
    models = problem.request.models
    return {
        (choice.group, _choice_key(models[choice.model], choice)): number
        for number, choice in reversed(list(enumerate(problem.choices)))
    }


def _choice_key(spec: PlanModel, choice: Choice) -> PointKey:
    variant, point = spec.variants[choice.variant], choice.point
    stage = variant.stages[choice.stage].name
    return (
        spec.name, variant.name, stage, point.gpu_type, point.profile, point.batch_size, point.processes,
        point.tensor_parallel,
    )  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class RunningInstance:
    """A running instance of a stage: its share of its slice, its point, its node and its GPU."""

    share: float
    point: Point
    node: str | None
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class ModelInstances:
    """A model and its instances, stage by stage of its variant; without instances no variant and no stages."""

    model: PlanModel
    variant: Variant | None
    stages: tuple[tuple[RunningInstance, ...], ...] = ()


def model_instances(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> tuple[ModelInstances, ...]:
    """Every model with its instances. All tenants of a model must run the same variant.

    Raises InputFault for a tenant or a GPU that the request does not have.
    """
    points = point_table(request)
    nodes = {gpu.id: gpu.node for gpu in list_gpus(request.gpus)}
    instances: dict[tuple[str, str], dict[str, list[RunningInstance]]] = {}
    for gpu, item, tenant in tenants_on(gpus):
        point = points.get(point_key(gpu.type, item.profile, tenant))
        if point is None or gpu.id not in nodes:
            raise InputFault(
                f"plan, GPU {gpu.id}",
                f"runs {tenant.model} {tenant.stage} on a GPU or point that the request does not have",
                "Pass the request that the plan answers.",
            )
        instances.setdefault((tenant.model, tenant.variant), {}).setdefault(tenant.stage, []).append(
            RunningInstance(tenant.share, point, nodes[gpu.id], gpu.id)
        )
    by_model = []
    for spec in request.models:
        variant = next((item for item in spec.variants if (spec.name, item.name) in instances), None)
        by_stage = instances[spec.name, variant.name] if variant else {}
        stages = variant.stages if variant else ()
        by_model.append(
            ModelInstances(spec, variant, tuple(tuple(by_stage.get(stage.name, ())) for stage in stages))
        )
    return tuple(by_model)

"""A plan for each server kind: one GPU with one slice, which `torchsplit serve` runs on its visible device."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.workload import ServerKind, Workload
from torchsplit_core.files import write_text
from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.outcome.figures import unproven_outcome
from torchsplit_core.values import (
    WHOLE_GPU,
    FleetEntry,
    PlanModel,
    PlannedGpu,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Point,
    Stage,
    Variant,
)

GPU_ID = "gpu0"
"""The id of the only GPU of a server's plan."""
WHOLE = "whole"
"""The variant and stage of every part: its server sees a model that is not cut."""


def server_files(
    workload: Workload, root: str, kinds: tuple[ServerKind, ...] | None = None
) -> tuple[DeploymentFile, ...]:
    """`ROOT/KIND/plan.json` and `request.json` for each server kind, or for these."""
    files = []
    for kind in workload.kinds if kinds is None else kinds:
        request, plan = server_plan(kind, workload)
        files.append(DeploymentFile(f"{root}/{kind.label}/request.json", write_text(request)))
        files.append(DeploymentFile(f"{root}/{kind.label}/plan.json", write_text(plan)))
    return tuple(files)


def server_plan(kind: ServerKind, workload: Workload) -> tuple[PlanRequest, PlanOutcome]:
    """The request and plan of one server: its slice, its tenants, their parts."""
    type_name = kind.gpu_type if kind.cores is None else f"CPU-{kind.cores}c"
    whole = kind.profile == WHOLE_GPU
    request = PlanRequest(
        gpus=(FleetEntry(type_name, GPU_ID, layouts=None if whole else ((kind.profile,),), mig=not whole),),
        models=_models(kind),
        sharing="exclusive" if [instance.share for instance in kind.instances] == [1.0] else "fractional",
    )
    tenants = tuple(
        replace(instance.tenant, model=instance.part.name, variant=WHOLE, stage=WHOLE)
        for instance in kind.instances
    )
    start = min(gpu_type(type_name).profile(kind.profile).placement_starts)
    gpu = PlannedGpu(GPU_ID, type_name, True, (PlannedSlice(kind.profile, start, tenants),))
    statistics = PlanStatistics(0.0, 0.0, 0.0, f"one slice of plan {workload.plan}")
    plan = unproven_outcome(request, (gpu,), statistics)
    waits = {
        instance.part.name: workload.waits_ms.get(instance.part.model) or None for instance in kind.instances
    }
    models = tuple(replace(model, max_wait_ms=waits[model.name]) for model in plan.models)
    return request, replace(plan, models=models)


def _models(kind: ServerKind) -> tuple[PlanModel, ...]:
    """The parts as models, each with the points of its tenants."""
    points: dict[tuple[str, str], dict[Point, None]] = {}
    for instance in kind.instances:
        points.setdefault((instance.part.name, instance.part.file), {})[instance.point] = None
    return tuple(
        PlanModel(name, (Variant(WHOLE, (Stage(WHOLE, tuple(points_used)),)),), source=file)
        for (name, file), points_used in points.items()
    )

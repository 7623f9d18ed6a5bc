"""Requests and written parts for plans that tests make up: what a workload needs beside the plan."""

from dataclasses import replace
from typing import NamedTuple

from torchsplit_core.deployment import DeploymentFile, deploy
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import (
    FleetEntry,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Point,
    Stage,
    StageLink,
    StageManifest,
    StagePart,
    StageSlot,
    StageValue,
    Tenant,
    Variant,
    point_type,
)


class Asked(NamedTuple):
    """A plan with the request that it answers and the parts of its models."""

    plan: PlanOutcome
    request: PlanRequest
    manifests: dict[tuple[str, str], StageManifest]

    def files(self, *formats: str) -> dict[str, DeploymentFile]:
        """What `deploy` makes of it, by name."""
        return {file.name: file for file in deploy(self.plan, formats, self.request, self.manifests)}

    def texts(self, *formats: str) -> dict[str, str]:
        return {name: file.text for name, file in self.files(*formats).items()}


def asked(plan: PlanOutcome, **changes: object) -> Asked:
    """A request with the plan's GPUs, and its tenants' points as models: a stage of any other name is a cut's.

    Of a cut model each stage reads what the one before gives. `changes` are of the request.
    """
    points: dict[tuple[str, str], dict[str, dict[tuple[object, ...], Point]]] = {}
    for gpu in plan.gpus:
        for item in gpu.slices:
            for tenant in item.tenants:
                stages = points.setdefault((tenant.model, tenant.variant), {})
                key = (point_type(gpu.type), item.profile, tenant.batch_size, tenant.processes)
                stages.setdefault(tenant.stage, {}).setdefault(key, _point(*key[:2], tenant))
    models = tuple(
        PlanModel(
            name,
            (
                Variant(
                    variant,
                    tuple(Stage(name, tuple(found.values()), (f"of {name}",)) for name, found in stages.items()),
                    (0.0,) * (len(stages) - 1),
                ),
            ),
            source="sample:diamond",
        )
        for (name, variant), stages in points.items()
    )  # fmt: skip
    request = PlanRequest(
        gpus=tuple(FleetEntry(gpu.type, gpu.id) for gpu in plan.gpus),
        models=models,
        **changes,  # type: ignore[arg-type]
    )
    manifests = {(model.name, one.name): manifest(one) for model in models for one in model.variants}
    return Asked(replace(plan, request_sha256=request_hash(request)), request, manifests)


def _point(gpu_type: str, profile: str, tenant: Tenant) -> Point:
    rate = tenant.throughput_rps / tenant.share
    latency_ms = 1000 * tenant.processes * tenant.batch_size / rate
    return Point(gpu_type, profile, tenant.batch_size, rate, latency_ms, tenant.processes, tenant.memory_gib,
                 tenant.basis or "measured", tenant.low_rps, tenant.high_rps)  # fmt: skip


def manifest(variant: Variant) -> StageManifest:
    """The parts of a variant, each one tensor in and one out."""
    values = [
        StageValue(f"v{i}", "tensor", "float32", ("s0", 16), 128) for i in range(len(variant.stages) + 1)
    ]
    parts = tuple(
        StagePart(f"stage{i}", f"stage{i}.pt2", "0" * 64, 1, 1, 1, (values[i],), (values[i + 1],))
        for i in range(len(variant.stages))
    )
    return StageManifest(
        source="sample:diamond", architecture_hash="", torch_version="", traced_batch=2,
        inputs=(StageSlot("v0"),), input_structure="", outputs=(StageSlot(values[-1].name),), output_structure="",
        stages=parts, links=(StageLink(None, "stage0", ("v0",), 128),), cut_bytes=(128,) * (len(parts) - 1),
    )  # fmt: skip

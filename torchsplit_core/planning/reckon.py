"""An outcome from slices and tenants alone: what every model gets, the objective, and another plan's bound.

For plans that no solver made (baselines, plans by hand). They leave through `verify` as all others do.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchsplit_core.planning.expand import transfer_ms
from torchsplit_core.planning.fleet import list_gpus
from torchsplit_core.planning.request_hash import request_hash
from torchsplit_core.planning.verify_objective import penalty
from torchsplit_core.values import (
    InputFault,
    ObjectiveValue,
    PlannedGpu,
    PlannedModel,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Point,
)

PointKey = tuple[str, str, str, str, str, int, int]
"""Model, variant, stage, GPU type, profile, batch size, processes."""


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


def reckon_models(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> tuple[PlannedModel, ...]:
    """What each model gets of tenants that all have a point, all of one variant a model.

    A model with a stage that has no tenant has throughput 0 and no latency.
    """
    points = point_table(request)
    seats: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for gpu in gpus:
        for item in gpu.slices:
            for tenant in item.tenants:
                point = points[
                    tenant.model,
                    tenant.variant,
                    tenant.stage,
                    gpu.type,
                    item.profile,
                    tenant.batch_size,
                    tenant.processes,
                ]
                seats.setdefault((tenant.model, tenant.variant), {}).setdefault(tenant.stage, []).append(
                    (tenant.share * point.throughput_rps, point.latency_ms / tenant.share)
                )
    found = []
    for spec in request.models:
        variant = next((item for item in spec.variants if (spec.name, item.name) in seats), None)
        if variant is None:
            found.append(PlannedModel(spec.name, None, 0.0, 0.0, None))
            continue
        mine = seats[spec.name, variant.name]
        rate, latency = 0.0, None
        if all(stage.name in mine for stage in variant.stages):
            rate = min(sum(part for part, _ in stage) for stage in mine.values())
            latency = transfer_ms(variant.cut_bytes, request.link_gb_per_s)
            latency += sum(max(slow for _, slow in stage) for stage in mine.values())
        counted = min(rate, spec.demand_rps) if spec.cap_at_demand else rate
        normalised = counted / (spec.weight * spec.demand_rps)
        found.append(PlannedModel(spec.name, variant.name, rate, normalised, latency))
    return tuple(found)


def reckon(
    request: PlanRequest,
    gpus: tuple[PlannedGpu, ...],
    statistics: PlanStatistics,
    plan: PlanOutcome | None = None,
) -> PlanOutcome:
    """The outcome (feasible, nothing proven) of these GPUs; with `plan` it carries what that one proves.

    Raises InputFault where `plan` answers another request.
    """
    models = reckon_models(request, gpus)
    kind = request.objective.kind
    ranked = tuple(sorted(model.normalised for model in models))
    outcome = PlanOutcome(
        request_sha256=request_hash(request),
        status="feasible",
        objective=ObjectiveValue(kind, None, ranked),
        gpus=gpus,
        models=models,
        statistics=statistics,
    )
    paid = penalty(request, outcome)
    if kind == "min_gpus":
        costs = {gpu.id: gpu.cost for gpu in list_gpus(request.gpus)}
        value = sum((costs[gpu.id] for gpu in gpus if gpu.used), paid)
    elif kind == "weighted_sum":
        value = _weighted(request, models) - paid
    else:
        value = ranked[0] - paid
    bound = None if plan is None else first_bound(request, plan)
    gap = None
    if bound is not None:
        distance, base = (value - bound, value) if kind == "min_gpus" else (bound - value, bound)
        gap = max(0.0, distance / abs(base)) if base else 0.0
    return PlanOutcome(
        request_sha256=outcome.request_sha256,
        status="feasible",
        objective=ObjectiveValue(kind, value, ranked, bound, gap),
        gpus=gpus,
        models=models,
        statistics=statistics,
    )


def first_bound(request: PlanRequest, plan: PlanOutcome) -> float | None:
    """What `plan` proves of the first level of every plan; None where it proves nothing of it."""
    if plan.request_sha256 != request_hash(request):
        raise InputFault(
            "plan", plan.request_sha256, "it answers the same request", "Plan this request, then compare."
        )
    objective = plan.objective
    # A bound speaks of the first level that is not proven; a proven first level is its own bound.
    return objective.value if objective.proven_levels else objective.bound


def _weighted(request: PlanRequest, models: Sequence[PlannedModel]) -> float:
    total = 0.0
    for spec, got in zip(request.models, models, strict=True):
        counted = min(got.throughput_rps, spec.demand_rps) if spec.cap_at_demand else got.throughput_rps
        total += spec.weight * counted
    return total

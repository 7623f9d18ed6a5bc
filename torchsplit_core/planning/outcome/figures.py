"""What slices and tenants give, in one place for plans that a solver made and plans that none did.

What every model gets, the objective's value of every level, and the gap to a proven bound; and the
whole outcome of plans that no solver made (baselines, plans by hand), which leave through `verify`
as all others do.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.problem.build import transfer_ms
from torchsplit_core.planning.problem.colocation_sets import separated_bytes
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import first_bound, goal_of, normalised, values
from torchsplit_core.planning.request.point_keys import keyed_tenants, point_table
from torchsplit_core.values import (
    InputFault,
    ObjectiveValue,
    PlanModel,
    PlannedGpu,
    PlannedModel,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Variant,
)

StageInstances = Sequence[tuple[float, float]]
"""(requests/s, ms) of every instance of a stage, at its share of the slice."""


def served(
    request: PlanRequest, spec: PlanModel, variant: Variant, stages: Sequence[StageInstances]
) -> PlannedModel:
    """What a model gets of its instances, stage by stage; with a stage that has none, 0 and no latency."""
    rate, latency = 0.0, None
    if all(stages):
        rate = min(sum(part for part, _ in stage) for stage in stages)
        latency = transfer_ms(variant.cut_bytes, request.link_gb_per_s)
        latency += sum(max(slow for _, slow in stage) for stage in stages)
    return PlannedModel(spec.name, variant.name, rate, normalised(spec, rate), latency)


def unserved(spec: PlanModel) -> PlannedModel:
    """A model without any instance."""
    return PlannedModel(spec.name, None, 0.0, 0.0, None)


def model_figures(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> tuple[PlannedModel, ...]:
    """What each model gets of tenants that all have a point, all of one variant a model."""
    points = point_table(request)
    instances: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for tenant, key in keyed_tenants(gpus):
        point = points[key]
        instances.setdefault((tenant.model, tenant.variant), {}).setdefault(tenant.stage, []).append(
            (tenant.share * point.throughput_rps, point.latency_ms / tenant.share)
        )
    found = []
    for spec in request.models:
        variant = next((item for item in spec.variants if (spec.name, item.name) in instances), None)
        if variant is None:
            found.append(unserved(spec))
            continue
        mine = instances[spec.name, variant.name]
        found.append(served(request, spec, variant, [mine.get(stage.name, ()) for stage in variant.stages]))
    return tuple(found)


def penalty_paid(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> float:
    """What the objective pays: γ · GiB beyond the slices + separation_weight · bytes of pairs torn apart."""
    objective = request.objective
    paid = 0.0
    if objective.memory_violation_penalty:
        paid += objective.memory_violation_penalty * sum(map(_excess_gib, gpus))
    if objective.separation_weight > 0:
        index = {spec.name: number for number, spec in enumerate(request.models)}
        present = [frozenset(index[tenant.model] for tenant, _ in keyed_tenants([gpu])) for gpu in gpus]
        paid += objective.separation_weight * sum(separated_bytes(request, models) for models in present)
    return paid


def _excess_gib(gpu: PlannedGpu) -> float:
    """GiB that the tenants need beyond their slices; a slice of unknown memory is never exceeded."""
    kind, excess = gpu_type(gpu.type), 0.0
    for item in gpu.slices:
        size = kind.profile(item.profile).memory_gib
        if size is not None:
            excess += max(0.0, sum(tenant.memory_gib or 0.0 for tenant in item.tenants) - size)
    return excess


def level_values(
    request: PlanRequest, gpus: Sequence[PlannedGpu], models: Sequence[PlannedModel]
) -> list[float]:
    """The objective's value at every level with what is paid in penalties."""
    costs = {gpu.id: gpu.cost for gpu in list_gpus(request.gpus)}
    cost = sum(costs[gpu.id] for gpu in gpus if gpu.used)
    rates = [model.throughput_rps for model in models]
    return values(request, rates, cost, penalty_paid(request, gpus))


def unproven_outcome(
    request: PlanRequest,
    gpus: tuple[PlannedGpu, ...],
    statistics: PlanStatistics,
    plan: PlanOutcome | None = None,
) -> PlanOutcome:
    """The outcome (feasible, nothing proven) of these GPUs; with `plan` it carries what that one proves.

    Raises InputFault where `plan` answers another request.
    """
    models = model_figures(request, gpus)
    value = level_values(request, gpus, models)[0]
    bound = None if plan is None else bound_for(request, plan)
    gap = None if bound is None else goal_of(request).gap(value, bound)
    return PlanOutcome(
        request_sha256=request_hash(request),
        status="feasible",
        objective=ObjectiveValue(
            request.objective.kind, value, tuple(sorted(model.normalised for model in models)), bound, gap
        ),
        gpus=gpus,
        models=models,
        statistics=statistics,
    )


def bound_for(request: PlanRequest, plan: PlanOutcome) -> float | None:
    """What `plan` proves of the first level of every plan of the request; None where it proves nothing of it.

    Raises InputFault where `plan` answers another request.
    """
    if plan.request_sha256 != request_hash(request):
        raise InputFault(
            "plan", plan.request_sha256, "it answers the same request", "Plan this request, then compare."
        )
    return first_bound(plan.objective)

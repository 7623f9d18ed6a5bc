"""Computes the figures of a plan from its slices and tenants, whether a solver made it or not.

The figures are what every model gets, the objective's value at every level, and the gap to a proven bound. For plans
without a solver (baselines, manual plans) this module builds the whole outcome, which `verify` checks as all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.outcome.cost import with_costs
from torchsplit_core.planning.outcome.held_samples import with_samples
from torchsplit_core.planning.outcome.instances import ModelInstances, RunningInstance, model_instances
from torchsplit_core.planning.outcome.resilience import rates_after_worst_failure
from torchsplit_core.planning.outcome.warnings import plan_warnings
from torchsplit_core.planning.problem.effective_rate import planned_rps
from torchsplit_core.planning.problem.transfers import (
    bytes_across_cuts,
    cut_batches,
    link_between,
    link_limited_rps,
    transfer_ms,
)
from torchsplit_core.planning.request.colocation_index import ColocationMember, flows_of, index_colocations
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import (
    build_objective_value,
    first_bound,
    goal_of,
    normalised,
    objective_levels,
)
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import (
    InputFault,
    PlanModel,
    PlannedGpu,
    PlannedModel,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Point,
    RoutedBytes,
    Variant,
)
from torchsplit_core.values.profile import BASES


def planned_model(
    request: PlanRequest, spec: PlanModel, variant: Variant, stages: Sequence[Sequence[RunningInstance]]
) -> PlannedModel:
    """A model's figures from its instances, stage by stage; 0 and no latency if a stage has no instance."""
    instances = [instance for stage in stages for instance in stage]
    basis = max((instance.point.basis for instance in instances), key=BASES.index, default=None)
    if not all(stages):
        return PlannedModel(spec.name, variant.name, 0.0, 0.0, None, 0.0, 0.0, basis)
    link = link_between(request, {instance.node for instance in instances})
    largest = [max(instance.point.batch_size for instance in stage) for stage in stages]
    latency = transfer_ms(variant, cut_batches(largest), link)
    latency += sum(max(instance.point.latency_ms / instance.share for instance in stage) for stage in stages)

    def rate(of_point: Callable[[Point], float]) -> float:
        return min(
            sum(
                link_limited_rps(
                    instance.share * of_point(instance.point) / instance.point.tensor_parallel,
                    variant,
                    number,
                    instance.point.batch_size,
                    link,
                )
                for instance in stage
            )
            for number, stage in enumerate(stages)
        )

    planned_rate = rate(lambda point: planned_rps(request, point))
    bytes_per_s = None
    if len(stages) > 1:
        bytes_per_s = planned_rate * bytes_across_cuts(
            variant, [_mean_batch(request, stage) for stage in stages]
        )
    return PlannedModel(
        spec.name,
        variant.name,
        planned_rate,
        normalised(spec, planned_rate),
        latency,
        rate(lambda point: planned_rps(request, point) if point.low_rps is None else point.low_rps),
        rate(lambda point: planned_rps(request, point) if point.high_rps is None else point.high_rps),
        basis,
        bytes_per_s,
    )


def _mean_batch(request: PlanRequest, stage: Sequence[RunningInstance]) -> float:
    """Mean requests per batch of a stage whose instances work in proportion to their throughput."""
    rates = [instance.share * planned_rps(request, instance.point) for instance in stage]
    batches = sum(rate / instance.point.batch_size for rate, instance in zip(rates, stage, strict=True))
    return sum(rates) / batches if batches else 1.0


def unserved_model(spec: PlanModel) -> PlannedModel:
    """The figures of a model without instances."""
    return PlannedModel(spec.name, None, 0.0, 0.0, None, 0.0, 0.0)


def planned_or_unserved(request: PlanRequest, instances: ModelInstances) -> PlannedModel:
    """A model's figures from its instances, or those of an unserved model."""
    if instances.variant is None:
        return unserved_model(instances.model)
    return planned_model(request, instances.model, instances.variant, instances.stages)


def planned_models_of(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> tuple[PlannedModel, ...]:
    """The figures of each model. All tenants of a model must run the same variant, at points of the request."""
    return tuple(planned_or_unserved(request, instances) for instances in model_instances(request, gpus))


def plan_penalty(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> float:
    """Penalty of the objective: γ · GiB beyond the slices + separation_weight · `separation_traffic`."""
    objective = request.objective
    penalty = 0.0
    if objective.memory_violation_penalty:
        penalty += objective.memory_violation_penalty * sum(map(_excess_gib, gpus))
    if objective.separation_weight > 0:
        penalty += objective.separation_weight * separation_traffic(request, gpus)
    return penalty


def separated_bytes(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> float:
    """Bytes per request of separated soft co-locations, summed over the GPUs."""
    colocation_index = index_colocations(request)
    stages = {
        (model.name, variant.name, stage.name): (m, v, s)
        for m, model in enumerate(request.models)
        for v, variant in enumerate(model.variants)
        for s, stage in enumerate(variant.stages)
    }
    total = 0.0
    for gpu in gpus:
        members = (stages[t.model, t.variant, t.stage] for item in gpu.slices for t in item.tenants)
        total += colocation_index.separated_bytes(
            frozenset().union(*(colocation_index.members_at(*key) for key in members))
        )
    return total


def cross_gpu_bytes(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> float:
    """Least bytes/s that routed co-locations send between GPUs; 0 without any.

    A router prefers an instance on the same GPU. A GPU can keep at most the smaller of the two members' rates on it;
    the rest of the demand crosses GPUs with any routing.
    Raises InputFault for a tenant or a GPU that the request does not have.
    """
    flows = flows_of(request)
    by_model = model_instances(request, gpus) if flows else ()
    total = 0.0
    for flow in flows:
        first, second = (member_rates(request, by_model, member) for member in (flow.first, flow.second))
        total += flow.cross_gpu_bytes(sum(min(rate, second.get(gpu, 0.0)) for gpu, rate in first.items()))
    return total


def member_rates(
    request: PlanRequest, by_model: Sequence[ModelInstances], member: ColocationMember
) -> dict[str, float]:
    """A member's requests/s by GPU: those of its stage, or of the slowest stage of its model.

    The link of the variant limits them, as it limits the model's throughput.
    """
    model = by_model[member.model]
    if model.variant is None:
        return {}
    number = model.model.variants.index(model.variant)
    link = link_between(request, {instance.node for stage in model.stages for instance in stage})
    stage_rates: list[dict[str, float]] = []
    for stage in member.stages_of(member.model, number, len(model.stages)):
        rates: dict[str, float] = {}
        for stage_instance in model.stages[stage]:
            assert stage_instance.gpu is not None
            rate = stage_instance.share * planned_rps(request, stage_instance.point)
            rate /= stage_instance.point.tensor_parallel
            limited = link_limited_rps(rate, model.variant, stage, stage_instance.point.batch_size, link)
            rates[stage_instance.gpu] = rates.get(stage_instance.gpu, 0.0) + limited
        stage_rates.append(rates)
    return (
        {gpu: min(rates.get(gpu, 0.0) for rates in stage_rates) for gpu in stage_rates[0]}
        if stage_rates
        else {}
    )


def routed_bytes(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> RoutedBytes | None:
    """The routed co-locations' bytes/s, without a bound; None if the request has none."""
    return RoutedBytes(cross_gpu_bytes(request, gpus)) if flows_of(request) else None


def separation_traffic(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> float:
    """Bytes of separated soft co-locations plus bytes/s of routed ones between GPUs."""
    return separated_bytes(request, gpus) + cross_gpu_bytes(request, gpus)


def _excess_gib(gpu: PlannedGpu) -> float:
    """GiB that the tenants need beyond their slices; a slice of unknown memory counts as large enough."""
    kind, excess = gpu_type(gpu.type), 0.0
    for item in gpu.slices:
        size = kind.profile(item.profile).memory_gib
        if size is not None:
            excess += max(0.0, sum(tenant.memory_gib or 0.0 for tenant in item.tenants) - size)
    return excess


def level_values(
    request: PlanRequest, gpus: Sequence[PlannedGpu], models: Sequence[PlannedModel]
) -> list[float]:
    """The objective's value at every level, penalties included."""
    costs = {gpu.id: gpu.cost for gpu in list_gpus(request.gpus)}
    cost = sum(costs[gpu.id] for gpu in gpus if gpu.used)
    rates: Sequence[float] = [model.throughput_rps for model in models]
    if goal_of(request).by_share and request.objective.survives:
        rates = rates_after_worst_failure(request, gpus)
    return objective_levels(request, rates, cost, plan_penalty(request, gpus))


def unproven_outcome(
    request: PlanRequest,
    gpus: tuple[PlannedGpu, ...],
    statistics: PlanStatistics,
    plan: PlanOutcome | None = None,
) -> PlanOutcome:
    """The outcome of these GPUs: feasible, without proof, with the bound that `plan` proves, if given.

    Raises InputFault if `plan` answers another request, or these GPUs have a better value than its bound allows.
    """
    models = planned_models_of(request, gpus)
    levels = level_values(request, gpus, models)
    value = levels[0]
    bound = None if plan is None else bound_for(request, plan)
    beyond = bound is not None and (value < bound if goal_of(request).minimised else value > bound)
    if bound is not None and beyond and not equal(value, bound):
        # Only a file that another program wrote can do this: this program verifies a bound before it returns it.
        raise InputFault("plan: bound", f"is {bound:g}, and a plan of {value:g} is beyond it", "Plan again.")
    outcome = PlanOutcome(
        request_sha256=request_hash(request),
        status="feasible",
        objective=replace(
            build_objective_value(request, levels, (model.normalised for model in models), bound=bound),
            routed=routed_bytes(request, gpus),
        ),
        gpus=gpus,
        models=models,
        statistics=statistics,
        warnings=plan_warnings(request, gpus),
    )
    return with_samples(request, with_costs(request, outcome))


def bound_for(request: PlanRequest, plan: PlanOutcome) -> float | None:
    """The bound that `plan` proves for the first level of any plan of the request; None if it proves none.

    Raises InputFault if `plan` answers another request.
    """
    if plan.request_sha256 != request_hash(request):
        raise InputFault("plan", "answers another request", "Plan this request, then compare.")
    return first_bound(plan.objective)

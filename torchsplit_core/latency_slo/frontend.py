"""Capacity of a served plan's frontend, the one process that clients talk to, beside the capacity of the slices.

A request costs the frontend ms of a core (`FrontCosts`), and its event loop uses at most one core. If the host has a
core without a slice, the frontend runs there; otherwise frontend and slices share all cores. The largest common factor
of the demands is the smaller of 1 / (the frontend's share of a core at the demands) and, on shared cores, cores / (core
time of frontend and slices at the demands). Batches count as full, because they fill up once more arrives than is
served.

A worker gets its next batch `hand_over_ms` after it returned the last, and not before the frontend has processed the
requests of that next batch, which it does while the worker computes. So a batch occupies a worker for
hand-over + max(compute, its requests · frontend ms).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.hardware import gpu_type, profile_cores
from torchsplit_core.planning.outcome.instances import PlannedInstance, planned_instances
from torchsplit_core.planning.problem.transfers import bytes_across_cuts
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import (
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Tenant,
    Variant,
    point_type,
    tenants_on,
)
from torchsplit_core.values.plan.front import FrontCosts, PlannedFront


@dataclass(frozen=True, slots=True)
class FrontendModelLoad:
    """A served model's requests/s: demanded, by its slices including hand-overs, and passed by the frontend.

    `ms`: frontend time of a request. `bytes_known` False: the request's bytes are unknown and count as 0.
    """

    name: str
    demand_rps: float
    slices_rps: float
    passed_rps: float
    ms: float
    bytes_known: bool

    @property
    def short(self) -> bool:
        """Whether the frontend and slices pass less than the demand."""
        return self.passed_rps < self.demand_rps and not equal(self.passed_rps, self.demand_rps)


@dataclass(frozen=True, slots=True)
class FrontendLoad:
    """The load of a plan on its frontend."""

    costs: FrontCosts
    planned: PlannedFront
    models: tuple[FrontendModelLoad, ...]

    @property
    def factor(self) -> float:
        """The largest multiple of all demands that passes, including the hand-overs between batches."""
        return min(model.passed_rps / model.demand_rps for model in self.models)

    @property
    def carries(self) -> bool:
        """Whether the frontend itself passes all demands."""
        return self.planned.load_factor >= 1 or equal(self.planned.load_factor, 1.0)


def with_load_generator(request: PlanRequest, outcome: PlanOutcome, load: float) -> PlanRequest:
    """The request as TorchSplit's load generator sends it: `load` times the demands. Without two free cores on the
    host for generator and frontend, the generator's time is added to the frontend's."""
    models = tuple(replace(model, demand_rps=load * model.demand_rps) for model in request.models)
    costs = request.front
    if costs is not None and costs.cores is not None:
        cores, taken = _cores(costs, outcome)
        if cores - taken < 2:
            costs = replace(costs, ms_per_request=costs.ms_per_request + costs.generator_ms)
    return replace(request, models=models, front=costs)


def uses_cpu_slices(outcome: PlanOutcome) -> bool:
    """Whether a plan has batch models on slices of CPU cores; the frontend is estimated only for such plans."""
    return any(
        point_type(gpu.type) != gpu.type and tenant.engine is None
        for gpu, _, tenant in tenants_on(outcome.gpus)
    )


def frontend_load(request: PlanRequest, outcome: PlanOutcome) -> FrontendLoad | None:
    """The frontend's load; None if the plan uses no slices of cores or the request has no frontend costs."""
    if request.front is None or not uses_cpu_slices(outcome):
        return None
    costs = request.front
    served = _served(request, outcome)
    hosts = sum(bool(gpu.slices) and point_type(gpu.type) != gpu.type for gpu in outcome.gpus)
    ms = {model.name: _frontend_ms(costs, model, variant, instances) for model, variant, instances in served}
    share = math.fsum(model.demand_rps * ms[model.name] for model, _, _ in served) / 1e3
    factor = hosts / share
    cores, taken = _cores(costs, outcome)
    shared = costs.cores is not None and taken >= cores
    if shared:
        busy = math.fsum(
            model.demand_rps * _core_s(variant, instances) for model, variant, instances in served
        )
        factor = min(factor, cores / (share + busy))
    models = []
    for model, variant, instances in served:
        slices = min(_stage_rps(costs, ms[model.name], instances, stage.name) for stage in variant.stages)
        passed = min(slices, factor * model.demand_rps)
        bytes_known = model.bytes_per_request is not None
        models.append(
            FrontendModelLoad(model.name, model.demand_rps, slices, passed, ms[model.name], bytes_known)
        )
    return FrontendLoad(costs, PlannedFront(factor, share / hosts, shared), tuple(models))


def with_frontend(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    """The outcome with the frontend's load and the rates that it passes, if they are known."""
    load = frontend_load(request, outcome)
    if load is None:
        return outcome
    passed = {model.name: model.passed_rps for model in load.models}
    return replace(
        outcome,
        front=load.planned,
        models=tuple(replace(model, front_rps=passed.get(model.name)) for model in outcome.models),
    )


def frontend_ms(request: PlanRequest, outcome: PlanOutcome) -> Mapping[str, float]:
    """Frontend ms of a request, by served model; empty unless there is exactly one frontend with known costs."""
    hosts = [gpu for gpu in outcome.gpus if gpu.slices and point_type(gpu.type) != gpu.type]
    if request.front is None or len(hosts) != 1:
        return {}
    return {
        model.name: _frontend_ms(request.front, model, variant, instances)
        for model, variant, instances in _served(request, outcome)
    }


REMEDY = (
    "Ask for fewer requests/s, put several rows into a request, or deploy a server for each slice (torchsplit deploy) "
    "and let clients ask them without a router."
)


def describe_shortfall(load: FrontendLoad) -> str:
    """What passes of the demand, the host of the measurement, and a remedy; empty if everything passes."""
    short = [model for model in load.models if model.short]
    if not short:
        return ""
    if load.carries:
        rates = ", ".join(
            f"{model_load.name} {_rate(model_load.passed_rps)} of {_rate(model_load.demand_rps)}"
            for model_load in short
        )
        return (
            "Between two batches a worker waits for the front, which leaves of the requests/s demanded: "
            f"{rates} ({_basis(load)}). Use larger batches, or more slices."
        )
    demand_rps = math.fsum(model.demand_rps for model in load.models)
    many = f" of these {len(load.models)} models" if len(load.models) > 1 else ""
    beside = ", on cores that it shares with the slices," if load.planned.shared else ""
    return (
        f"The front{beside} passes about {_rate(load.factor * demand_rps)} requests/s{many} "
        f"({_basis(load)}), and {_rate(demand_rps)} are demanded. {REMEDY}"
    )


def describe_frontend(load: FrontendLoad) -> str:
    """How much of a core the frontend needs, and for which models the bytes are unknown."""
    bare = [model.name for model in load.models if not model.bytes_known]
    without = f"; without the bytes of {', '.join(bare)}, which the request does not tell" if bare else ""
    factor, percent = _times(load.factor), _times(100 * load.planned.core_share)
    return f"{factor} × the demands at most, {percent} % of a core at them, {_basis(load)}{without}"


def _basis(load: FrontendLoad) -> str:
    return f"{load.costs.basis}{f' on {load.costs.host}' if load.costs.host else ''}"


def _times(value: float) -> str:
    return f"{float(f'{value:.3g}'):.10g}"


def _rate(value: float) -> str:
    """Three significant digits, with thousands separators."""
    return f"{float(f'{value:.3g}'):,.10g}"


def _served(
    request: PlanRequest, outcome: PlanOutcome
) -> list[tuple[PlanModel, Variant, list[PlannedInstance]]]:
    """The batch models that have an instance, each with its variant and its instances. Engines of LLMs get a request
    once, not in batches, and their costs were not measured."""
    instances = [item for item in planned_instances(outcome.gpus, request) if item.tenant.engine is None]
    return [
        (model, running[0].variant, running)
        for model in request.models
        if (running := [instance for instance in instances if instance.model is model])
    ]


def _busy_cores(instance: PlannedInstance) -> float:
    """Cores that the instance occupies while it computes, by its share; 0 on a GPU."""
    on_cores = point_type(instance.gpu.type) != instance.gpu.type
    return instance.tenant.share * (profile_cores(instance.slice.profile) or 0) if on_cores else 0.0


def _stage_tenants(instances: Sequence[PlannedInstance], stage: str) -> list[Tenant]:
    return [instance.tenant for instance in instances if instance.tenant.stage == stage]


def _frontend_ms(
    costs: FrontCosts, model: PlanModel, variant: Variant, instances: Sequence[PlannedInstance]
) -> float:
    """Frontend ms of a request: its own bytes, those across its cuts in and out, and one batch for each stage."""
    tenants = [_stage_tenants(instances, stage.name) for stage in variant.stages]
    batches = [_mean_batch(stage) for stage in tenants]
    crossing = 2 * bytes_across_cuts(variant, batches) if variant.cut_bytes else 0.0
    return costs.ms((model.bytes_per_request or 0.0) + crossing, math.fsum(1 / batch for batch in batches))


def _mean_batch(tenants: Sequence[Tenant]) -> float:
    """Requests of a full batch of a stage; if its instances' batch sizes differ, weighted by what each serves."""
    total = math.fsum(tenant.throughput_rps for tenant in tenants)
    if not total:
        return min(tenant.batch_size for tenant in tenants)
    return total / math.fsum(tenant.throughput_rps / tenant.batch_size for tenant in tenants)


def worker_busy_ms(computing_ms: float, requests: int, hand_over_ms: float, front_ms: float) -> float:
    """How long a batch occupies its worker, in ms; `front_ms` is the frontend's time of one request."""
    return hand_over_ms + max(computing_ms, requests * front_ms)


def _stage_rps(costs: FrontCosts, front_ms: float, instances: Sequence[PlannedInstance], stage: str) -> float:
    """Requests/s of the stage's instances, including the frontend's time between their batches."""
    rates = []
    for tenant in _stage_tenants(instances, stage):
        if tenant.throughput_rps:
            computing = 1e3 * tenant.processes * tenant.batch_size / tenant.throughput_rps
            busy_ms = worker_busy_ms(computing, tenant.batch_size, costs.hand_over_ms, front_ms)
            rates.append(1e3 * tenant.processes * tenant.batch_size / busy_ms)
    return math.fsum(rates)


def _core_s(variant: Variant, instances: Sequence[PlannedInstance]) -> float:
    """Core seconds that the slices need for a request, over all stages."""
    total = 0.0
    for stage in variant.stages:
        rate = math.fsum(tenant.throughput_rps for tenant in _stage_tenants(instances, stage.name))
        cores = math.fsum(
            _busy_cores(instance) for instance in instances if instance.tenant.stage == stage.name
        )
        total += cores / rate if rate else 0.0
    return total


def _cores(costs: FrontCosts, outcome: PlanOutcome) -> tuple[int, int]:
    """Cores of the hosts that the plan uses, and cores taken by their slices."""
    host_cores = taken = 0
    for gpu in outcome.gpus:
        if gpu.slices and point_type(gpu.type) != gpu.type:
            host_cores += max(costs.cores or 0, gpu_type(gpu.type).memory_slices)
            taken += sum(profile_cores(item.profile) or 0 for item in gpu.slices if item.tenants)
    return host_cores, taken

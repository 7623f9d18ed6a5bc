"""What the front of a served plan carries: the one process that clients talk to, beside what the slices carry.

A request costs the front ms of a core (`FrontCosts`), and its event loop has no more than one core. Where a host has a
core without a slice the front is on it; else its time is the slices': then both together have the cores there are. The
largest common factor of the demands is the least of 1 / (the front's share of a core at the demands) and, on shared
cores, cores / (the front's and the slices' core time at the demands). Batches are taken as full: so they
become where more comes than passes.

A worker gets no batch for `hand_over_ms` after it has given one back, and none before the front is done with the
requests of the next, on which it works while the worker computes: a batch keeps a worker for
hand-over + max(computing, its requests · ms of the front).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.hardware import gpu_type, profile_cores
from torchsplit_core.planning.problem.transfers import bytes_across_cuts
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import (
    PlanModel,
    PlannedGpu,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    Tenant,
    Variant,
    point_type,
)
from torchsplit_core.values.plan.front import FrontCosts, PlannedFront


@dataclass(frozen=True, slots=True)
class PassedModel:
    """A served model: what it asks for, what its slices give with the hand-overs between their batches, what passes.

    `ms` of the front a request. `told` False: its bytes are not known, and count for nothing.
    """

    name: str
    demand_rps: float
    slices_rps: float
    passed_rps: float
    ms: float
    told: bool

    @property
    def short(self) -> bool:
        """Whether less than the demand passes."""
        return self.passed_rps < self.demand_rps and not equal(self.passed_rps, self.demand_rps)


@dataclass(frozen=True, slots=True)
class FrontLoad:
    """What the front carries of a plan."""

    costs: FrontCosts
    planned: PlannedFront
    models: tuple[PassedModel, ...]

    @property
    def factor(self) -> float:
        """So many times all demands pass at the most, the hand-overs between the slices' batches counted."""
        return min(model.passed_rps / model.demand_rps for model in self.models)

    @property
    def carries(self) -> bool:
        """Whether the front itself passes all demands."""
        return self.planned.load_factor >= 1 or equal(self.planned.load_factor, 1.0)


@dataclass(frozen=True, slots=True)
class _Instance:
    gpu: PlannedGpu
    slice: PlannedSlice
    tenant: Tenant

    @property
    def cores(self) -> float:
        """Cores that it keeps busy while it works, by its share; none on a GPU."""
        on_cores = point_type(self.gpu.type) != self.gpu.type
        return self.tenant.share * (profile_cores(self.slice.profile) or 0) if on_cores else 0.0


def beside_generator(request: PlanRequest, outcome: PlanOutcome, load: float) -> PlanRequest:
    """The request as our own load generator asks it of a front: `load` times the demands, and on a host without two
    cores for the two of them the generator's time is the front's."""
    models = tuple(replace(model, demand_rps=load * model.demand_rps) for model in request.models)
    costs = request.front
    if costs is not None and costs.cores is not None:
        cores, taken = _cores(costs, outcome)
        if cores - taken < 2:
            costs = replace(costs, ms_per_request=costs.ms_per_request + costs.generator_ms)
    return replace(request, models=models, front=costs)


def on_cores(outcome: PlanOutcome) -> bool:
    """Whether a plan uses slices of cores: only of such plans the front is reckoned with."""
    return any(gpu.slices and point_type(gpu.type) != gpu.type for gpu in outcome.gpus)


def front_load(request: PlanRequest, outcome: PlanOutcome) -> FrontLoad | None:
    """Of a plan that uses slices of cores, where the request tells the front's costs; else None."""
    if request.front is None or not on_cores(outcome):
        return None
    costs = request.front
    found = [(model, list(_instances(outcome, model.name))) for model in request.models]
    served = [(model, _variant(model, own), own) for model, own in found if own]
    hosts = sum(bool(gpu.slices) and point_type(gpu.type) != gpu.type for gpu in outcome.gpus)
    ms = {model.name: _ms(costs, model, variant, own) for model, variant, own in served}
    share = math.fsum(model.demand_rps * ms[model.name] for model, _, _ in served) / 1e3
    factor = hosts / share
    cores, taken = _cores(costs, outcome)
    shared = costs.cores is not None and taken >= cores
    if shared:
        busy = math.fsum(model.demand_rps * _core_s(variant, own) for model, variant, own in served)
        factor = min(factor, cores / (share + busy))
    models = []
    for model, variant, own in served:
        slices = min(_stage_rps(costs, ms[model.name], own, stage.name) for stage in variant.stages)
        passed = min(slices, factor * model.demand_rps)
        told = model.bytes_per_request is not None
        models.append(PassedModel(model.name, model.demand_rps, slices, passed, ms[model.name], told))
    return FrontLoad(costs, PlannedFront(factor, share / hosts, shared), tuple(models))


def with_front(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    """The outcome with what the front carries of it, where that is known."""
    found = front_load(request, outcome)
    if found is None:
        return outcome
    passed = {model.name: model.passed_rps for model in found.models}
    return replace(
        outcome,
        front=found.planned,
        models=tuple(replace(model, front_rps=passed.get(model.name)) for model in outcome.models),
    )


def front_ms(request: PlanRequest, outcome: PlanOutcome) -> Mapping[str, float]:
    """ms of the front for a request of each served model; empty where there is not one front, or nobody knows."""
    hosts = [gpu for gpu in outcome.gpus if gpu.slices and point_type(gpu.type) != gpu.type]
    if request.front is None or len(hosts) != 1:
        return {}
    found = ((model, list(_instances(outcome, model.name))) for model in request.models)
    return {model.name: _ms(request.front, model, _variant(model, own), own) for model, own in found if own}


REMEDY = (
    "Ask for fewer requests/s, put several rows into a request, or deploy a server for each slice (torchsplit deploy) "
    "and let clients ask them without a router."
)


def short_words(found: FrontLoad) -> str:
    """What passes of what is asked, of which host that was measured, and what helps; empty where everything passes."""
    short = [model for model in found.models if model.short]
    if not short:
        return ""
    if found.carries:
        told = ", ".join(f"{one.name} {_rate(one.passed_rps)} of {_rate(one.demand_rps)}" for one in short)
        return (
            "Between two batches a worker waits for the front, which leaves of the requests/s demanded: "
            f"{told} ({_basis(found)}). Use larger batches, or more slices."
        )
    asked = math.fsum(model.demand_rps for model in found.models)
    many = f" of these {len(found.models)} models" if len(found.models) > 1 else ""
    beside = ", on cores that it shares with the slices," if found.planned.shared else ""
    return (
        f"The front{beside} passes about {_rate(found.factor * asked)} requests/s{many} "
        f"({_basis(found)}), and {_rate(asked)} are demanded. {REMEDY}"
    )


def fact_words(found: FrontLoad) -> str:
    """How much of a core it needs, and what is not known of that."""
    bare = [model.name for model in found.models if not model.told]
    without = f"; without the bytes of {', '.join(bare)}, which the request does not tell" if bare else ""
    factor, percent = _times(found.factor), _times(100 * found.planned.core_share)
    return f"{factor} × the demands at most, {percent} % of a core at them, {_basis(found)}{without}"


def _basis(found: FrontLoad) -> str:
    return f"{found.costs.basis}{f' on {found.costs.host}' if found.costs.host else ''}"


def _times(value: float) -> str:
    return f"{float(f'{value:.3g}'):.10g}"


def _rate(value: float) -> str:
    """Three digits, thousands apart."""
    return f"{float(f'{value:.3g}'):,.10g}"


def _instances(outcome: PlanOutcome, model: str) -> Iterator[_Instance]:
    for gpu in outcome.gpus:
        for item in gpu.slices:
            for tenant in item.tenants:
                if tenant.model == model:
                    yield _Instance(gpu, item, tenant)


def _variant(model: PlanModel, own: Sequence[_Instance]) -> Variant:
    return next(variant for variant in model.variants if variant.name == own[0].tenant.variant)


def _of_stage(own: Sequence[_Instance], stage: str) -> list[Tenant]:
    return [one.tenant for one in own if one.tenant.stage == stage]


def _ms(costs: FrontCosts, model: PlanModel, variant: Variant, own: Sequence[_Instance]) -> float:
    """ms of the front for a request: its own bytes and, in and out, those across its cuts; a batch for each stage."""
    tenants = [_of_stage(own, stage.name) for stage in variant.stages]
    batches = [_mean_batch(stage) for stage in tenants]
    crossing = 2 * bytes_across_cuts(variant, batches) if variant.cut_bytes else 0.0
    return costs.ms((model.bytes_per_request or 0.0) + crossing, math.fsum(1 / batch for batch in batches))


def _mean_batch(tenants: Sequence[Tenant]) -> float:
    """Requests a full batch, of a stage whose instances have different ones by what each of them serves."""
    total = math.fsum(one.throughput_rps for one in tenants)
    if not total:
        return min(one.batch_size for one in tenants)
    return total / math.fsum(one.throughput_rps / one.batch_size for one in tenants)


def held_ms(computing_ms: float, requests: int, hand_over_ms: float, front_ms: float) -> float:
    """How long a batch keeps its worker; `front_ms` is the front's of one request."""
    return hand_over_ms + max(computing_ms, requests * front_ms)


def _stage_rps(costs: FrontCosts, front_ms: float, own: Sequence[_Instance], stage: str) -> float:
    """What the stage's instances serve with the front between their batches."""
    found = []
    for one in _of_stage(own, stage):
        if one.throughput_rps:
            computing = 1e3 * one.processes * one.batch_size / one.throughput_rps
            held = held_ms(computing, one.batch_size, costs.hand_over_ms, front_ms)
            found.append(1e3 * one.processes * one.batch_size / held)
    return math.fsum(found)


def _core_s(variant: Variant, own: Sequence[_Instance]) -> float:
    """Seconds of a core that the slices need for a request, all stages together."""
    total = 0.0
    for stage in variant.stages:
        rate = math.fsum(one.throughput_rps for one in _of_stage(own, stage.name))
        cores = math.fsum(one.cores for one in own if one.tenant.stage == stage.name)
        total += cores / rate if rate else 0.0
    return total


def _cores(costs: FrontCosts, outcome: PlanOutcome) -> tuple[int, int]:
    """Cores of the hosts that the plan uses, and of their slices."""
    there = taken = 0
    for gpu in outcome.gpus:
        if gpu.slices and point_type(gpu.type) != gpu.type:
            there += max(costs.cores or 0, gpu_type(gpu.type).memory_slices)
            taken += sum(profile_cores(item.profile) or 0 for item in gpu.slices if item.tenants)
    return there, taken

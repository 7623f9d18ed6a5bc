"""Second part of the verification: each model's figures, demands, and co-location."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.verification.claims import TOLERANCE, false_claim, find_point, same, throughput
from torchsplit_core.planning.verification.colocation import members_on_gpu, stage_names
from torchsplit_core.values import (
    PlanFault,
    PlanModel,
    PlannedGpu,
    PlannedModel,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    Point,
    Tenant,
    Variant,
    slice_name,
)
from torchsplit_core.values.units import GB

_BASES = ("measured", "emulated", "estimated")
"""Most certain first."""


@dataclass(frozen=True, slots=True)
class _CheckedInstance:
    """A tenant with its GPU and its point."""

    gpu: str
    node: str | None
    slice: PlannedSlice
    tenant: Tenant
    point: Point

    @property
    def group(self) -> str | None:
        """Of the GPUs that its engine takes."""
        return None if self.tenant.engine is None else self.tenant.engine.group

    @property
    def latency_ms(self) -> float:
        """At a share of 1."""
        return self.point.latency_ms

    @property
    def slowed_ms(self) -> float:
        return self.latency_ms / self.tenant.share

    def fault(self, problem: str, remedy: str) -> PlanFault:
        where = slice_name(self.slice.profile, self.slice.start)
        return PlanFault(self.gpu, where, self.tenant.model, problem, remedy)


def demand_faults(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> Iterator[PlanFault]:
    """The demands that slices and tenants break: memory, stages, limits, minima, co-location.

    Requires a point of the request and a share above 0 of every tenant.
    """
    yield from _memory_faults(request, gpus)
    instances = _instances_by_model(request, gpus)
    for spec in request.models:
        model_instances = instances[spec.name]
        variants = sorted({instance.tenant.variant for instance in model_instances})
        if len(variants) > 1:
            problem = f"runs the variants {' and '.join(variants)} at once"
            yield PlanFault(None, None, spec.name, problem, "Choose the same variant everywhere.")
            continue
        yield from _model_faults(request, spec, model_instances)
    yield from _failure_faults(request, instances)
    yield from _colocation_faults(request, gpus)


def check_models(request: PlanRequest, outcome: PlanOutcome) -> Iterator[PlanFault]:
    """Faults in the models' figures; each model runs at most one variant."""
    if [model.name for model in request.models] != [model.name for model in outcome.models]:
        yield false_claim("its models are not those of the request, in their order")
        return
    instances = _instances_by_model(request, outcome.gpus)
    for spec, planned in zip(request.models, outcome.models, strict=True):
        yield from _figure_faults(request, spec, planned, instances[spec.name])


def _instances_by_model(
    request: PlanRequest, gpus: Iterable[PlannedGpu]
) -> dict[str, list[_CheckedInstance]]:
    """The instances of every model."""
    models = {model.name: model for model in request.models}
    nodes = {gpu.id: gpu.node for gpu in list_gpus(request.gpus)}
    by_model: dict[str, list[_CheckedInstance]] = {name: [] for name in models}
    for gpu in gpus:
        for item in gpu.slices:
            for tenant in item.tenants:
                point = find_point(models[tenant.model], gpu.type, item.profile, tenant)
                assert point is not None
                by_model[tenant.model].append(_CheckedInstance(gpu.id, nodes[gpu.id], item, tenant, point))
    return by_model


def _memory_faults(request: PlanRequest, gpus: Iterable[PlannedGpu]) -> Iterator[PlanFault]:
    penalised = request.objective.memory_violation_penalty is not None
    for gpu in gpus:
        for item in gpu.slices:
            for tenant in item.tenants:
                if tenant.memory_gib is None and len(item.tenants) > 1:
                    where = slice_name(item.profile, item.start)
                    problem = "shares a slice, and its memory is unknown"
                    remedy = "Give its memory, or a slice of its own."
                    yield PlanFault(gpu.id, where, tenant.model, problem, remedy)
            if penalised:
                continue
            need = sum(tenant.memory_gib or 0.0 for tenant in item.tenants)
            size = gpu_type(gpu.type).profile(item.profile).memory_gib if need else None
            if size is not None and need > size * (1 + TOLERANCE):
                problem = f"its tenants need {need:.3g} GiB, and it has {size:.3g} GiB"
                remedy = "Move a tenant elsewhere, or choose a smaller batch."
                yield PlanFault(gpu.id, slice_name(item.profile, item.start), None, problem, remedy)


def _model_faults(
    request: PlanRequest, spec: PlanModel, instances: Sequence[_CheckedInstance]
) -> Iterator[PlanFault]:
    """The demands of a model whose instances run one variant."""
    for variant in _running(spec, instances):
        if not variant.allowed:
            remedy = f"Allow it, or use {' or '.join(item.name for _, item in spec.allowed_variants)}."
            yield PlanFault(None, None, spec.name, f"variant {variant.name} is not allowed", remedy)
        stages = {instance.tenant.stage for instance in instances}
        for stage in variant.stages:
            if stage.name not in stages:
                problem = f"stage {stage.name} of variant {variant.name} has no instance"
                remedy = "Put the stage on a slice, or take the model away altogether."
                yield PlanFault(None, None, spec.name, problem, remedy)
        if spec.max_latency_ms is not None:
            yield from _latency_faults(
                _transfer_ms(request, variant, instances), spec.max_latency_ms, _by_stage(instances)
            )
    rate, least = _rate(request, spec, instances), _minimum(request, spec)
    if least is not None and rate < least * (1 - TOLERANCE):
        problem = f"gets {rate:.3g} requests/s, below its minimum {least:.3g}"
        remedy = "Give it more or larger slices, or lower its minimum."
        yield PlanFault(None, None, spec.name, problem, remedy)


def _latency_faults(
    transfer: float, limit: float, stages: Sequence[Sequence[_CheckedInstance]]
) -> Iterator[PlanFault]:
    """A broken limit at the slowest tenants of a stage, or a share too small for the limit."""
    slowest = [max(instance.slowed_ms for instance in stage) for stage in stages]
    longest = sum(max(instance.latency_ms for instance in stage) for stage in stages)
    least = min(instance.tenant.share for stage in stages for instance in stage)
    total = sum(slowest) + transfer
    if total > limit * (1 + TOLERANCE):
        remedy = "Give it a larger slice, a smaller batch or a larger share, or raise the limit."
        for slow, stage in zip(slowest, stages, strict=True):
            for instance in stage:
                if instance.slowed_ms == slow:
                    problem = f"takes {slow:.3g} ms of {total:.3g} ms in all, above the limit {limit:.3g} ms"
                    yield instance.fault(problem, remedy)
    elif longest > 0 and least * (limit - transfer) < longest * (1 - TOLERANCE) - TOLERANCE * limit:
        needed = longest / (limit - transfer)
        problem = f"has a share of {least:.3g}, and the limit {limit:.3g} ms needs {needed:.3g}"
        remedy = "Give it a larger share, or its other slices a smaller batch."
        for stage in stages:
            for instance in stage:
                if instance.tenant.share == least:
                    yield instance.fault(problem, remedy)


def _failure_faults(
    request: PlanRequest, instances: Mapping[str, Sequence[_CheckedInstance]]
) -> Iterator[PlanFault]:
    """Minima that fail without the instances of some GPU, if the plan must survive that."""
    for spec in request.models:
        least = _minimum(request, spec)
        if not request.objective.survives or not least:
            continue
        for lost, rate in _rates_without(request, spec, instances[spec.name]):
            if rate < least * (1 - TOLERANCE):
                problem = f"gets {rate:.3g} requests/s with {lost} lost, below its minimum {least:.3g}"
                remedy = "Give it more slices on other GPUs, or lower its minimum."
                yield PlanFault(None, None, spec.name, problem, remedy)


def least_rates(request: PlanRequest, gpus: Iterable[PlannedGpu]) -> list[float]:
    """By model its requests/s, or if the plan must survive the loss of a GPU the least that a loss leaves."""
    instances = _instances_by_model(request, gpus)
    rates = []
    for spec in request.models:
        left = [_rate(request, spec, instances[spec.name])]
        if request.objective.survives:
            left += [rate for _, rate in _rates_without(request, spec, instances[spec.name])]
        rates.append(min(left))
    return rates


def _rates_without(
    request: PlanRequest, spec: PlanModel, instances: Sequence[_CheckedInstance]
) -> Iterator[tuple[str, float]]:
    """Each of the model's GPUs with the requests/s that its loss leaves."""
    for lost in dict.fromkeys(instance.gpu for instance in instances):
        # With one of its GPUs an engine loses all.
        groups = {instance.group for instance in instances if instance.gpu == lost} - {None}
        remaining = [
            instance for instance in instances if instance.gpu != lost and instance.group not in groups
        ]
        yield lost, _rate(request, spec, remaining, link=_link_bytes_per_ms(request, instances))


def _minimum(request: PlanRequest, spec: PlanModel) -> float | None:
    """The model's minimum; None if the attainment of samples stands for it."""
    return None if request.objective.attainment is not None else spec.min_throughput_rps


def member_rates(request: PlanRequest, name: str, gpus: Iterable[PlannedGpu]) -> dict[str, float]:
    """By GPU, the requests/s of a co-location's member: of the stage of that name, or of the model's slowest."""
    instances = _instances_by_model(request, gpus)
    for spec in request.models:
        model_instances = instances[spec.name]
        for variant in _running(spec, model_instances):
            link = _link_bytes_per_ms(request, model_instances)
            stages = {stage.name for stage in variant.stages}
            if spec.name != name:
                stages = {stage for stage in stages if name in stage_names(spec.name, variant.name, stage)}
            if not stages:
                continue
            return {
                gpu: min(
                    _stage_rates(
                        request,
                        variant,
                        [instance for instance in model_instances if instance.gpu == gpu],
                        link=link,
                    )[stage]
                    for stage in stages
                )
                for gpu in {instance.gpu for instance in model_instances}
            }
    return {}


def _colocation_faults(request: PlanRequest, gpus: Iterable[PlannedGpu]) -> Iterator[PlanFault]:
    gpus = list(gpus)
    for pair in request.colocations:
        for gpu in gpus if pair.mode == "hard" else ():
            names = members_on_gpu(request, pair, gpu)
            present = " and ".join(name for name in pair.models if name in names)
            absent = " and ".join(name for name in pair.models if name not in names)
            if present and absent:
                problem = f"stands here without {absent}, and they are to be on the same GPUs"
                remedy = f"Put {absent} on {gpu.id} too, or take {present} away."
                yield PlanFault(gpu.id, None, present, problem, remedy)


def _figure_faults(
    request: PlanRequest, spec: PlanModel, planned: PlannedModel, instances: Sequence[_CheckedInstance]
) -> Iterator[PlanFault]:
    yield from _response_faults(spec, planned)
    variants = _running(spec, instances)
    if planned.variant != (variants[0].name if variants else None):
        yield false_claim(f"claims variant {planned.variant}, and its instances run another", spec.name)
    rate, latency = _rate(request, spec, instances), None
    for variant in variants:
        slowest = sum(max(instance.slowed_ms for instance in stage) for stage in _by_stage(instances))
        latency = slowest + _transfer_ms(request, variant, instances)
    counted = min(rate, spec.demand_rps) if spec.cap_at_demand else rate
    for name, claim, true in (
        ("throughput", planned.throughput_rps, rate),
        ("normalised", planned.normalised, counted / (spec.weight * spec.demand_rps)),
        ("low end", planned.low_rps, _rate(request, spec, instances, "low_rps")),
        ("high end", planned.high_rps, _rate(request, spec, instances, "high_rps")),
        (
            "bytes across cuts",
            planned.bytes_across_cuts_per_s,
            rate * _bytes_across_cuts(request, variants, instances),
        ),
    ):
        # Plans of earlier versions have no ends and bytes.
        if claim is not None and not same(claim, true):
            yield false_claim(f"claims the {name} {claim}, and it is {true}", spec.name)
    weakest = max((instance.point.basis for instance in instances), key=_BASES.index, default=None)
    if planned.basis is not None and planned.basis != weakest:
        yield false_claim(f"claims the basis {planned.basis}, and it is {weakest}", spec.name)
    known = latency is not None and planned.latency_ms is not None and same(planned.latency_ms, latency)
    if not known and (latency is not None or planned.latency_ms is not None):
        yield false_claim(f"claims the latency {planned.latency_ms}, and it is {latency}", spec.name)


def _response_faults(spec: PlanModel, planned: PlannedModel) -> Iterator[PlanFault]:
    """Simulated figures that contradict the limit; only a simulation can verify the figures themselves."""
    claimed, limit = planned.response_ms, spec.max_response_ms
    if claimed is None:
        return
    if limit is None:
        yield false_claim("claims response times, and has no max_response_ms", spec.name)
        return
    known = {50.0: claimed.p50, 95.0: claimed.p95, 99.0: claimed.p99}
    claimed_ms = known.get(spec.response_percentile)
    if claimed_ms is not None and claimed_ms > limit * (1 + TOLERANCE):
        yield false_claim(f"claims {claimed_ms:.6g} ms, above its limit {limit:.6g} ms", spec.name)


def _running(spec: PlanModel, instances: Sequence[_CheckedInstance]) -> list[Variant]:
    """The variant that the instances run; none without instances."""
    names = {instance.tenant.variant for instance in instances}
    return [variant for variant in spec.variants if variant.name in names]


def _by_stage(instances: Sequence[_CheckedInstance]) -> list[list[_CheckedInstance]]:
    by_stage: dict[str, list[_CheckedInstance]] = {}
    for instance in instances:
        by_stage.setdefault(instance.tenant.stage, []).append(instance)
    return list(by_stage.values())


def _rate(
    request: PlanRequest,
    spec: PlanModel,
    instances: Sequence[_CheckedInstance],
    end: Literal["low_rps", "high_rps"] | None = None,
    *,
    link: float | None = None,
) -> float:
    """The requests/s of the slowest stage, 0 if one has no instance; optionally at one end of every point's interval.

    `link`: the link before the loss, if some instances are lost.
    """
    for variant in _running(spec, instances):
        link = _link_bytes_per_ms(request, instances) if link is None else link
        return min(_stage_rates(request, variant, instances, end, link=link).values())
    return 0.0


def _stage_rates(
    request: PlanRequest,
    variant: Variant,
    instances: Sequence[_CheckedInstance],
    end: Literal["low_rps", "high_rps"] | None = None,
    *,
    link: float | None,
) -> dict[str, float]:
    """The requests/s of every stage."""
    totals = dict.fromkeys((stage.name for stage in variant.stages), 0.0)
    for instance in instances:
        rate = instance.tenant.share * throughput(request, instance.point, end)
        carried = _bytes_of_request(variant, instance.tenant.stage, instance.point.batch_size)
        if link is not None and carried > 0:
            rate = min(rate, link / carried * 1000)
        totals[instance.tenant.stage] = totals.get(instance.tenant.stage, 0.0) + rate
    return totals


def _bytes_of_request(variant: Variant, stage: str, batch: int) -> float:
    """Bytes of a request into and out of a stage, in a batch of this size."""
    total = 0.0
    for cut in range(len(variant.cut_bytes)):
        if stage in (variant.stages[cut].name, variant.stages[cut + 1].name):
            total += variant.cut_bytes[cut] / batch
            total += variant.cut_bytes_per_request[cut] if variant.cut_bytes_per_request else 0.0
    return total


def _bytes_across_cuts(
    request: PlanRequest, variants: Sequence[Variant], instances: Sequence[_CheckedInstance]
) -> float:
    """Bytes of one request across all cuts. A batch's fixed bytes are shared by the mean batch of the stage before the
    cut, with every instance fully used."""
    total = 0.0
    for variant in variants:
        for cut, fixed in enumerate(variant.cut_bytes):
            requests = batches = 0.0
            for instance in instances:
                if instance.tenant.stage == variant.stages[cut].name:
                    rate = instance.tenant.share * throughput(request, instance.point)
                    requests += rate
                    batches += rate / instance.point.batch_size
            total += fixed * batches / requests if requests else fixed
            total += variant.cut_bytes_per_request[cut] if variant.cut_bytes_per_request else 0.0
    return total


def _link_bytes_per_ms(request: PlanRequest, instances: Sequence[_CheckedInstance]) -> float | None:
    """Bytes/ms of the slowest link between the instances of a variant; None if transfers take no time."""
    links = [request.link_gb_per_s]
    if len({instance.node for instance in instances}) > 1:
        links.append(request.network_gb_per_s)
    known = [link for link in links if link is not None]
    return min(known) * GB / 1000 if known else None


def _transfer_ms(request: PlanRequest, variant: Variant, instances: Sequence[_CheckedInstance]) -> float:
    """Milliseconds of a batch across all cuts, at each with the largest batch in use on either side."""
    link = _link_bytes_per_ms(request, instances)
    if link is None:
        return 0.0
    largest = {
        stage: max(i.point.batch_size for i in instances if i.tenant.stage == stage)
        for stage in {instance.tenant.stage for instance in instances}
    }
    total = 0.0
    for cut, fixed in enumerate(variant.cut_bytes):
        sides = variant.stages[cut], variant.stages[cut + 1]
        batch = max(largest.get(side.name, 0) for side in sides)
        total += fixed + batch * (
            variant.cut_bytes_per_request[cut] if variant.cut_bytes_per_request else 0.0
        )
    return total / link

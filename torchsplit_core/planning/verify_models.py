"""The second half of the recheck: what each model gets, its demands, and co-location."""

from __future__ import annotations

from collections.abc import Iterator

from torchsplit_core.values import PlanModel, PlannedModel, PlanOutcome, PlanRequest, Tenant
from torchsplit_core.values.units import GB

TOLERANCE = 1e-6

Seat = tuple[str, Tenant, float]
"""GPU id, tenant, latency of its point in ms."""


def check_models(request: PlanRequest, outcome: PlanOutcome) -> Iterator[str]:
    """Faults in the models' figures and demands."""
    if [model.name for model in request.models] != [model.name for model in outcome.models]:
        yield "its models are not those of the request"
        return
    seats: dict[str, list[Seat]] = {model.name: [] for model in request.models}
    for gpu in outcome.gpus:
        for item in gpu.slices:
            for tenant in item.tenants:
                seats[tenant.model].append(
                    (gpu.id, tenant, _latency(request, gpu.type, item.profile, tenant))
                )
    for spec, planned in zip(request.models, outcome.models, strict=True):
        yield from (
            f"model {spec.name}: {fault}" for fault in _model(request, spec, planned, seats[spec.name])
        )
    places = {name: {gpu for gpu, _, _ in mine} for name, mine in seats.items()}
    for pair in request.colocations:
        if pair.mode == "hard" and len({frozenset(places[name]) for name in pair.models}) > 1:
            yield f"{', '.join(pair.models)} do not stand on the same GPUs"


def _model(request: PlanRequest, spec: PlanModel, planned: PlannedModel, seats: list[Seat]) -> Iterator[str]:
    rate, latency = 0.0, None
    names = {tenant.variant for _, tenant, _ in seats}
    if len(names) > 1:
        yield f"it runs variants {sorted(names)} at once"
        return
    if names != ({planned.variant} if planned.variant is not None else set()):
        yield f"it claims variant {planned.variant}"
    for variant in spec.variants:
        if variant.name not in names:
            continue
        if not variant.allowed:
            yield f"it runs variant {variant.name}, which is not allowed"
        rates, longest, slowest = [], 0.0, 0.0
        for stage in variant.stages:
            here = [(tenant, lat) for _, tenant, lat in seats if tenant.stage == stage.name]
            if not here:
                yield f"stage {stage.name} has no instance"
                return
            rates.append(sum(tenant.throughput_rps for tenant, _ in here))
            longest += max(lat for _, lat in here)
            slowest += max(lat / tenant.share for tenant, lat in here)
        transfer = 0.0
        if request.link_gb_per_s is not None:
            transfer = sum(variant.cut_bytes) / GB / request.link_gb_per_s * 1000
        rate, latency = min(rates), slowest + transfer
        limit = spec.max_latency_ms
        if limit is not None:
            if latency > limit * (1 + TOLERANCE):
                yield f"latency {latency} ms passes {limit} ms"
            least = min(tenant.share for _, tenant, _ in seats)
            if longest > 0 and least * (limit - transfer) < longest * (1 - TOLERANCE) - TOLERANCE * limit:
                yield f"share {least} is too small for its latency limit"
    counted = min(rate, spec.demand_rps) if spec.cap_at_demand else rate
    for name, claim, true in (
        ("throughput", planned.throughput_rps, rate),
        ("normalised", planned.normalised, counted / (spec.weight * spec.demand_rps)),
    ):
        if not _same(claim, true):
            yield f"{name} {claim} is claimed, {true} is true"
    if (planned.latency_ms is None) != (latency is None) or (
        latency is not None and planned.latency_ms is not None and not _same(planned.latency_ms, latency)
    ):
        yield f"latency {planned.latency_ms} is claimed, {latency} is true"
    if spec.min_throughput_rps is not None and rate < spec.min_throughput_rps * (1 - TOLERANCE):
        yield f"throughput {rate} is below {spec.min_throughput_rps}"


def _latency(request: PlanRequest, kind: str, profile: str, tenant: Tenant) -> float:
    for model in request.models:
        for variant in model.variants:
            for stage in variant.stages:
                if (model.name, variant.name, stage.name) != (tenant.model, tenant.variant, tenant.stage):
                    continue
                for point in stage.points:
                    if (point.gpu_type, point.profile) == (kind, profile) and (
                        (point.batch_size, point.processes) == (tenant.batch_size, tenant.processes)
                    ):
                        return point.latency_ms
    return float("inf")


def _same(first: float, second: float) -> bool:
    return abs(first - second) <= TOLERANCE * max(abs(first), abs(second))

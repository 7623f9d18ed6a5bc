"""Derived requests: throughputs are what a slice carries alone within the limit, times a factor of the model.

A plan of a derived request is likely to keep the limits, but proves nothing. `restore` gives it the original points.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from torchsplit_core.latency_slo.isolated_capacity import MaxRate, best_rates
from torchsplit_core.latency_slo.relaxation import fastest_ms, transfers_ms, without_limits
from torchsplit_core.latency_slo.slo_check import limited_models, offered_by
from torchsplit_core.planning.outcome.instances import point_key, point_table
from torchsplit_core.planning.outcome.tenants import tenant_of
from torchsplit_core.planning.problem.effective_rate import planned_rps
from torchsplit_core.values import (
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

KnownRates = dict[tuple[str, str, str, float], tuple[MaxRate, ...]]
"""The rates that slices carry alone, by model, variant, stage and limit in ms."""

LEAST_SHARES = (1.0, 0.5, 0.25)
"""Least shares of a slice that variants are derived for: at share s responses take 1/s as long, so it carries less."""


def stage_limits(
    request: PlanRequest, model: PlanModel, variant: Variant, types: frozenset[str]
) -> tuple[float, ...] | None:
    """The limit split over stages by their shortest times, ms; None if a stage has no point or too little is left."""
    quickest = [fastest_ms(stage, types) for stage in variant.stages]
    known = [item for item in quickest if item is not None]
    left = (model.max_response_ms or 0.0) - transfers_ms(request, variant)
    if len(known) < len(quickest) or left < sum(known):
        return None
    return tuple(left * item / sum(known) for item in known)


@dataclass(frozen=True, slots=True)
class _DeratedVariant:
    """A variant with a least share: its name in the derived request, its stages' limits in ms and slices' rates."""

    name: str
    variant: Variant
    share: float
    limits: tuple[float, ...]
    stages: tuple[tuple[MaxRate, ...], ...]


class DeratedRequests:
    """Derives requests from one request and maps their plans back to it.

    `factors` are learned: the rate that a model's slices carry together over the sum of what each carries alone. The
    latter is simulated when first needed, until `deadline` (by time.perf_counter), and cached in `known` for other
    requests of these models.
    """

    def __init__(
        self, request: PlanRequest, types: frozenset[str], known: KnownRates, deadline: float
    ) -> None:
        self.request = request
        self.types = types
        self.factors: dict[str, float] = {}
        self._known, self._deadline = known, deadline

    @cached_property
    def derated_variants(self) -> dict[str, tuple[_DeratedVariant, ...]]:
        """By model, the derived variants in which every stage has a slice that carries a positive rate."""
        return {model.name: tuple(self._derate_variants(model)) for model in limited_models(self.request)}

    @cached_property
    def _variant_names(self) -> dict[tuple[str, str], str]:
        """The request's variant of each derived variant, by model and derived name."""
        return {
            (name, derated.name): derated.variant.name
            for name, variants in self.derated_variants.items()
            for derated in variants
        }

    def _derate_variants(self, model: PlanModel) -> list[_DeratedVariant]:
        tied = any(
            member.startswith(f"{model.name}/") for pair in self.request.colocations for member in pair.models
        )
        shares = LEAST_SHARES if self.request.sharing == "fractional" and not tied else LEAST_SHARES[:1]
        taken = {variant.name for variant in model.variants}
        derated = []
        for _, variant in model.allowed_variants:
            limits = stage_limits(self.request, model, variant, self.types)
            for share in shares if limits else ():
                name = variant.name if share == 1 else f"{variant.name} from a share of {share:g}"
                if share < 1 and name in taken:
                    continue
                stages = tuple(
                    self._best_rates(model, variant, stage, share * limit)
                    for stage, limit in zip(variant.stages, limits or (), strict=True)
                )
                if all(stages):
                    derated.append(_DeratedVariant(name, variant, share, limits or (), stages))
        return derated

    def _best_rates(
        self, model: PlanModel, variant: Variant, stage: Stage, limit: float
    ) -> tuple[MaxRate, ...]:
        key = (model.name, variant.name, stage.name, limit)
        if key not in self._known and time.perf_counter() >= self._deadline:
            return ()
        if key not in self._known:
            self._known[key] = best_rates(model, self._on_fleet(stage), limit)
        return self._known[key]

    def _on_fleet(self, stage: Stage) -> Stage:
        return replace(stage, points=tuple(point for point in stage.points if point.gpu_type in self.types))

    def rate_request(self) -> PlanRequest:
        """A request with the rates of slices alone, times the model's factor; the offered rate is a minimum."""
        return self._derated_request(None)

    def minimum_request(self, least: Mapping[str, float]) -> PlanRequest:
        """A request with the points' own throughputs; a model in `least` has that minimum and only its best points."""
        return self._derated_request(least)

    def _derated_request(self, least: Mapping[str, float] | None) -> PlanRequest:
        models = []
        for spec, plain in zip(self.request.models, without_limits(self.request).models, strict=True):
            if spec.name not in self.derated_variants:
                models.append(plain)
                continue
            wanted = max(offered_by(spec), spec.min_throughput_rps or 0.0) or None
            if least is not None and spec.name not in least:
                models.append(replace(plain, min_throughput_rps=wanted))
                continue
            factor = None if least is not None else self.factors.get(spec.name, 1.0)
            if least is not None:
                wanted = max(least[spec.name], spec.min_throughput_rps or 0.0)
            variants = tuple(
                self._derated_variant(spec, derated, factor) for derated in self.derated_variants[spec.name]
            )
            # A model that carries nothing keeps its variants without points: no plan exists, and it is the reason.
            empty = tuple(
                replace(item, stages=tuple(replace(s, points=()) for s in item.stages))
                for item in plain.variants
            )
            limit = spec.max_latency_ms
            if self.request.sharing == "fractional":
                limit = limit or spec.max_response_ms
            models.append(
                replace(plain, variants=variants or empty, min_throughput_rps=wanted, max_latency_ms=limit)
            )
        return replace(self.request, models=tuple(models))

    def _derated_variant(self, spec: PlanModel, derated: _DeratedVariant, factor: float | None) -> Variant:
        stages = []
        for stage, limit, rates in zip(derated.variant.stages, derated.limits, derated.stages, strict=True):
            points = tuple(
                self._derated_point(spec, derated, limit / sum(derated.limits), rate, factor)
                for rate in rates
            )
            stages.append(replace(stage, points=points))
        return replace(derated.variant, name=derated.name, stages=tuple(stages))

    def _derated_point(
        self, spec: PlanModel, derated: _DeratedVariant, part: float, rate: MaxRate, factor: float | None
    ) -> Point:
        point = rate.point
        if self.request.sharing == "fractional":
            # A latency of share · limit prevents any smaller share.
            service_ms = point.latency_ms if spec.max_latency_ms is not None else 0.0
            limit = spec.max_latency_ms or spec.max_response_ms or 0.0
            point = replace(point, latency_ms=max(service_ms, derated.share * limit * part))
        if factor is None:
            return point
        carried = min(planned_rps(self.request, rate.point), rate.rate_rps * factor)
        return replace(point, throughput_rps=carried, low_rps=None, high_rps=None)

    def isolated_rps(self, gpus: tuple[PlannedGpu, ...]) -> dict[str, float]:
        """By model, requests/s of its slowest stage if each instance served alone; for plans of derived requests."""
        carried = {
            (name, derated.variant.name, stage.name, rate.point.gpu_type, rate.point.profile,
            derated.share): rate.rate_rps
            for name, variants in self.derated_variants.items()
            for derated in variants
            for stage, rates in zip(derated.variant.stages, derated.stages, strict=True)
            for rate in rates
        }  # fmt: skip
        rps_by_model: dict[str, dict[str, float]] = {}
        for gpu, item, tenant in tenants_on(gpus):
            key = (tenant.model, tenant.variant, tenant.stage, point_type(gpu.type), item.profile)
            rate = max(
                (carried.get((*key, share), 0.0) for share in LEAST_SHARES if share <= tenant.share + 1e-9),
                default=0.0,
            )
            stages = rps_by_model.setdefault(tenant.model, {})
            stages[tenant.stage] = stages.get(tenant.stage, 0.0) + tenant.share * rate
        return {name: min(stages.values()) for name, stages in rps_by_model.items()}

    def restore(self, gpus: tuple[PlannedGpu, ...]) -> tuple[PlannedGpu, ...]:
        """The GPUs of a derived request's plan, with the variants and points of the original request."""
        return with_request_points(self.request, gpus, self._variant_names)


def with_request_points(
    request: PlanRequest, gpus: tuple[PlannedGpu, ...], variants: Mapping[tuple[str, str], str]
) -> tuple[PlannedGpu, ...]:
    """The GPUs with the points of the request; `variants` maps (model, derived name) to the request's variant."""
    points = point_table(request)

    def restore_tenant(gpu: PlannedGpu, item: PlannedSlice, tenant: Tenant) -> Tenant:
        variant = variants.get((tenant.model, tenant.variant), tenant.variant)
        point = points[point_key(gpu.type, item.profile, replace(tenant, variant=variant))]
        rate_rps = planned_rps(request, point)
        planned = tenant_of(tenant.model, variant, tenant.stage, point, tenant.share, rate_rps)
        # With the name of its group.
        return replace(planned, engine=tenant.engine)

    return tuple(
        replace(
            gpu,
            slices=tuple(
                replace(item, tenants=tuple(restore_tenant(gpu, item, hosted) for hosted in item.tenants))
                for item in gpu.slices
            ),
        )
        for gpu in gpus
    )

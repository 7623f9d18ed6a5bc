"""Completes a manual plan: chooses the variant of every model and the point of every tenant that are left open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.manual.values import ManualInstance
from torchsplit_core.planning.problem.effective_rate import planned_rps
from torchsplit_core.planning.problem.latency_cases import LATENCY_SLACK
from torchsplit_core.planning.problem.latency_split import split_limit
from torchsplit_core.planning.problem.transfers import link_between, link_limited_rps, transfer_ms
from torchsplit_core.values import (
    PlanFault,
    PlanModel,
    PlanRequest,
    Point,
    Variant,
    point_type,
    profile_words,
)
from torchsplit_core.values.errors import quoted, suggestion


def instances_by_model(
    request: PlanRequest, instances: Sequence[ManualInstance]
) -> list[tuple[PlanModel, list[ManualInstance]]]:
    """The models with a tenant, with their instances."""
    by_name: dict[str, list[ManualInstance]] = {}
    for instance in instances:
        by_name.setdefault(instance.manual_tenant.model, []).append(instance)
    return [(model, by_name[model.name]) for model in request.models if model.name in by_name]


def choose_variants(request: PlanRequest, instances: Sequence[ManualInstance]) -> list[PlanFault]:
    """Set the variant and stage of every instance; faulty ones get none.

    Unless named, the variant is the allowed one with the fewest stages that has every named stage.
    """
    faults: list[PlanFault] = []
    for model, model_instances in instances_by_model(request, instances):
        known = [variant.name for variant in model.variants]
        named = list(
            dict.fromkeys(
                instance.manual_tenant.variant
                for instance in model_instances
                if instance.manual_tenant.variant is not None
            )
        )
        unknown = [
            instance
            for instance in model_instances
            if instance.manual_tenant.variant is not None and instance.manual_tenant.variant not in known
        ]
        faults += [
            instance.fault(
                f"unknown variant {quoted(instance.manual_tenant.variant)}",
                suggestion(instance.manual_tenant.variant, known, "variants"),
            )
            for instance in unknown
        ]
        if unknown:
            continue
        if len(named) > 1:
            faults += [
                instance.fault(
                    f"runs variant {instance.manual_tenant.variant}, and other instances of the model run {named[0]}",
                    "Choose the same variant everywhere.",
                )
                for instance in model_instances
                if instance.manual_tenant.variant not in (None, named[0])
            ]
            continue
        stages = {
            instance.manual_tenant.stage
            for instance in model_instances
            if instance.manual_tenant.stage is not None
        }
        if named:
            chosen = [variant for variant in model.variants if variant.name == named[0]]
        else:
            chosen = [v for v in model.variants if stages <= {stage.name for stage in v.stages}]
        allowed = [variant for variant in chosen if variant.allowed]
        if chosen and not allowed:
            alternatives = " or ".join(item.name for _, item in model.allowed_variants)
            faults += [
                instance.fault(
                    f"variant {chosen[0].name} is not allowed", f"Allow it, or use {alternatives}."
                )
                for instance in model_instances
                if instance.manual_tenant.variant is not None or instance.manual_tenant.stage is not None
            ]
            continue
        first = model.allowed_variants[0][1]
        variant = min(allowed, key=lambda item: len(item.stages), default=first)
        faults += [
            fault for instance in model_instances if (fault := _choose_stage(instance, variant)) is not None
        ]
    return faults


def _choose_stage(instance: ManualInstance, variant: Variant) -> PlanFault | None:
    known = {stage.name: stage for stage in variant.stages}
    name = instance.manual_tenant.stage
    if name is None and len(known) > 1:
        return instance.fault(
            f"names no stage, and variant {variant.name} has {len(known)}",
            f"Name one of {', '.join(known)}.",
        )
    if name is not None and name not in known:
        return instance.fault(
            f"unknown stage {quoted(name)} of variant {variant.name}", suggestion(name, known, "stages")
        )
    instance.variant, instance.stage = variant, variant.stages[0] if name is None else known[name]
    return None


def choose_points(request: PlanRequest, instances: Sequence[ManualInstance]) -> list[PlanFault]:
    """Set the point of every instance that has a stage: the named one, else the one with the most requests/s.

    A latency limit is split over the stages so that the slowest stage is as fast as possible; if no points keep it, the
    quickest are chosen. An instance without any point is a fault.
    """
    faults: list[PlanFault] = []
    for model, model_instances in instances_by_model(
        request, [instance for instance in instances if instance.stage is not None]
    ):
        choices: list[tuple[ManualInstance, list[Point]]] = []
        for instance in model_instances:
            points, fault = _candidate_points(request, instance)
            if fault is None:
                choices.append((instance, points))
            else:
                faults.append(fault)
        limits = _point_limits(request, model, choices)
        for instance, points in choices:
            assert instance.stage is not None
            if limits is None:
                instance.point = min(points, key=lambda p: (p.latency_ms, -planned_rps(request, p)))
            else:
                within = [
                    point
                    for point in points
                    if point.latency_ms <= limits.latency_ms[instance.stage.name]
                    and point.batch_size <= limits.batch
                ]
                instance.point = min(
                    within,
                    key=lambda p: (
                        -_limited_rps(request, instance, limits, p),
                        p.latency_ms,
                        p.memory_gib or 0.0,
                    ),
                )
    return faults


@dataclass(frozen=True, slots=True)
class _PointLimits:
    """The longest latency of each stage, the largest batch, and the link between the instances."""

    latency_ms: Mapping[str, float]
    batch: float
    link_gb_per_s: float | None


def _limited_rps(request: PlanRequest, instance: ManualInstance, limits: _PointLimits, point: Point) -> float:
    """The requests/s of an instance at this point, behind its link."""
    assert instance.variant is not None and instance.stage is not None
    stage = instance.variant.stages.index(instance.stage)
    full = instance.share * planned_rps(request, point)
    return link_limited_rps(full, instance.variant, stage, point.batch_size, limits.link_gb_per_s)


def _candidate_points(request: PlanRequest, instance: ManualInstance) -> tuple[list[Point], PlanFault | None]:
    """The points that an instance may use, or why there are none."""
    assert instance.stage is not None
    kind, tenant = point_type(instance.gpu.type), instance.manual_tenant
    on_slice = [
        point
        for point in instance.stage.points
        if (point.gpu_type, point.profile, point.tensor_parallel)
        == (kind, instance.profile, tenant.tensor_parallel)
    ]
    if not on_slice:
        known = dict.fromkeys(
            profile_words(point.profile) for point in instance.stage.points if point.gpu_type == kind
        )
        remedy = f"Use {' or '.join(known)}." if known else f"Use another type than {kind}."
        return [], instance.fault(f"the model has no point on {profile_words(instance.profile)}", remedy)
    named = [
        point
        for point in on_slice
        if tenant.batch_size in (None, point.batch_size) and tenant.processes in (None, point.processes)
    ]
    if not named:
        requested = ", ".join(
            f"{word} {value}"
            for word, value in (("batch", tenant.batch_size), ("processes", tenant.processes))
            if value is not None
        )
        known_points = ", ".join(f"{point.batch_size} × {point.processes}" for point in on_slice)
        return [], instance.fault(
            f"the model has no point with {requested} on this slice",
            f"Use one of these (batch × processes): {known_points}.",
        )
    size = gpu_type(instance.gpu.type).profile(instance.profile).memory_gib
    fitting = [point for point in named if size is None or (point.memory_gib or 0.0) <= size]
    if not fitting and request.objective.memory_violation_penalty is None:
        least = min(point.memory_gib or 0.0 for point in named)
        return [], instance.fault(
            f"needs {least:.3g} GiB, and the slice has {size:.3g} GiB",
            "Use a slice with more memory or a smaller batch.",
        )
    return fitting or named, None


_Items = list[tuple[ManualInstance, list[Point]]]


def _point_limits(request: PlanRequest, model: PlanModel, choices: _Items) -> _PointLimits | None:
    """The limits of the points; None if the latency limit cannot be kept.

    Transfers are timed with the largest batch; each size is tried for it.
    """
    by_stage: dict[str, _Items] = {}
    for instance, points in choices:
        assert instance.stage is not None
        by_stage.setdefault(instance.stage.name, []).append((instance, points))
    link = link_between(request, {instance.gpu.node for instance, _ in choices})
    free = _PointLimits(dict.fromkeys(by_stage, float("inf")), float("inf"), link)
    if not by_stage or model.max_latency_ms is None:
        return free
    variant = choices[0][0].variant
    assert variant is not None
    # A share s takes 1/s times as long, and the least share must keep the longest point of every stage.
    least = min(instance.share for instance, _ in choices)
    sizes = {point.batch_size for _, points in choices for point in points}
    best: tuple[float, _PointLimits] | None = None
    for batch in sorted(sizes) if any(variant.cut_bytes_per_request) else [max(sizes)]:
        budget = model.max_latency_ms * (1 + LATENCY_SLACK)
        budget -= transfer_ms(variant, [batch] * len(variant.cut_bytes), link)
        capped = replace(free, batch=float(batch))
        steps = [_latency_steps(request, capped, items) for items in by_stage.values()]
        latencies = split_limit(least * budget, steps)
        if latencies is None:
            continue
        worth = min(
            max(gain for latency, gain in stage if latency <= limit)
            for limit, stage in zip(latencies, steps, strict=True)
        )
        if best is None or worth > best[0]:
            best = worth, replace(capped, latency_ms=dict(zip(by_stage, latencies, strict=True)))
    return None if best is None else best[1]


def _latency_steps(request: PlanRequest, limits: _PointLimits, items: _Items) -> list[tuple[float, float]]:
    """For every latency a stage may have, its requests/s."""
    steps = []
    latencies = {p.latency_ms for _, points in items for p in points if p.batch_size <= limits.batch}
    for latency in sorted(latencies):
        within = [
            [
                _limited_rps(request, instance, limits, p)
                for p in points
                if p.latency_ms <= latency and p.batch_size <= limits.batch
            ]
            for instance, points in items
        ]
        if all(within):
            steps.append((latency, sum(map(max, within))))
    return steps

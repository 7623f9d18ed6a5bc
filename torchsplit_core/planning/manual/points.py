"""What a person left open, chosen: the variant of every model, and the point of every tenant."""

from __future__ import annotations

from collections.abc import Sequence

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.manual.values import HandInstance
from torchsplit_core.planning.problem.build import LATENCY_SLACK, transfer_ms
from torchsplit_core.planning.problem.latency_split import split_limit
from torchsplit_core.values import PlanFault, PlanModel, PlanRequest, Point, Variant


def by_model(
    request: PlanRequest, instances: Sequence[HandInstance]
) -> list[tuple[PlanModel, list[HandInstance]]]:
    """The models that have a tenant, with their instances."""
    mine: dict[str, list[HandInstance]] = {}
    for instance in instances:
        mine.setdefault(instance.asked.model, []).append(instance)
    return [(model, mine[model.name]) for model in request.models if model.name in mine]


def choose_variants(request: PlanRequest, instances: Sequence[HandInstance]) -> list[PlanFault]:
    """Set the variant and stage of every instance: what is named, else the allowed variant with the fewest
    stages among those that have every stage named. The instances at fault stay without."""
    faults: list[PlanFault] = []
    for model, mine in by_model(request, instances):
        known = [variant.name for variant in model.variants]
        named = list(
            dict.fromkeys(instance.asked.variant for instance in mine if instance.asked.variant is not None)
        )
        unknown = [
            instance
            for instance in mine
            if instance.asked.variant is not None and instance.asked.variant not in known
        ]
        faults += [
            instance.fault(
                instance.asked.variant, "the model has no such variant", f"Known are {', '.join(known)}."
            )
            for instance in unknown
        ]
        if unknown:
            continue
        if len(named) > 1:
            faults += [
                instance.fault(
                    instance.asked.variant,
                    f"all instances of a model run one variant, and others run {named[0]}",
                    "Choose the same variant everywhere.",
                )
                for instance in mine
                if instance.asked.variant not in (None, named[0])
            ]
            continue
        stages = {instance.asked.stage for instance in mine if instance.asked.stage is not None}
        if named:
            chosen = [variant for variant in model.variants if variant.name == named[0]]
        else:
            chosen = [v for v in model.variants if stages <= {stage.name for stage in v.stages}]
        allowed = [variant for variant in chosen if variant.allowed]
        if chosen and not allowed:
            may = " or ".join(item.name for _, item in model.allowed_variants)
            faults += [
                instance.fault(chosen[0].name, "the variant is not allowed", f"Allow it, or use {may}.")
                for instance in mine
                if instance.asked.variant is not None or instance.asked.stage is not None
            ]
            continue
        first = model.allowed_variants[0][1]
        variant = min(allowed, key=lambda item: len(item.stages), default=first)
        faults += [fault for instance in mine if (fault := _stage(instance, variant)) is not None]
    return faults


def _stage(instance: HandInstance, variant: Variant) -> PlanFault | None:
    known = {stage.name: stage for stage in variant.stages}
    name = instance.asked.stage
    if name is None and len(known) > 1:
        return instance.fault(
            "no stage", f"variant {variant.name} has several", f"Name one of {', '.join(known)}."
        )
    if name is not None and name not in known:
        return instance.fault(
            name, f"variant {variant.name} has no such stage", f"Known are {', '.join(known)}."
        )
    instance.variant, instance.stage = variant, variant.stages[0] if name is None else known[name]
    return None


def choose_points(request: PlanRequest, instances: Sequence[HandInstance]) -> list[PlanFault]:
    """Set the point of every instance that has a stage: what is named, else the one with the most requests/s.

    A latency limit is divided over the stages so that the slowest stage is as fast as can be;
    where no points keep it, the quickest stand. A instance without any point is a fault.
    """
    faults: list[PlanFault] = []
    for model, mine in by_model(request, [instance for instance in instances if instance.stage is not None]):
        choices: list[tuple[HandInstance, list[Point]]] = []
        for instance in mine:
            points, fault = _choices(request, instance)
            if fault is None:
                choices.append((instance, points))
            else:
                faults.append(fault)
        limits = _limits(request, model, choices)
        for instance, points in choices:
            assert instance.stage is not None
            if limits is None:
                instance.point = min(points, key=lambda p: (p.latency_ms, -p.throughput_rps))
            else:
                within = [point for point in points if point.latency_ms <= limits[instance.stage.name]]
                instance.point = min(
                    within, key=lambda p: (-p.throughput_rps, p.latency_ms, p.memory_gib or 0.0)
                )
    return faults


def _choices(request: PlanRequest, instance: HandInstance) -> tuple[list[Point], PlanFault | None]:
    """The points a instance may use, or why there are none."""
    assert instance.stage is not None
    kind, asked = instance.gpu.type, instance.asked
    here = [
        point
        for point in instance.stage.points
        if (point.gpu_type, point.profile) == (kind, instance.profile)
    ]
    if not here:
        known = dict.fromkeys(point.profile for point in instance.stage.points if point.gpu_type == kind)
        remedy = f"Use {' or '.join(known)}." if known else f"Use another type than {kind}."
        return [], instance.fault(instance.profile, "the model has no point on such a slice", remedy)
    named = [
        point
        for point in here
        if asked.batch_size in (None, point.batch_size) and asked.processes in (None, point.processes)
    ]
    if not named:
        given = ", ".join(
            f"{word} {value}"
            for word, value in (("batch", asked.batch_size), ("processes", asked.processes))
            if value is not None
        )
        known_points = ", ".join(f"{point.batch_size} × {point.processes}" for point in here)
        return [], instance.fault(
            given, "the model has no such point on this slice", f"Known (batch × processes): {known_points}."
        )
    size = gpu_type(kind).profile(instance.profile).memory_gib
    fitting = [point for point in named if size is None or (point.memory_gib or 0.0) <= size]
    if not fitting and request.objective.memory_violation_penalty is None:
        least = min(point.memory_gib or 0.0 for point in named)
        return [], instance.fault(
            f"{least:.3g} GiB",
            f"the slice has {size:.3g} GiB",
            "Use a slice with more memory or a smaller batch.",
        )
    return fitting or named, None


def _limits(
    request: PlanRequest, model: PlanModel, choices: Sequence[tuple[HandInstance, list[Point]]]
) -> dict[str, float] | None:
    """The longest latency of each stage; None where the limit cannot be kept."""
    by_stage: dict[str, list[tuple[float, list[Point]]]] = {}
    for instance, points in choices:
        assert instance.stage is not None
        by_stage.setdefault(instance.stage.name, []).append((instance.share, points))
    if not by_stage or model.max_latency_ms is None:
        return dict.fromkeys(by_stage, float("inf"))
    variant = choices[0][0].variant
    assert variant is not None
    # A share s takes 1/s times as long, and the least share must do for the longest point of every stage.
    least = min(instance.share for instance, _ in choices)
    budget = model.max_latency_ms * (1 + LATENCY_SLACK) - transfer_ms(
        variant.cut_bytes, request.link_gb_per_s
    )
    found = split_limit(least * budget, [_steps(items) for items in by_stage.values()])
    return None if found is None else dict(zip(by_stage, found, strict=True))


def _steps(items: Sequence[tuple[float, list[Point]]]) -> list[tuple[float, float]]:
    """For every latency a stage may take, its requests/s with it."""
    steps = []
    for latency in sorted({point.latency_ms for _, points in items for point in points}):
        within = [
            (share, [p.throughput_rps for p in points if p.latency_ms <= latency]) for share, points in items
        ]
        if all(rates for _, rates in within):
            steps.append((latency, sum(share * max(rates) for share, rates in within)))
    return steps

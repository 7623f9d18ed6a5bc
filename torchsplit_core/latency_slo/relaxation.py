"""Requests without queueing that replace one with response-time limits, to prove a bound or as a first attempt.

*relaxed*: every plan that keeps the limits is feasible in it, at a value at least as good, so its bound holds for both.
*with reserves*: by the published rule of half the limit, or more cautious; no bound and no proof depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from torchsplit_core.hardware import gpu_type
from torchsplit_core.latency_slo.isolated_capacity import max_rps_within
from torchsplit_core.latency_slo.simulation_input import batch_times, points_up_to
from torchsplit_core.latency_slo.slo_check import limited_models, offered_by
from torchsplit_core.planning.problem.transfers import bytes_per_request
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.objective import goal_of, requires_resilience
from torchsplit_core.values import CPU, WHOLE_GPU, PlanModel, PlanRequest, Point, Stage, Variant, point_type
from torchsplit_core.values.units import GB

PUBLISHED_RULE = (0.5, 1.0)
"""Part of the response limit that a batch may take, and multiple of the offered rate that is served at least."""

QUICK = 1.1
"""Times its quickest batch that a batch of a model may take at least."""

MULTIPLIERS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0)
"""Lagrange multipliers of the constraint on responses within the limit, tried for the bound."""


def without_limits(request: PlanRequest) -> PlanRequest:
    """The request without response limits, percentiles and arrivals."""
    models = tuple(
        replace(model, max_response_ms=None, response_percentile=95.0, arrivals=None)
        for model in request.models
    )
    return replace(request, models=models)


def reserve(
    request: PlanRequest, reserves: Mapping[str, tuple[float, float]] = MappingProxyType({})
) -> PlanRequest:
    """A request in which a batch may take a part of the limit, and a multiple of the offered rate is a minimum.

    `reserves` has both by model; by default they are those of the published rule. A model that has no batch as quick
    as that may take its quickest ones.
    """
    types = frozenset(point_type(gpu.type) for gpu in list_gpus(request.gpus))
    models = list(without_limits(request).models)
    for number, spec in enumerate(request.models):
        if spec.max_response_ms is not None:
            part, multiple = reserves.get(spec.name, PUBLISHED_RULE)
            service = max(part * spec.max_response_ms, QUICK * _quickest_ms(spec, types))
            models[number] = replace(
                models[number],
                max_latency_ms=min(service, spec.max_latency_ms or service),
                min_throughput_rps=max(multiple * offered_by(spec), spec.min_throughput_rps or 0.0) or None,
            )
    return replace(request, models=tuple(models))


def _quickest_ms(model: PlanModel, types: frozenset[str]) -> float:
    """ms of the model's quickest batch on slices of these GPU types, over its stages; 0 if it has no point for one."""
    totals = []
    for _, variant in model.allowed_variants:
        stages = [
            [
                point.latency_ms
                for point in stage.points
                if point.gpu_type in types and point.throughput_rps > 0
            ]
            for stage in variant.stages
        ]
        if all(stages):
            totals.append(sum(map(min, stages)))
    return min(totals, default=0.0)


def fastest_ms(stage: Stage, types: frozenset[str]) -> float | None:
    """ms of one request alone on the fastest slice of these GPU types; None if the stage has no point on any."""
    return min(
        (
            min(batch_times(points_up_to(stage, point)).values())
            for point in stage.points
            if point.gpu_type in types and point.throughput_rps > 0
        ),
        default=None,
    )


def transfers_ms(request: PlanRequest, variant: Variant) -> float:
    """ms of transferring one request alone across all cuts, within a node."""
    if request.link_gb_per_s is None:
        return 0.0
    carried = sum(fixed + bytes_per_request(variant, cut) for cut, fixed in enumerate(variant.cut_bytes))
    return carried / (request.link_gb_per_s * GB) * 1000


def relax(request: PlanRequest, types: frozenset[str]) -> PlanRequest:
    """A request for which every plan that keeps the limits is feasible, at the same objective value.

    What arrives must be served, so the offered rate is a minimum. If the objective counts GPUs, throughputs include
    only what counts towards responses within the limit (`_lagrangian_model`).
    """
    names = {model.name for model in limited_models(request)}
    models = []
    for spec, plain in zip(request.models, without_limits(request).models, strict=True):
        rate = offered_by(spec)
        if spec.name not in names or spec.expected_arrivals.kind == "trace" or requires_resilience(request):
            # The end of a trace may be served later, and a minimum would have to hold after the loss of a GPU.
            models.append(plain)
        elif goal_of(request).by_cost and rate >= (spec.min_throughput_rps or 0.0):
            models.append(_lagrangian_model(request, spec, plain, types))
        else:
            least = max(rate, spec.min_throughput_rps or 0.0)
            models.append(replace(plain, min_throughput_rps=least))
    return replace(request, models=tuple(models))


def _lagrangian_model(
    request: PlanRequest, spec: PlanModel, plain: PlanModel, types: frozenset[str]
) -> PlanModel:
    """The model with throughput E = max(A, (1 + a) G) / (1 + q a) at each point and its offered rate as minimum.

    A slice serves at most A requests/s, and at most G in batches that end within the limit. A share q of the rate r
    must be within it. If a slice works for a time y, g of it on such batches, then sum G g >= q r and
    sum G g + A (y - g) >= r. Adding a times the first to the second gives sum E y >= r for any multiplier a >= 0.
    The a chosen minimizes the largest throughput per GiB of slice.
    """
    share = spec.response_percentile / 100
    rates = {id(point): rate for point, rate in _most_and_good(request, spec, plain, types)}

    def counted(multiplier: float, point: Point) -> float:
        most, good = rates.get(id(point), (0.0, 0.0))
        return max(most, (1 + multiplier) * good) / (1 + share * multiplier)

    best = min(
        MULTIPLIERS,
        key=lambda multiplier: max(
            (counted(multiplier, point) / _size(point) for point in plain.points), default=0.0
        ),
    )

    def with_counted(stage: Stage) -> Stage:
        points = tuple(
            replace(point, throughput_rps=counted(best, point), low_rps=None, high_rps=None)
            if id(point) in rates
            else point
            for point in stage.points
        )
        return replace(stage, points=points)

    variants = tuple(
        replace(variant, stages=tuple(map(with_counted, variant.stages))) for variant in plain.variants
    )
    return replace(plain, variants=variants, min_throughput_rps=offered_by(spec))


def _most_and_good(
    request: PlanRequest, spec: PlanModel, plain: PlanModel, types: frozenset[str]
) -> Iterator[tuple[Point, tuple[float, float]]]:
    """By point that serves, A and G of `_lagrangian_model`, requests/s."""
    for variant in plain.variants:
        quickest = [fastest_ms(stage, types) or 0.0 for stage in variant.stages]
        for number, stage in enumerate(variant.stages):
            others = sum(quickest) - quickest[number]
            left = (spec.max_response_ms or 0.0) - transfers_ms(request, variant) - others
            for point in stage.points:
                if point.throughput_rps > 0:
                    times = batch_times(points_up_to(stage, point))
                    yield (
                        point,
                        (
                            max_rps_within(times, float("inf"), point.processes),
                            max_rps_within(times, left, point.processes),
                        ),
                    )


def _size(point: Point) -> float:
    """GiB of the slice; 1 if unknown."""
    if point.profile == WHOLE_GPU or point.gpu_type == CPU:
        return 1.0
    return gpu_type(point.gpu_type).profile(point.profile).memory_gib or 1.0

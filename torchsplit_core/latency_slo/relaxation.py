"""Requests without queueing that replace one with response-time limits, to prove a bound or as a first attempt.

*relaxed*: every plan that keeps the limits is feasible in it, at a value at least as good, so its bound holds for both.
*halved*: the published rule of half the limit; no bound and no proof depends on it.
"""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.hardware import gpu_type
from torchsplit_core.latency_slo.isolated_capacity import max_rps_within
from torchsplit_core.latency_slo.simulation_input import batch_times, points_up_to
from torchsplit_core.latency_slo.slo_check import limited_models, offered_by
from torchsplit_core.planning.problem.transfers import bytes_per_request
from torchsplit_core.planning.request.objective import goal_of, requires_resilience
from torchsplit_core.values import CPU, WHOLE_GPU, PlanModel, PlanRequest, Point, Stage, Variant
from torchsplit_core.values.units import GB

MULTIPLIERS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0)
"""Lagrange multipliers of the constraint on responses within the limit, tried for the bound."""


def without_limits(request: PlanRequest) -> PlanRequest:
    """The request without response limits, percentiles and arrivals."""
    models = tuple(
        replace(model, max_response_ms=None, response_percentile=95.0, arrivals=None)
        for model in request.models
    )
    return replace(request, models=models)


def halve_limits(request: PlanRequest) -> PlanRequest:
    """The published rule as a request: a batch may take half of the limit, and the offered rate is a minimum."""
    models = list(without_limits(request).models)
    for number, spec in enumerate(request.models):
        if spec.max_response_ms is not None:
            service = spec.max_response_ms / 2
            models[number] = replace(
                models[number],
                max_latency_ms=min(service, spec.max_latency_ms or service),
                min_throughput_rps=max(offered_by(spec), spec.min_throughput_rps or 0.0) or None,
            )
    return replace(request, models=tuple(models))


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

    def with_multiplier(multiplier: float) -> PlanModel:
        variants = []
        for variant in plain.variants:
            quickest = [fastest_ms(stage, types) or 0.0 for stage in variant.stages]
            stages = []
            for number, stage in enumerate(variant.stages):
                others = sum(quickest) - quickest[number]
                left = (spec.max_response_ms or 0.0) - transfers_ms(request, variant) - others
                points = tuple(
                    _lagrangian_point(stage, point, left, multiplier, share) for point in stage.points
                )
                stages.append(replace(stage, points=points))
            variants.append(replace(variant, stages=tuple(stages)))
        return replace(plain, variants=tuple(variants), min_throughput_rps=offered_by(spec))

    return min(map(with_multiplier, MULTIPLIERS), key=_best_rate_per_gib)


def _lagrangian_point(stage: Stage, point: Point, limit_ms: float, multiplier: float, share: float) -> Point:
    if point.throughput_rps <= 0:
        return point
    times = batch_times(points_up_to(stage, point))
    most = max_rps_within(times, float("inf"), point.processes)
    good = max_rps_within(times, limit_ms, point.processes)
    counts = max(most, (1 + multiplier) * good) / (1 + share * multiplier)
    return replace(point, throughput_rps=counts, low_rps=None, high_rps=None)


def _best_rate_per_gib(model: PlanModel) -> float:
    return max(
        (point.throughput_rps / _size(point) for point in model.points),
        default=0.0,
    )


def _size(point: Point) -> float:
    """GiB of the slice; 1 if unknown."""
    if point.profile == WHOLE_GPU or point.gpu_type == CPU:
        return 1.0
    return gpu_type(point.gpu_type).profile(point.profile).memory_gib or 1.0

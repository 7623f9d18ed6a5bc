"""The one measurement that settles most of what a plan leaves open.

A measured point would have its throughput with a negligible interval. So each point in use is tried with its throughput
alone; the one that most reduces the shortfall at the low end, Σ max(0, wanted − low) over the models, is the one to
measure. If no single point helps (two stages limit a model alike), the width of the model's interval decides, then the
point's own width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.planning.outcome.figures import planned_or_unserved
from torchsplit_core.planning.outcome.instances import ModelInstances, RunningInstance
from torchsplit_core.values import PlanRequest, Point
from torchsplit_core.values.profile import Basis

MAX_RELATIVE_WIDTH = 0.1
"""Relative interval width above which a measured point is worth measuring again: 5 % either way."""


@dataclass(frozen=True, slots=True)
class MeasurementAdvice:
    """A point in use, its interval in requests/s, and by how much it would reduce the shortfall at the low end."""

    model: str
    variant: str
    stage: str
    gpu_type: str
    profile: str
    batch_size: int
    processes: int
    basis: Basis
    low_rps: float
    high_rps: float
    settles_rps: float


def most_informative_measurement(
    request: PlanRequest, still_open: Sequence[ModelInstances], wanted_rps: Mapping[str, float]
) -> MeasurementAdvice | None:
    """The measurement that settles most of these models' verdicts; None if no point in use is worth measuring."""
    rated = [
        rated_point
        for instances in still_open
        for rated_point in _rate_points(request, instances, wanted_rps[instances.model.name])
    ]
    # Rounded, so that equal rates are ordered by name on every machine.
    return (
        min(rated, key=lambda entry: (*(-float(f"{rate:.9g}") for rate in entry[0]), _point_key(entry[1])))[1]
        if rated
        else None
    )


def _rate_points(
    request: PlanRequest, instances: ModelInstances, wanted: float
) -> list[tuple[tuple[float, float, float], MeasurementAdvice]]:
    """Every point of a model worth measuring, with the reductions of the shortfall and the width, and its own width."""
    if instances.variant is None:
        return []
    before = _interval_ends(request, instances)
    rated = []
    for number, stage in enumerate(instances.stages):
        points = {id(instance.point): instance.point for instance in stage}
        for point in filter(_is_worth_measuring, points.values()):
            after = _interval_ends(request, _with_exact_point(instances, number, point))
            settles = max(0.0, wanted - before[0]) - max(0.0, wanted - after[0])
            narrower = (before[1] - before[0]) - (after[1] - after[0])
            low, high = _interval(point)
            point_width = sum(instance.share for instance in stage if instance.point is point) * (high - low)
            advice = MeasurementAdvice(
                instances.model.name,
                instances.variant.name,
                instances.variant.stages[number].name,
                point.gpu_type,
                point.profile,
                point.batch_size,
                point.processes,
                point.basis,
                low,
                high,
                max(0.0, settles),
            )
            rated.append(((settles, narrower, point_width), advice))
    return rated


def _is_worth_measuring(point: Point) -> bool:
    """Whether it has an interval and is either not measured or wide."""
    low, high = _interval(point)
    return high > low and (
        point.basis != "measured" or high - low > MAX_RELATIVE_WIDTH * point.throughput_rps
    )


def _interval(point: Point) -> tuple[float, float]:
    low = point.throughput_rps if point.low_rps is None else point.low_rps
    return low, point.throughput_rps if point.high_rps is None else point.high_rps


def _with_exact_point(instances: ModelInstances, number: int, point: Point) -> ModelInstances:
    """The model with this point of this stage at its throughput, without an interval."""
    known = replace(point, low_rps=None, high_rps=None)

    def make_exact(instance: RunningInstance) -> RunningInstance:
        return replace(instance, point=known) if instance.point is point else instance

    stages = list(instances.stages)
    stages[number] = tuple(map(make_exact, stages[number]))
    return replace(instances, stages=tuple(stages))


def _interval_ends(request: PlanRequest, instances: ModelInstances) -> tuple[float, float]:
    planned = planned_or_unserved(request, instances)
    return planned.low_rps or 0.0, planned.high_rps or 0.0


def _point_key(advice: MeasurementAdvice) -> tuple[str | int, ...]:
    return (
        advice.model, advice.variant, advice.stage, advice.gpu_type, advice.profile, advice.batch_size, advice.processes
    )  # fmt: skip

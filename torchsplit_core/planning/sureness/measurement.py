"""Which one measurement would settle most of what a plan leaves open.

A point in use that was measured would have its throughput and no interval to speak of. So each is tried so: with
its throughput alone, what is missing at the low end, Σ max(0, wanted − low) over the models, shrinks by so much. The
point with which it shrinks most is the one to measure. Where no single point helps, for two stages hold a model
down alike, the width of the model's interval decides, then the width that the point itself brings in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.planning.outcome.figures import Instance, Running, served_or_not
from torchsplit_core.values import PlanRequest, Point
from torchsplit_core.values.profile import Basis

WIDE = 0.1
"""Relative width of an interval above which a measured point is worth measuring again: 5 % either way."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A point in use, its interval in requests/s, and by how much what is missing at the low end would shrink."""

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


def best_measurement(
    request: PlanRequest, still_open: Sequence[Running], wanted_rps: Mapping[str, float]
) -> Measurement | None:
    """The measurement that settles most of these models' verdicts; None where nothing in use is worth measuring."""
    rated = [
        found for running in still_open for found in _rated(request, running, wanted_rps[running.model.name])
    ]
    # Rates are rounded to what tells them apart, so that equal ones go by name on every machine.
    return (
        min(rated, key=lambda one: (*(-float(f"{rate:.9g}") for rate in one[0]), _key(one[1])))[1]
        if rated
        else None
    )


def _rated(
    request: PlanRequest, running: Running, wanted: float
) -> list[tuple[tuple[float, float, float], Measurement]]:
    """Every point of a model worth measuring, with what it settles: of the missing, of the width, of its own."""
    if running.variant is None:
        return []
    before = _ends(request, running)
    found = []
    for number, stage in enumerate(running.stages):
        points = {id(instance.point): instance.point for instance in stage}
        for point in filter(_worth_it, points.values()):
            after = _ends(request, _settled(running, number, point))
            settles = max(0.0, wanted - before[0]) - max(0.0, wanted - after[0])
            narrower = (before[1] - before[0]) - (after[1] - after[0])
            low, high = _interval(point)
            own = sum(instance.share for instance in stage if instance.point is point) * (high - low)
            told = Measurement(
                running.model.name,
                running.variant.name,
                running.variant.stages[number].name,
                point.gpu_type,
                point.profile,
                point.batch_size,
                point.processes,
                point.basis,
                low,
                high,
                max(0.0, settles),
            )
            found.append(((settles, narrower, own), told))
    return found


def _worth_it(point: Point) -> bool:
    """Whether there is something to find out: it has an interval, and was not measured or is wide."""
    low, high = _interval(point)
    return high > low and (point.basis != "measured" or high - low > WIDE * point.throughput_rps)


def _interval(point: Point) -> tuple[float, float]:
    low = point.throughput_rps if point.low_rps is None else point.low_rps
    return low, point.throughput_rps if point.high_rps is None else point.high_rps


def _settled(running: Running, number: int, point: Point) -> Running:
    """The model with this point of this stage at its throughput, without an interval."""
    known = replace(point, low_rps=None, high_rps=None)

    def sure(instance: Instance) -> Instance:
        return replace(instance, point=known) if instance.point is point else instance

    stages = list(running.stages)
    stages[number] = tuple(map(sure, stages[number]))
    return replace(running, stages=tuple(stages))


def _ends(request: PlanRequest, running: Running) -> tuple[float, float]:
    found = served_or_not(request, running)
    return found.low_rps or 0.0, found.high_rps or 0.0


def _key(found: Measurement) -> tuple[str | int, ...]:
    return (
        found.model, found.variant, found.stage, found.gpu_type, found.profile, found.batch_size, found.processes
    )  # fmt: skip

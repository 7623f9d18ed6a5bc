"""Points of a request replaced by those that were measured while its plan was served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchsplit_core.planning.request.edit import with_stages
from torchsplit_core.values import PlanRequest, Point, Stage
from torchsplit_core.values.serving.measurement import MeasuredPoint, Measurement


def with_measured(request: PlanRequest, measurement: Measurement) -> PlanRequest:
    """The request with each measured point in the place of the one of its slice, batch size and processes.

    Batch sizes that the request has no point of are added, with the memory of the largest there is. Without
    measured points the request comes back as it is.
    """
    found: dict[tuple[str, str, str], list[MeasuredPoint]] = {}
    for one in measurement.points:
        found.setdefault((one.model, one.variant, one.stage), []).append(one)
    return with_stages(
        request,
        lambda model, variant, stage: _stage(stage, found.get((model.name, variant.name, stage.name), ())),
    )


def _stage(stage: Stage, measured: Sequence[MeasuredPoint]) -> Stage:
    points = {_key(point): point for point in stage.points}
    for one in measured:
        key = _key(one)
        known = points.get(key)
        points[key] = Point(
            one.gpu_type,
            one.profile,
            one.batch_size,
            one.throughput_rps,
            one.latency_ms,
            one.processes,
            known.memory_gib if known is not None else _memory(stage, one),
            "measured",
            one.low_rps,
            one.high_rps,
        )
    return replace(stage, points=tuple(points.values()))


def _memory(stage: Stage, one: MeasuredPoint) -> float | None:
    """That of the largest batch on its slice; None where it is not known."""
    own = [
        point
        for point in stage.points
        if (point.gpu_type, point.profile, point.processes) == (one.gpu_type, one.profile, one.processes)
    ]
    return max(own, key=lambda point: point.batch_size).memory_gib if own else None


def _key(point: Point | MeasuredPoint) -> tuple[str, str, int, int]:
    return point.gpu_type, point.profile, point.batch_size, point.processes

"""Replaces points of a request by points measured while its plan was served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchsplit_core.planning.request.edit import with_stages
from torchsplit_core.values import PlanRequest, Point, Stage
from torchsplit_core.values.serving.measurement import MeasuredPoint, Measurement


def replace_points(request: PlanRequest, measurement: Measurement) -> PlanRequest:
    """Replace the points of the same slice, batch size and processes by the measured ones.

    A new batch size is added with the memory of the largest known one.
    """
    points_by_stage: dict[tuple[str, str, str], list[MeasuredPoint]] = {}
    for point in measurement.points:
        points_by_stage.setdefault((point.model, point.variant, point.stage), []).append(point)
    return with_stages(
        request,
        lambda model, variant, stage: _replace_stage_points(
            stage, points_by_stage.get((model.name, variant.name, stage.name), ())
        ),
    )


def _replace_stage_points(stage: Stage, measured: Sequence[MeasuredPoint]) -> Stage:
    points = {_key(point): point for point in stage.points}
    for measured_point in measured:
        key = _key(measured_point)
        known = points.get(key)
        points[key] = Point(
            measured_point.gpu_type,
            measured_point.profile,
            measured_point.batch_size,
            measured_point.throughput_rps,
            measured_point.latency_ms,
            measured_point.processes,
            known.memory_gib if known is not None else _memory_like(stage, measured_point),
            "measured",
            measured_point.low_rps,
            measured_point.high_rps,
        )
    return replace(stage, points=tuple(points.values()))


def _memory_like(stage: Stage, measured_point: MeasuredPoint) -> float | None:
    """The memory of the largest batch on the same slice; None if unknown."""
    same_slice = [
        point
        for point in stage.points
        if (point.gpu_type, point.profile, point.processes)
        == (measured_point.gpu_type, measured_point.profile, measured_point.processes)
    ]
    return max(same_slice, key=lambda point: point.batch_size).memory_gib if same_slice else None


def _key(point: Point | MeasuredPoint) -> tuple[str, str, int, int]:
    return point.gpu_type, point.profile, point.batch_size, point.processes

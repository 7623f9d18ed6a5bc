"""Curves through the measured points of a profile, with their intervals and outliers. No streamlit in here.

Measured and emulated rows are never fitted together, nor rows of two GPU types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from app.charts.curves import Curve
from app.models.profile.rows import Series, place_of
from torchsplit_core.curves import ModelCurves, Sample, fit_model, outliers
from torchsplit_core.hardware import catalogue
from torchsplit_core.profiling.slice_sizes import SliceAdvice, slice_advice, slice_sample
from torchsplit_core.values import Profile, ProfileRow

LEAST_POINTS = 3
"""The fewest batch sizes of a line with a curve: any curve fits two points."""
BEYOND = 2
"""A curve is drawn up to this many times the largest batch size measured."""
DRAWN = 24
"""Batch sizes at which a curve is drawn."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """A measured point outside what the other points of its model predict; the interval is of that prediction."""

    series: Series
    row: ProfileRow
    expected_rps: float
    low_rps: float
    high_rps: float


@dataclass(frozen=True, slots=True)
class ProfileFit:
    """The fit of the measured rows of one profile on one GPU type. `median_error` is leave-one-out.

    `next_point` is None for emulated rows and for GPU types without slices.
    """

    name: str
    gpu_type: str
    basis: str
    rows: int
    median_error: float
    curves: Mapping[Series, Curve]
    outliers: tuple[Outlier, ...]
    next_point: SliceAdvice | None


def fits(name: str, profile: Profile, processes: Sequence[int]) -> tuple[ProfileFit, ...]:
    """A fit for each measured GPU type and basis, with a curve for each line of enough points.

    Only rows with these numbers of `processes` count, since the work grows with the cube of the rows.
    """
    groups: dict[tuple[str, str, str], list[tuple[ProfileRow, Sample]]] = {}
    for row in profile.rows:
        if row.basis == "estimated" or row.processes not in processes:
            continue
        sample = slice_sample(row, name)
        if sample is not None:
            groups.setdefault((row.stage, row.gpu_type, row.basis), []).append((row, sample))
    return tuple(_fit(name, rows) for rows in groups.values())


def _fit(name: str, rows: Sequence[tuple[ProfileRow, Sample]]) -> ProfileFit:
    """The fit of rows of one stage, GPU type and basis, each with its sample."""
    given = [sample for _, sample in rows]
    first = rows[0][0]
    model = fit_model(given)
    by_line: dict[Series, list[tuple[ProfileRow, Sample]]] = {}
    for row, sample in rows:
        key = Series(name, row.stage, place_of(row), row.processes)
        by_line.setdefault(key, []).append((row, sample))
    curves = {
        key: _curve(model, [sample for _, sample in line])
        for key, line in by_line.items()
        if len({row.batch_size for row, _ in line}) >= LEAST_POINTS
    }
    at = {sample: (key, row) for key, line in by_line.items() for row, sample in line}
    far = tuple(
        Outlier(*at[outlier.sample], outlier.expected_rps, outlier.low_rps, outlier.high_rps)
        for outlier in outliers(given)
        if outlier.sample in at
    )
    error, next_point = model.leave_one_out().median, _next_point(first, given)
    return ProfileFit(name, first.gpu_type, first.basis, len(rows), error, curves, far, next_point)


def _next_point(row: ProfileRow, given: Sequence[Sample]) -> SliceAdvice | None:
    """Advice on the slices of the rows' GPU type, from measurements of the whole model."""
    kind = catalogue().get(row.gpu_type)
    return slice_advice(kind, given) if kind and (row.basis, row.stage) == ("measured", "whole") else None


def _curve(model: ModelCurves, line: Sequence[Sample]) -> Curve:
    """The fitted band: `model` answers a measured batch size with its row, which would put a corner into the curve."""
    first = line[0]
    batches = drawn_batches([sample.batch_size for sample in line])
    band = model.band(first.size, batches, first.processes)
    requests = [1000.0 * batch * first.processes for batch in batches]

    # The curve is of the typical time; p95, the axis, is above it by the line's typical ratio.
    to_p95 = median(
        sample.latency_ms * sample.throughput_rps / (1000.0 * sample.batch_size * sample.processes)
        for sample in line
        if sample.latency_ms is not None
    )

    def rates(times: Sequence[float]) -> tuple[float, ...]:
        return tuple(count / time for count, time in zip(requests, times, strict=True))

    p95_ms = tuple(time * to_p95 for time in band.time_ms)
    return Curve(batches, rates(band.time_ms), rates(band.high_ms), rates(band.low_ms), latency_ms=p95_ms)


def drawn_batches(measured: Sequence[int]) -> tuple[int, ...]:
    """Whole batch sizes from the least measured to a little beyond the largest, evenly on a logarithm."""
    low, high = min(measured), BEYOND * max(measured)
    ratio = high / low
    steps = {round(low * ratio ** (step / (DRAWN - 1))) for step in range(DRAWN)}
    return tuple(sorted(steps | set(measured)))

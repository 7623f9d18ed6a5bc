"""Curves through the measured points of a profile: what lies between and beside them, and how sure that is.

No streamlit in here. Measured and emulated rows are never fitted together, nor rows of two GPU types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from app.profile_rows import Place, Series, place_of
from torchsplit_core.curves import ModelCurves, Sample, advice, fit_model, outliers
from torchsplit_core.hardware import catalogue, peak_names, peaks, plain_profiles
from torchsplit_core.values import Profile, ProfileRow

LEAST_POINTS = 3
"""Batch sizes of one line below which no curve is drawn through it: two points make any curve fit."""
BEYOND = 2
"""A curve is drawn up to this many times the largest batch size measured."""
DRAWN = 24
"""Batch sizes at which a curve is drawn."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A fitted line over batch sizes: throughput with its 90 % band in requests/s, time of one batch in ms."""

    batch_sizes: tuple[int, ...]
    rps: tuple[float, ...]
    low_rps: tuple[float, ...]
    high_rps: tuple[float, ...]
    latency_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FarOff:
    """A measured point far from what the other points of its model say; the interval is theirs."""

    series: Series
    row: ProfileRow
    expected_rps: float
    low_rps: float
    high_rps: float


@dataclass(frozen=True, slots=True)
class NextPoint:
    """How uncertain the least certain slice is, and the one measurement that would help it most.

    `now` and `after` are factors either way of the 90 % interval of the throughput.
    """

    slices_measured: int
    widest: str
    now: float
    measure: str
    batch_size: int
    after: float


@dataclass(frozen=True, slots=True)
class Fit:
    """What the measured rows of one profile on one GPU type say together. `median_error` is leave-one-out.

    `next_point` is None where the GPU type has no slices, and for emulated rows.
    """

    name: str
    gpu_type: str
    basis: str
    rows: int
    median_error: float
    curves: Mapping[Series, Curve]
    far_off: tuple[FarOff, ...]
    next_point: NextPoint | None


def fits(name: str, profile: Profile, processes: Sequence[int]) -> tuple[Fit, ...]:
    """A fit for each GPU type and basis that was measured, with a curve for each line of enough points.

    Rows of other numbers of processes are left out: the work grows with the cube of the rows.
    """
    groups: dict[tuple[str, str, str], list[ProfileRow]] = {}
    for row in profile.rows:
        if row.basis == "estimated" or row.processes not in processes:
            continue
        if size_of(place_of(row)) is not None:
            groups.setdefault((row.stage, row.gpu_type, row.basis), []).append(row)
    return tuple(_fit(name, rows) for rows in groups.values())


def size_of(place: Place) -> tuple[float, float | None] | None:
    """A place's compute share (SMs, else compute slices) and memory bandwidth share; None where unknown.

    A processor, and a GPU that the catalogue lacks, are one size of their own.
    """
    kind = catalogue().get(place.gpu_type)
    if kind is None:
        return (1.0, None) if not place.profile else None
    sliced = all(profile.sm_count is not None for profile in plain_profiles(kind))
    if not place.profile:
        known = peaks(kind.name).sm_count if kind.name in peak_names() else kind.sm_total
        return (float(known), 1.0) if sliced and known else (float(kind.compute_slices), 1.0)
    if place.profile.startswith("sm:") and place.profile[3:].isdecimal():
        return (float(place.profile[3:]), 1.0)
    found = next((one for one in kind.profiles if one.name == place.profile), None)
    if found is None:
        return None
    share = min(1.0, found.memory_slices / kind.memory_slices)
    if sliced and found.sm_count is not None:
        return float(found.sm_count), share
    return float(found.compute_slices), share


def samples(name: str, rows: Sequence[ProfileRow]) -> tuple[Sample, ...]:
    """Rows of one GPU type as the curves take them; every place has a size. Emulated SMs keep all bandwidth."""
    found = []
    for row in rows:
        known = size_of(place_of(row))
        assert known is not None  # the callers leave other places out
        size, share = known
        share = 1.0 if row.basis == "emulated" else share
        found.append(
            Sample(name, size, row.batch_size, row.processes, row.throughput_rps, row.latency_ms, share)
        )
    return tuple(found)


def _fit(name: str, rows: Sequence[ProfileRow]) -> Fit:
    given = samples(name, rows)
    model = fit_model(given)
    by_line: dict[Series, list[tuple[ProfileRow, Sample]]] = {}
    for row, sample in zip(rows, given, strict=True):
        key = Series(name, row.stage, place_of(row), row.processes)
        by_line.setdefault(key, []).append((row, sample))
    curves = {
        key: _curve(model, [sample for _, sample in line])
        for key, line in by_line.items()
        if len({row.batch_size for row, _ in line}) >= LEAST_POINTS
    }
    at = {sample: (key, row) for key, line in by_line.items() for row, sample in line}
    far = tuple(
        FarOff(*at[one.sample], one.expected_rps, one.low_rps, one.high_rps)
        for one in outliers(given)
        if one.sample in at
    )
    return Fit(
        name=name,
        gpu_type=rows[0].gpu_type,
        basis=rows[0].basis,
        rows=len(rows),
        median_error=model.leave_one_out().median,
        curves=curves,
        far_off=far,
        next_point=_next_point(rows[0], given),
    )


def _next_point(row: ProfileRow, given: Sequence[Sample]) -> NextPoint | None:
    """Advice on the slices of the rows' GPU type; slices of equal size count as one."""
    kind = catalogue().get(row.gpu_type)
    if kind is None or row.basis != "measured" or row.stage != "whole":
        return None
    by_size: dict[float, str] = {}
    for profile in plain_profiles(kind):
        known = size_of(Place(kind.name, profile.name))
        if known is not None:
            by_size.setdefault(known[0], profile.name)
    found = advice(given, tuple(by_size))
    widest = max(found.uncertainty, key=lambda one: one.width_now)
    return NextPoint(
        slices_measured=len({sample.size for sample in given}),
        widest=by_size[widest.size],
        now=math.sqrt(widest.width_now),
        measure=by_size[found.size],
        batch_size=found.batch_size,
        after=math.sqrt(max(one.width_after for one in found.uncertainty)),
    )


def _curve(model: ModelCurves, line: Sequence[Sample]) -> Curve:
    """The fitted band itself: an answer to a measured row would be the row, and put a corner into the curve."""
    first = line[0]
    batches = drawn_batches([sample.batch_size for sample in line])
    band = model.band(first.size, batches, first.processes)
    requests = [1000.0 * batch * first.processes for batch in batches]

    # The curve is of the typical time; the axis is p95, which lies above it by the line's typical ratio.
    to_p95 = median(
        sample.latency_ms * sample.throughput_rps / (1000.0 * sample.batch_size * sample.processes)
        for sample in line
        if sample.latency_ms is not None
    )

    def rates(times: Sequence[float]) -> tuple[float, ...]:
        return tuple(count / time for count, time in zip(requests, times, strict=True))

    return Curve(
        batch_sizes=batches,
        rps=rates(band.time_ms),
        low_rps=rates(band.high_ms),
        high_rps=rates(band.low_ms),
        latency_ms=tuple(time * to_p95 for time in band.time_ms),
    )


def drawn_batches(measured: Sequence[int]) -> tuple[int, ...]:
    """Whole batch sizes from the least measured to a little beyond the largest, evenly on a logarithm."""
    low, high = min(measured), BEYOND * max(measured)
    ratio = high / low
    steps = {round(low * ratio ** (step / (DRAWN - 1))) for step in range(DRAWN)}
    return tuple(sorted(steps | set(measured)))

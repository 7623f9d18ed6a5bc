"""Figures of one GPU type from those of another without a graph: by the measured curve and ratios of published peaks.

A slice of the other type has the throughput of a slice of the measured GPU with as much compute and bandwidth: as many
SMs of the measured GPU as reach the slice's peak FLOP/s, and its bandwidth as a share of the measured GPU's. What no
slice speeds up (launching, work on the processor) stays as fitted.

    half-width of the 90 % interval, on the logarithm = √(curve² + LOG_PEAK_RATIO_SPREAD² · (MIN_DISTANCE² + d²))
    d = distance of the slice to the nearest measured one: the larger |log ratio| of the two peaks

`LOG_PEAK_RATIO_SPREAD` and `MIN_DISTANCE` are from official MLPerf results of four GPU types:
benchmarks/type_transfer.py fits and evaluates them.

Precision: `fp32` is PyTorch's default, convolutions in TF32 and products in FP32. A model's rows do not say which
dominates: the estimate is that of convolutions, its interval spans both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torchsplit_core.curves import ModelCurves, Query, Sample, fit_model
from torchsplit_core.hardware import (
    GpuPeaks,
    catalogue,
    gpu_type,
    peak_names,
    peaks,
    plain_profiles,
    unsourced_profiles,
)
from torchsplit_core.profiling.slice_sizes import EMULATED_PREFIX
from torchsplit_core.values import (
    CPU,
    WHOLE_GPU,
    GpuType,
    InputFault,
    ProfileFailure,
    ProfileRow,
    SliceProfile,
)

LOG_PEAK_RATIO_SPREAD, MIN_DISTANCE = 0.673, 0.5
"""Fitted to include 90 % of the results, and chosen: see above."""

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

WHOLE_SUFFIX = ":whole"
"""`A100-80GB:whole`: the GPU with MIG off, as in fleets."""


@dataclass(frozen=True, slots=True)
class SlicePeaks:
    """Peaks of a slice: 10^12 FLOP/s by the units that a model may use, 10^9 bytes/s, SMs."""

    tflops: tuple[float, ...]
    gb_per_s: float
    sms: float


@dataclass(frozen=True, slots=True)
class TransferResult:
    """Estimated rows, notes on what has none, and the slices too small for points that ran elsewhere."""

    rows: tuple[ProfileRow, ...]
    notes: tuple[str, ...]
    too_small: tuple[str, ...] = ()


MEASURE_REMEDY = "Measure the model there."


def target_slices(names: Sequence[str]) -> tuple[tuple[GpuType, tuple[str, ...]], ...]:
    """GPU types by name with the profiles to estimate: the plain ones and the whole GPU (WHOLE_GPU).

    `TYPE:whole` has only the latter. Raises InputFault for an unknown type, a host's cores, or a type without published
    peaks.
    """
    slices_by_gpu = []
    for name in dict.fromkeys(names):
        kind = name.removesuffix(WHOLE_SUFFIX)
        try:
            gpu = gpu_type(kind)
        except InputFault as fault:
            raise fault.within("--to") from None
        if gpu.divided == "cores":
            raise InputFault(
                "--to",
                f"{kind} is a host of cores, which has no published peaks to estimate by",
                "Measure the model there: torchsplit profile SOURCE --device cpu:1c,cpu:2c.",
            )
        if gpu.whole is None or kind not in peak_names():
            raise InputFault(
                "--to",
                f"{kind} has no published peaks (FLOP/s, memory bandwidth) to estimate by",
                f"Measure the model there, or take one of {', '.join(peak_names())}.",
            )
        plain = () if name != kind else tuple(profile.name for profile in plain_profiles(gpu))
        slices_by_gpu.append((gpu, (*plain, WHOLE_GPU)))
    return tuple(slices_by_gpu)


def transfer(
    entries: Iterable[ProfileRow | ProfileFailure], to: Sequence[str], precision: Precision = "fp32"
) -> TransferResult:
    """Rows of those GPU types (see `target_slices`) for one model, from its rows and failures on any others.

    Every batch size and number of processes of a stage's rows, on every slice of a type without rows of the stage
    (`TYPE:whole`: no row of the whole GPU). Basis estimated, with low_rps and high_rps; measured rows are preferred to
    estimated ones as a basis. A slice is left out if its memory is less than the row's memory_gib, or, if that is
    unknown, than that of every slice on which the row ran. Raises InputFault as `target_slices` does, and if a peak at
    that precision is not published.
    """
    wanted_slices = target_slices(to)
    notes = [
        f"{gpu.name} {', '.join(left_out)}: left out, their memory is not published"
        for gpu, _ in wanted_slices
        if gpu.name in to and (left_out := unsourced_profiles(gpu))
    ]
    stages: dict[tuple[str, int | None], list[ProfileRow | ProfileFailure]] = {}
    for entry in entries:
        stages.setdefault((entry.stage, entry.sequence_length), []).append(entry)
    rows: list[ProfileRow] = []
    too_small: list[str] = []
    for group in stages.values():
        references = list(reference_curves(group, precision))
        if not references:
            continue
        known_gpus = {entry.gpu_type for entry in group}
        known_whole = {entry.gpu_type for entry in group if entry.profile is None}
        memory = _memory_needs(group)
        unmeasured_points: list[_UnmeasuredPoint] = []
        for gpu, profiles in wanted_slices:
            if gpu.name in (known_whole if profiles == (WHOLE_GPU,) else known_gpus):
                notes.append(f"{gpu.name}: rows of it are there already and stay as they are")
                continue
            for name in profiles:
                unmeasured_points += _unmeasured_points(
                    gpu, gpu.profile(name), memory, precision, notes, too_small
                )
        rows += _rows(group[0], references, unmeasured_points)
    return TransferResult(tuple(rows), tuple(dict.fromkeys(notes)), tuple(dict.fromkeys(too_small)))


def slice_peaks(gpu: GpuType, profile: SliceProfile, precision: Precision) -> SlicePeaks | None:
    """Shares of the type's peaks: SMs for arithmetic, memory slots for bandwidth; None if SMs are not sourced.

    Raises InputFault for a peak that is not.
    """
    peak = peaks(gpu.name)
    if not profile.sm_count or not peak.sm_count:
        return None
    share = profile.sm_count / peak.sm_count
    bandwidth = peak.memory_gb_per_s
    if bandwidth is None:
        raise _missing(gpu.name, "memory bandwidth", MEASURE_REMEDY)
    return SlicePeaks(
        tuple(tera * share for tera in _peak_tflops(peak, precision)),
        bandwidth * profile.memory_slices / gpu.memory_slices,
        float(profile.sm_count),
    )


def _peak_tflops(peak: GpuPeaks, precision: Precision) -> tuple[float, ...]:
    """The peaks by unit; for fp32 those of convolutions and of products."""
    figures: tuple[float | None, ...]
    if precision == "fp32":
        figures = (peak.fp32_tflops if peak.before_tf32 else peak.tf32_tflops, peak.fp32_tflops)
    else:
        figures = (_peak(peak, precision),)
    tflops = tuple(figure for figure in figures if figure is not None)
    if len(tflops) < len(figures):
        what = ("TF32" if peak.fp32_tflops else "FP32") if precision == "fp32" else precision.upper()
        published = [
            candidate
            for candidate in PRECISIONS
            if candidate != "fp32" and _peak(peak, candidate) is not None
        ]
        remedy = (
            f"Give the precision of the rows (--precision {'|'.join(published)})."
            if published
            else MEASURE_REMEDY
        )
        raise _missing(peak.name, f"{what} peak", remedy)
    return tflops


def _peak(peak: GpuPeaks, precision: Precision) -> float | None:
    """The single peak of a precision other than fp32."""
    tflops: float | None = getattr(peak, "int8_tops" if precision == "int8" else f"{precision}_tflops")
    return tflops


def _missing(name: str, what: str, remedy: str) -> InputFault:
    return InputFault("--to", f"{name} has no published {what}", remedy)


@dataclass(frozen=True, slots=True)
class ReferenceCurves:
    """A stage's curves on one GPU type, the peaks of the measured slices, and the widths of the rows' intervals."""

    whole: SlicePeaks
    curves: ModelCurves
    slices: tuple[SlicePeaks, ...]
    interval_width: float

    def estimates(
        self,
        slices: Sequence[SlicePeaks],
        points: Sequence[tuple[int, int]],
        spread: float = LOG_PEAK_RATIO_SPREAD,
    ) -> list[tuple[float, float, float, float]]:
        """Requests/s, low, high, latency in ms of each slice at its (batch size, processes); `spread` to calibrate."""
        estimates: list[tuple[float, float, float, float]] = []
        for unit in range(len(self.whole.tflops)):
            queries = [
                Query(
                    self.curves.model,
                    target.tflops[unit] / (self.whole.tflops[unit] / self.whole.sms),
                    batch,
                    count,
                    target.gb_per_s / self.whole.gb_per_s,
                )
                for target, (batch, count) in zip(slices, points, strict=True)
            ]
            for index, (target, query, batch_time) in enumerate(
                zip(slices, queries, self.curves.times(queries), strict=True)
            ):
                distance = min(_distance(target, near, unit) for near in self.slices)
                width = math.hypot(
                    batch_time.half_width, spread * math.hypot(MIN_DISTANCE, distance), self.interval_width
                )
                rate = 1000.0 * query.processes * query.batch_size / batch_time.time_ms
                low, high = rate / math.exp(width), rate * math.exp(width)
                if unit == 0:
                    estimates.append((rate, low, high, batch_time.latency_ms))
                else:
                    estimates[index] = (
                        estimates[index][0],
                        min(low, estimates[index][1]),
                        max(high, estimates[index][2]),
                        estimates[index][3],
                    )
        return estimates


def _distance(first: SlicePeaks, second: SlicePeaks, unit: int) -> float:
    compute = math.log(first.tflops[unit] / second.tflops[unit])
    return max(abs(compute), abs(math.log(first.gb_per_s / second.gb_per_s)))


def reference_curves(
    group: Sequence[ProfileRow | ProfileFailure], precision: Precision
) -> Iterator[ReferenceCurves]:
    """The curves of each GPU type with rows of the stage: of measured or emulated rows, else of estimates."""
    rows = [entry for entry in group if isinstance(entry, ProfileRow) and entry.throughput_rps > 0]
    trusted = [row for row in rows if row.basis != "estimated"] or rows
    for name in dict.fromkeys(row.gpu_type for row in trusted):
        gpu = gpu_type(name) if name in peak_names() else None
        whole = None if gpu is None or gpu.whole is None else slice_peaks(gpu, gpu.whole, precision)
        if gpu is None or whole is None:
            continue
        located = [
            (row, row_peaks)
            for row in trusted
            if row.gpu_type == name and (row_peaks := _row_peaks(gpu, row, precision))
        ]
        if not located:
            continue
        samples = [
            Sample(
                "model",
                row_peaks.sms,
                row.batch_size,
                row.processes,
                row.throughput_rps,
                row.latency_ms or None,
                min(1.0, row_peaks.gb_per_s / whole.gb_per_s),
            )
            for row, row_peaks in located
        ]
        widths = [_interval_width(row) for row, _ in located if row.basis == "estimated"]
        slices = tuple(dict.fromkeys(row_peaks for _, row_peaks in located))
        yield ReferenceCurves(
            whole, fit_model(samples), slices, sorted(widths)[len(widths) // 2] if widths else 0.0
        )


def _row_peaks(gpu: GpuType, row: ProfileRow, precision: Precision) -> SlicePeaks | None:
    """The peaks of a row's slice; a limit of SMs leaves all the bandwidth (docs/guides/measuring.md)."""
    name = row.profile or WHOLE_GPU
    whole = slice_peaks(gpu, gpu.profile(WHOLE_GPU), precision)
    count = name.removeprefix(EMULATED_PREFIX)
    if (
        name.startswith(EMULATED_PREFIX)
        and whole is not None
        and count.isascii()
        and count.isdigit()
        and int(count)
    ):
        sms = float(count)
        return SlicePeaks(tuple(tera * sms / whole.sms for tera in whole.tflops), whole.gb_per_s, sms)
    slice_profile = next(
        (candidate for candidate in (*gpu.profiles, gpu.whole) if candidate and candidate.name == name), None
    )
    measured_peaks = None if slice_profile is None else slice_peaks(gpu, slice_profile, precision)
    if measured_peaks is not None and whole is not None and row.basis == "emulated":
        return SlicePeaks(measured_peaks.tflops, whole.gb_per_s, measured_peaks.sms)
    return measured_peaks


def _interval_width(row: ProfileRow) -> float:
    if not row.low_rps or not row.high_rps:
        return 0.0
    return math.log(row.high_rps / row.low_rps) / 2


@dataclass(frozen=True, slots=True)
class _MemoryNeed:
    """The memory needed at a batch size and number of processes: known, or that of the smallest slice that sufficed."""

    measured_gib: float | None
    smallest_slice_gib: float

    def fits(self, slice_gib: float) -> bool:
        return (
            self.smallest_slice_gib if self.measured_gib is None else self.measured_gib
        ) <= slice_gib + 1e-9


def _memory_needs(group: Sequence[ProfileRow | ProfileFailure]) -> dict[tuple[int, int], _MemoryNeed]:
    """By batch size and processes. Cores hold nothing that a slice would need."""
    rows = [
        entry
        for entry in group
        if isinstance(entry, ProfileRow) and entry.throughput_rps > 0 and entry.gpu_type != CPU
    ]
    needs: dict[tuple[int, int], _MemoryNeed] = {}
    for point in dict.fromkeys((row.batch_size, row.processes) for row in rows):
        same = [row for row in rows if (row.batch_size, row.processes) == point]
        measured = [row.memory_gib for row in same if row.memory_gib is not None]
        needs[point] = _MemoryNeed(max(measured, default=None), min(map(_slice_gib, same)))
    return needs


def _slice_gib(row: ProfileRow) -> float:
    """Memory of the slice on which a row ran; infinite if unknown."""
    gpu = catalogue().get(row.gpu_type) or (gpu_type(row.gpu_type) if row.gpu_type in peak_names() else None)
    if gpu is None:
        return math.inf
    name = WHOLE_GPU if not row.profile or row.profile.startswith(EMULATED_PREFIX) else row.profile
    slice_profile = next(
        (candidate for candidate in (*gpu.profiles, gpu.whole) if candidate and candidate.name == name), None
    )
    return math.inf if slice_profile is None or slice_profile.memory_gib is None else slice_profile.memory_gib


@dataclass(frozen=True, slots=True)
class _UnmeasuredPoint:
    """A point to estimate: a slice, its peaks, a batch size and number of processes, and its known memory."""

    gpu_type: str
    profile: str
    peaks: SlicePeaks
    point: tuple[int, int]
    memory_gib: float | None


def _unmeasured_points(
    gpu: GpuType,
    profile: SliceProfile,
    memory: Mapping[tuple[int, int], _MemoryNeed],
    precision: Precision,
    notes: list[str],
    too_small: list[str],
) -> list[_UnmeasuredPoint]:
    """Those of one slice that its memory holds."""
    target = slice_peaks(gpu, profile, precision)
    label = f"{gpu.name} {profile.name or 'whole'}"
    if target is None or profile.memory_gib is None:
        notes.append(f"{label}: left out, its SMs or its memory are not published")
        return []
    fitting = [point for point, needs in memory.items() if needs.fits(profile.memory_gib)]
    if len(fitting) < len(memory):
        too_small.append(label)
    return [
        _UnmeasuredPoint(gpu.name, profile.name, target, point, memory[point].measured_gib)
        for point in fitting
    ]


def _rows(
    first: ProfileRow | ProfileFailure,
    known_from: Sequence[ReferenceCurves],
    points: Sequence[_UnmeasuredPoint],
) -> list[ProfileRow]:
    """A row for each point, from the curves with the narrowest interval."""
    estimated = [unmeasured.peaks for unmeasured in points], [unmeasured.point for unmeasured in points]
    by_reference = [ground.estimates(*estimated) for ground in known_from]
    rows = []
    for index, unmeasured in enumerate(points):
        rate, low, high, latency = min(
            (estimates[index] for estimates in by_reference), key=lambda each: each[2] / each[1]
        )
        rows.append(
            ProfileRow(
                stage=first.stage,
                gpu_type=unmeasured.gpu_type,
                profile=unmeasured.profile or None,
                batch_size=unmeasured.point[0],
                processes=unmeasured.point[1],
                throughput_rps=rate,
                latency_ms=latency,
                low_rps=low,
                high_rps=high,
                memory_gib=unmeasured.memory_gib,
                basis="estimated",
                sequence_length=first.sequence_length,
            )
        )
    return rows

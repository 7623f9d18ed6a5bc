"""Slices of a GPU that was measured, where they were not: by the curves of the points that were.

Points of the same model on the same GPU type say more of its other slices than a roofline does. Where a GPU
type has none, the roofline's rows stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torchsplit_core.curves import Advice, Query, Sample, advice, estimate
from torchsplit_core.hardware import catalogue, peak_names, peaks, plain_profiles
from torchsplit_core.values import GpuType, Profile, ProfileFailure, ProfileRow


def fill_slices(profile: Profile) -> Profile:
    """The profile with the estimated rows of measured GPU types taken from the curves, each with its interval.

    `environment["curves"]` says for each such GPU type how many points they rest on.
    """
    rows = list(profile.rows)
    told = {}
    for name, gpu in catalogue().items():
        samples = slice_samples(profile, gpu)
        places = [index for index, row in enumerate(rows) if row.gpu_type == name and _is_open(row)]
        if not samples or not places:
            continue
        found = estimate(samples, [_query(rows[place], gpu) for place in places])
        for place, one in zip(places, found, strict=True):
            if one.basis == "out_of_memory" or one.latency_ms is None:
                rows[place] = replace(rows[place], throughput_rps=0.0)
            else:
                rows[place] = replace(
                    rows[place],
                    throughput_rps=one.throughput_rps,
                    latency_ms=one.latency_ms,
                    low_rps=one.low_rps,
                    high_rps=one.high_rps,
                )
        told[name] = {"points": len(samples), "slices": len({sample.size for sample in samples})}
    kept = tuple(row for row in rows if row.throughput_rps > 0)
    if not told:
        return replace(profile, rows=kept)
    return replace(profile, rows=kept, environment={**profile.environment, "curves": told})


def slice_samples(profile: Profile, gpu: GpuType) -> tuple[Sample, ...]:
    """What was measured or emulated of the whole model on slices of this GPU type; out of memory as 0.

    Sizes are SM counts, memory shares those of the catalogue. A whole GPU counts as the slice of all.
    """
    found = [
        _sample(row, gpu, row.throughput_rps, row.latency_ms)
        for row in profile.rows
        if row.gpu_type == gpu.name and row.stage == "whole" and row.basis != "estimated"
    ]
    found += [
        _sample(item, gpu, 0.0, None)
        for item in profile.failures
        if item.gpu_type == gpu.name and item.stage == "whole" and item.reason == "out_of_memory"
    ]
    usable = tuple(sample for sample in found if sample is not None)
    return usable if any(sample.throughput_rps > 0 for sample in usable) else ()


def slice_advice(profile: Profile, gpu: GpuType) -> Advice | None:
    """How uncertain each plain slice of a measured GPU type is, and the one measurement that would help most."""
    samples = slice_samples(profile, gpu)
    sizes = {place[0] for item in plain_profiles(gpu) if (place := _place(item.name, gpu)) is not None}
    return advice(samples, sorted(sizes)) if samples and sizes else None


def slices_of_size(gpu: GpuType, size: float) -> tuple[str, ...]:
    """The plain slices with that many SMs."""
    return tuple(item.name for item in plain_profiles(gpu) if item.sm_count == size)


def _is_open(row: ProfileRow) -> bool:
    return row.basis == "estimated" and row.stage == "whole"


def _place(profile: str | None, gpu: GpuType) -> tuple[float, float] | None:
    """SMs and share of the memory's bandwidth of a slice (of the whole GPU for None); None where not sourced."""
    if profile is None:
        count = gpu.sm_total or (peaks(gpu.name).sm_count if gpu.name in peak_names() else None)
        return (float(count), 1.0) if count else None
    known: Iterable[tuple[int | None, int]] = (
        (item.sm_count, item.memory_slices) for item in gpu.profiles if item.name == profile
    )
    for count, slots in known:
        return (float(count), slots / gpu.memory_slices) if count else None
    return None


def _sample(
    item: ProfileRow | ProfileFailure, gpu: GpuType, throughput_rps: float, latency_ms: float | None
) -> Sample | None:
    place = _place(item.profile, gpu)
    if place is None:
        return None
    return Sample(
        "model", place[0], item.batch_size, item.processes, throughput_rps, latency_ms, memory_share=place[1]
    )


def _query(row: ProfileRow, gpu: GpuType) -> Query:
    place = _place(row.profile, gpu)
    assert place is not None  # an estimate has the figures of its slice
    return Query("model", place[0], row.batch_size, row.processes, memory_share=place[1])

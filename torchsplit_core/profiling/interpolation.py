"""Rows of unmeasured slices of a measured GPU type, from the curves of the measured points.

Points of the same model on the same GPU type predict its other slices better than a roofline. GPU types without points
keep the roofline's rows.
"""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.curves import Query, Sample, estimate
from torchsplit_core.hardware import catalogue
from torchsplit_core.profiling.slice_sizes import slice_sample, slice_size
from torchsplit_core.values import GpuType, Profile, ProfileFailure, ProfileRow, at_first_length


def interpolate_slices(profile: Profile) -> Profile:
    """The profile with estimated rows of measured GPU types taken from the curves, each with its interval.

    Only points and estimates of the profile's first sequence length. `environment["curves"]` has the number of points
    for each such GPU type.
    """
    rows = list(profile.rows)
    length = rows[0].sequence_length if rows else None
    curves_used = {}
    for name, gpu in catalogue().items():
        samples = slice_samples(profile, gpu)
        queries = {
            index: query
            for index, row in enumerate(rows)
            if row.gpu_type == name
            and row.sequence_length == length
            and (query := _estimation_query(row)) is not None
        }
        if not samples or not queries:
            continue
        predictions = estimate(samples, list(queries.values()))
        for index, prediction in zip(queries, predictions, strict=True):
            if prediction.basis == "out_of_memory" or prediction.latency_ms is None:
                rows[index] = replace(rows[index], throughput_rps=0.0)
            else:
                rows[index] = replace(
                    rows[index],
                    throughput_rps=prediction.throughput_rps,
                    latency_ms=prediction.latency_ms,
                    low_rps=prediction.low_rps,
                    high_rps=prediction.high_rps,
                )
        curves_used[name] = {"points": len(samples), "slices": len({sample.size for sample in samples})}
    filled_rows = tuple(row for row in rows if row.throughput_rps > 0)
    if not curves_used:
        return replace(profile, rows=filled_rows)
    return replace(profile, rows=filled_rows, environment={**profile.environment, "curves": curves_used})


def slice_samples(profile: Profile, gpu: GpuType) -> tuple[Sample, ...]:
    """Measured or emulated points of the whole model on slices of this GPU type; out of memory as 0.

    Only points of the profile's first sequence length. Sizes are those of `slice_size`: a whole GPU counts as the slice
    of all its SMs.
    """
    profile = at_first_length(profile)
    entries: list[ProfileRow | ProfileFailure] = [row for row in profile.rows if row.basis != "estimated"]
    entries += [item for item in profile.failures if item.reason == "out_of_memory"]
    samples = [
        slice_sample(item, "model") for item in entries if item.gpu_type == gpu.name and item.stage == "whole"
    ]
    usable = tuple(sample for sample in samples if sample is not None)
    return usable if any(sample.throughput_rps > 0 for sample in usable) else ()


def _estimation_query(row: ProfileRow) -> Query | None:
    """The query of an estimated row of the whole model; None for other rows, and slices without a size."""
    size = slice_size(row.gpu_type, row.profile)
    if row.basis != "estimated" or row.stage != "whole" or size is None:
        return None
    return Query("model", size.sms, row.batch_size, row.processes, memory_share=size.memory_share)

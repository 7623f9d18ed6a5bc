"""Sizes of slices for the curves: one rule for stored estimates, the page's curves and advice.

A GPU with MIG off runs on all its multiprocessors; MIG may not expose them all: the 7g slice of an A100 has 98 of 108
(`GpuType.sm_mig_off` and `sm_mig_on`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchsplit_core.curves import Sample, advice
from torchsplit_core.hardware import catalogue, plain_profiles
from torchsplit_core.values import GpuType, ProfileFailure, ProfileRow

EMULATED_PREFIX = "sm:"
"""Prefix of a number of SMs that is no slice of the catalogue: `profile --device sm:20` names rows so."""


@dataclass(frozen=True, slots=True)
class SliceSize:
    """Multiprocessors of a slice, and its share of the GPU's memory bandwidth, above 0 and up to 1.

    A processor, and a whole GPU that the catalogue lacks, have the single size 1 and no share.
    """

    sms: float
    memory_share: float | None


@dataclass(frozen=True, slots=True)
class SliceAdvice:
    """The uncertainty of the least certain slice, and the measurement that reduces it most.

    `width_now` and `width_after` are factors either way of the 90 % interval of the throughput.
    """

    slices_measured: int
    widest: str
    width_now: float
    next_slice: str
    batch_size: int
    width_after: float


def slice_size(gpu_type: str, profile: str | None) -> SliceSize | None:
    """The size of a slice, of `sm:N`, or, for None, of the whole GPU with MIG off; None if it is not sourced."""
    gpu = catalogue().get(gpu_type)
    if gpu is None:
        return None if profile else SliceSize(1.0, None)
    if not profile:
        return SliceSize(float(gpu.sm_mig_off), 1.0) if gpu.sm_mig_off else None
    count = profile.removeprefix(EMULATED_PREFIX)
    if profile.startswith(EMULATED_PREFIX) and count.isascii() and count.isdigit() and int(count):
        return SliceSize(float(count), 1.0)
    slice_profile = next(
        (candidate for candidate in gpu.profiles if candidate.name == profile and candidate.sm_count), None
    )
    if slice_profile is None or not slice_profile.sm_count:
        return None
    return SliceSize(float(slice_profile.sm_count), slice_profile.memory_slices / gpu.memory_slices)


def slice_sample(row: ProfileRow | ProfileFailure, model: str) -> Sample | None:
    """A row as a sample for the curves, a failure as throughput 0; None if its slice has no size.

    Emulated rows have all the bandwidth: limiting SMs does not divide it (docs/guides/measuring.md).
    """
    size = slice_size(row.gpu_type, row.profile)
    if size is None:
        return None
    if isinstance(row, ProfileFailure):
        return Sample(model, size.sms, row.batch_size, row.processes, 0.0, None, size.memory_share)
    share = 1.0 if row.basis == "emulated" else size.memory_share
    return Sample(model, size.sms, row.batch_size, row.processes, row.throughput_rps, row.latency_ms, share)


def slice_advice(gpu: GpuType, samples: Sequence[Sample]) -> SliceAdvice | None:
    """How well samples of one model determine each plain slice of a GPU; slices with equal SMs count as one.

    None without a slice that has a size. Raises InputFault as `curves.advice` does.
    """
    by_size: dict[float, str] = {}
    for profile in plain_profiles(gpu):
        size = slice_size(gpu.name, profile.name)
        if size is not None:
            by_size.setdefault(size.sms, profile.name)
    if not by_size:
        return None
    recommendation = advice(samples, tuple(by_size))
    widest = max(recommendation.uncertainty, key=lambda size_uncertainty: size_uncertainty.width_now)
    return SliceAdvice(
        slices_measured=len({sample.size for sample in samples}),
        widest=by_size[widest.size],
        width_now=math.sqrt(widest.width_now),
        next_slice=by_size[recommendation.size],
        batch_size=recommendation.batch_size,
        width_after=math.sqrt(
            max(size_uncertainty.width_after for size_uncertainty in recommendation.uncertainty)
        ),
    )

"""Converts measured rows to the arrays that are fitted: units, memory shares, repeated rows, very long tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torchsplit_core.curves.time_model import Array
from torchsplit_core.curves.values import Query, Sample
from torchsplit_core.values import InputFault

MOST_COMPUTE_SLICES = 8.0
"""Sizes up to this are compute slices, above it SMs. No MIG-capable GPU has more slices or so few SMs."""

SMS_PER_SLICE = 14.0
"""SMs of a compute slice of an A100 or A30 (NVIDIA MIG User Guide); converts SMs to about the library's unit."""

MEMORY_EIGHTHS = {1.0: 1.0, 2.0: 2.0, 3.0: 4.0, 4.0: 4.0, 7.0: 8.0}
"""Memory slots of the compute slices of 7-slice GPUs (NVIDIA MIG User Guide).

Also right for 1, 2 and 4 slices of an A30, where memory is proportional: a common factor has no effect.
"""

MAX_FIT_POINTS = 256
"""More distinct (size, batch, processes) than this are thinned evenly: the fit's cost is cubic in them."""


class SliceUnits:
    """Converts the sizes of one model to compute slices and memory eighths."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._per_slice = (
            SMS_PER_SLICE if max(sample.size for sample in samples) > MOST_COMPUTE_SLICES else 1.0
        )
        self._shares = {
            sample.size: sample.memory_share for sample in samples if sample.memory_share is not None
        }

    def point(self, row: Sample | Query) -> tuple[float, float, float, float]:
        """Compute slices, memory eighths, batch size, processes."""
        compute = row.size / self._per_slice
        share = self._shares.get(row.size) if row.memory_share is None else row.memory_share
        if share is not None:
            memory = 8.0 * share
        elif self._per_slice == 1.0:
            memory = MEMORY_EIGHTHS.get(row.size, compute)
        else:
            memory = compute
        return compute, memory, float(row.batch_size), float(row.processes)

    def points(self, rows: Sequence[Sample | Query]) -> Array:
        """The `point` of each row, (n, 4)."""
        return np.array([self.point(row) for row in rows], dtype=np.float64).reshape(-1, 4)


def check_row(row: Sample | Query, where: str) -> None:
    """Raise InputFault for an invalid size, batch size, process count, share or figure."""
    if not (math.isfinite(row.size) and row.size > 0):
        raise InputFault(
            f"{where} size", f"is {row.size}, {_side(row.size, 'not above 0')}", "Give compute slices or SMs."
        )
    for name, count in (("batch_size", row.batch_size), ("processes", row.processes)):
        if count < 1:
            raise InputFault(f"{where} {name}", f"is {count}, below the least value 1", "Correct the row.")
    share = row.memory_share
    if share is not None and not 0 < share <= 1:
        raise InputFault(
            f"{where} memory_share", f"is {share}, not a share above 0 and at most 1", "Give a fraction."
        )
    if isinstance(row, Sample):
        rate, latency = row.throughput_rps, row.latency_ms
        if not (math.isfinite(rate) and rate >= 0):
            raise InputFault(
                f"{where} throughput_rps",
                f"is {rate}, {_side(rate, 'below the least value 0')}",
                "Correct the row; 0 means that memory ran out.",
            )
        if latency is not None and not (math.isfinite(latency) and latency >= 0):
            raise InputFault(
                f"{where} latency_ms",
                f"is {latency}, {_side(latency, 'below the least value 0')}",
                "Leave it out if unknown.",
            )


def _side(value: float, beyond: str) -> str:
    return beyond if math.isfinite(value) else "not a finite number"


def log_batch_time(sample: Sample) -> float:
    """log of the time of one batch in ms: processes · batch / throughput."""
    return math.log(1000.0 * sample.processes) + math.log(sample.batch_size) - math.log(sample.throughput_rps)


def fit_arrays(samples: Sequence[Sample], units: SliceUnits) -> tuple[Array, Array, Array]:
    """Points (n, 4), median log t (n,), repeats (n,); sorted, without duplicates, n at most MAX_FIT_POINTS."""
    times_of_point: dict[tuple[float, float, float, float], list[float]] = {}
    for sample in samples:
        times_of_point.setdefault(units.point(sample), []).append(log_batch_time(sample))
    keys = sorted(times_of_point)
    if len(keys) > MAX_FIT_POINTS:
        keys = [keys[index] for index in np.linspace(0, len(keys) - 1, MAX_FIT_POINTS).round().astype(int)]
    points = np.array(keys, dtype=np.float64).reshape(-1, 4)
    times = np.array([float(np.median(times_of_point[key])) for key in keys])
    repeats = np.array([float(len(times_of_point[key])) for key in keys])
    return points, times, repeats

"""Input and output of the curves: measured rows, queries, estimates with intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Basis = Literal["measured", "estimated", "out_of_memory"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured row: the throughput of a slice, summed over the processes that share it.

    `size` is the slice's compute: compute slices (up to 8) or SMs (more than 8), the same unit for all rows of a
    model. `memory_share` is the slice's share of the GPU's memory bandwidth, 0 to 1; None derives it from `size`.
    Throughput 0 means that the run was out of memory. `latency_ms` is the time of one batch.
    """

    model: str
    size: float
    batch_size: int
    processes: int
    throughput_rps: float
    latency_ms: float | None = None
    memory_share: float | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """One row to predict; fields as in `Sample`. `memory_share` None takes that of a measured row of equal size."""

    model: str
    size: float
    batch_size: int
    processes: int = 1
    memory_share: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """The answer to a query: throughput in requests/s with its 90 % interval, time of one batch in ms.

    `low_rps <= throughput_rps <= high_rps`, all finite and never negative. `basis` "measured": the query is a
    measured row, with its measured value and an interval from the fitted noise at that point. "out_of_memory": a
    measured row rules the query out, throughput and interval are 0 and there is no latency. `note` has a caveat for
    the reader; empty if there is none.
    """

    throughput_rps: float
    latency_ms: float | None
    low_rps: float
    high_rps: float
    basis: Basis
    note: str = ""


@dataclass(frozen=True, slots=True)
class Outlier:
    """A measured row far from what all other rows of its model predict.

    `expected_rps` and its 90 % interval come from the other rows; `deviation` is the distance from
    `expected_rps` in half-widths of that interval (on the logarithm), so 1 is the interval's edge.
    """

    sample: Sample
    expected_rps: float
    low_rps: float
    high_rps: float
    deviation: float


@dataclass(frozen=True, slots=True)
class SizeUncertainty:
    """How uncertain one size is: high_rps / low_rps of the 90 % interval, geometric mean over its batches."""

    size: float
    width_now: float
    width_after: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The next single-process measurement, which narrows the widest size most, and its expected effect.

    `uncertainty` has an entry for each requested size that can run, in order; `width_after` is the expected width
    once (`size`, `batch_size`) is measured.
    """

    model: str
    size: float
    batch_size: int
    uncertainty: tuple[SizeUncertainty, ...]

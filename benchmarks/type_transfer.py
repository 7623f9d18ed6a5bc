"""Estimates of one GPU type from rows of another, against official MLPerf results of both.

    python -m benchmarks.type_transfer

Uses every benchmark of a round that has results of several GPU types in one precision. From the SingleStream and
Offline results of one type (slices and whole GPU) it estimates those of every other type as `torchsplit estimate --to`
does, at the other type's batch size. Sources without two batch sizes are left out. A pair of types is judged in both
directions by an interval calibrated without any result that joins the two. The last line has the shipped constant,
fitted on all results. MLPerf is a trademark of MLCommons; the estimates were not verified by MLCommons.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torchsplit_core.hardware import gpu_type
from torchsplit_core.profiling.transfer import LOG_PEAK_RATIO_SPREAD, Precision, reference_curves, slice_peaks
from torchsplit_core.values import ProfileRow

DATA = Path(__file__).resolve().parent / "data" / "mlperf_types.csv"
LEVEL = 0.9


@dataclass(frozen=True)
class Result:
    """An official result as a profile row, with its round, benchmark and precision."""

    group: tuple[str, str]
    precision: Precision
    row: ProfileRow


@dataclass(frozen=True)
class Judged:
    """ln(measured / estimated), half-widths from the curve and from the peaks (at spread 1), and the two types."""

    source: str
    target: str
    error: float
    curve: float
    distance: float

    @property
    def pair(self) -> frozenset[str]:
        """The two types, in either direction."""
        return frozenset((self.source, self.target))

    @property
    def needed(self) -> float:
        """The least spread whose interval contains the measurement."""
        return math.sqrt(max(0.0, self.error**2 - self.curve**2)) / self.distance

    @property
    def relative(self) -> float:
        """|estimated / measured − 1|."""
        return abs(math.expm1(-self.error))

    def inside(self, spread: float) -> bool:
        """Whether the interval of that spread contains the measurement."""
        return abs(self.error) <= math.hypot(self.curve, spread * self.distance)


def results() -> list[Result]:
    """Read data/mlperf_types.csv."""
    with DATA.open(encoding="utf-8", newline="") as stream:
        return [_result(cells) for cells in csv.DictReader(stream)]


def _result(cells: dict[str, str]) -> Result:
    rate, batch = float(cells["throughput_rps"]), int(cells["batch_size"])
    row = ProfileRow(
        stage="whole",
        gpu_type=cells["gpu_type"],
        profile=cells["profile"] or None,
        batch_size=batch,
        processes=1,
        throughput_rps=rate,
        latency_ms=1000.0 * batch / rate,
        low_rps=None,
        high_rps=None,
        memory_gib=None,
        basis="measured",
    )
    precision: Precision = "fp16" if cells["precision"] == "fp16" else "int8"
    return Result((cells["round"], cells["benchmark"]), precision, row)


def judged(found: Sequence[Result]) -> Iterator[Judged]:
    """Estimate each result from every other type with the same benchmark, round and precision."""
    groups: dict[tuple[tuple[str, str], Precision], list[ProfileRow]] = {}
    for one in found:
        groups.setdefault((one.group, one.precision), []).append(one.row)
    for (_, precision), rows in groups.items():
        for source in dict.fromkeys(row.gpu_type for row in rows):
            ground = [row for row in rows if row.gpu_type == source]
            if len({row.batch_size for row in ground}) > 1:
                yield from _estimated(ground, [row for row in rows if row.gpu_type != source], precision)


def _estimated(
    ground: Sequence[ProfileRow], others: Sequence[ProfileRow], precision: Precision
) -> Iterator[Judged]:
    (known,) = reference_curves(ground, precision)
    slices = []
    for row in others:
        gpu = gpu_type(row.gpu_type)
        there = slice_peaks(gpu, gpu.profile(row.profile or ""), precision)
        assert there is not None
        slices.append(there)
    points = [(row.batch_size, row.processes) for row in others]
    sure = known.estimates(slices, points, spread=0.0)
    unsure = known.estimates(slices, points, spread=1.0)
    for row, (rate, _, high, _), (_, _, wide, _) in zip(others, sure, unsure, strict=True):
        curve = math.log(high / rate)
        distance = math.sqrt(math.log(wide / rate) ** 2 - curve**2)
        yield Judged(ground[0].gpu_type, row.gpu_type, math.log(row.throughput_rps / rate), curve, distance)


def spread_of(found: Iterable[Judged]) -> float:
    """The least spread whose intervals contain the share LEVEL of the results."""
    return float(np.quantile([one.needed for one in found], LEVEL, method="higher"))


def line(name: str, found: Sequence[Judged], inside: Sequence[bool], spread: str) -> str:
    errors = [one.relative for one in found]
    faster = statistics.median(one.error for one in found)
    return (
        f"| {name} | {len(found)} | {statistics.median(errors):.0%} | {np.quantile(errors, 0.9):.0%} | "
        f"{math.exp(faster):.2f} | {statistics.fmean(inside):.0%} | {spread} |"
    )


def main() -> int:
    every = list(judged(results()))
    print(
        "| from → to | estimates | median error | 90th percentile | measured / estimated | inside | spread |"
    )
    print("|---|---|---|---|---|---|---|")
    kept: list[bool] = []
    for source, target in sorted({(one.source, one.target) for one in every}):
        own = [one for one in every if (one.source, one.target) == (source, target)]
        spread = spread_of(one for one in every if one.pair != own[0].pair)
        inside = [one.inside(spread) for one in own]
        kept += inside
        print(line(f"{source} → {target}", own, inside, f"{spread:.3f}"))
    print(line("all, each pair left out in turn", every, kept, ""))
    fitted = spread_of(every)
    print(
        line(
            "all, by what ships",
            every,
            [one.inside(LOG_PEAK_RATIO_SPREAD) for one in every],
            f"{LOG_PEAK_RATIO_SPREAD:.3f}",
        )
    )
    print(f"\nFitted on all: {fitted:.3f}, ships: {LOG_PEAK_RATIO_SPREAD}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

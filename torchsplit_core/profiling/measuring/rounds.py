"""Whether a point was measured undisturbed: its rounds, each some blocks of runs, and the time stolen by other work.

Consecutive runs share their disturbance. So a point has two rounds, with the rest of the measurement between, and more
if its blocks differ or the cores were busy. Loads no torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from torchsplit_core.hardware.clock_stability import STEADY_RATIO

MAX_ROUNDS = 4
"""Most rounds of a point that is unsteady after two."""
MAX_STOLEN_SHARE = 0.05
"""Share of a round's time above which other work disturbed the point."""
MIN_QUIET_BLOCKS = 3
"""If quiet rounds have this many blocks, those of busy ones do not count."""
SEGMENT_S = 0.1
"""Segments of a block this long show how long a core stays slow, and hide single interrupts."""
NEGLIGIBLE_TICKS = 2
"""Stolen time of this many kernel ticks or fewer is ignored: it is no measure of a short round."""


@dataclass(frozen=True, slots=True)
class TimingRound:
    """Blocks of runs in ms, and the share of the time in which the process was ready but had no core.

    `block_starts_s`: when each block began, Unix seconds; empty if not recorded.
    """

    blocks: tuple[tuple[float, ...], ...]
    stolen_share: float = 0.0
    block_starts_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class CpuTime:
    """A time of the clock, and totals until then: ns that this process's threads ran and waited for a core, and the
    ticks of its cores that other guests of the machine took."""

    clock_ns: int
    ran_ns: int
    waited_ns: int
    stolen_ticks: int

    def stolen_share_since(self, before: CpuTime) -> float:
        """The share of the time since that was stolen from the process; 0 if Linux does not report it.

        The time is the clock's, or that of all threads if that is more: a waiting thread delays the others.
        """
        ticks = self.stolen_ticks - before.stolen_ticks
        stolen = ticks * 10**9 // os.sysconf("SC_CLK_TCK") if ticks > NEGLIGIBLE_TICKS else 0
        taken = max(0, self.waited_ns - before.waited_ns) + stolen
        elapsed_ns = max(self.clock_ns - before.clock_ns, self.ran_ns - before.ran_ns + taken)
        return taken / elapsed_ns if elapsed_ns > 0 else 0.0


def read_cpu_time() -> CpuTime:
    """Of this process now, over its threads and its allowed cores."""
    ran = waited = stolen = 0
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError, ValueError):  # a thread that ended, a kernel without these counts
                schedstat = (task / "schedstat").read_text().split()
                ran, waited = ran + int(schedstat[0]), waited + int(schedstat[1])
    with suppress(OSError):
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        for line in Path("/proc/stat").read_text().splitlines():
            name, *ticks = line.split()
            if name in cores and len(ticks) > 7:
                stolen += int(ticks[7])
    return CpuTime(time.perf_counter_ns(), ran, waited, stolen)


def undisturbed_blocks(rounds: Sequence[TimingRound]) -> tuple[tuple[float, ...], ...]:
    """The blocks of the quiet rounds, or of all if these have too few."""
    all_blocks = tuple(block for timing_round in rounds for block in timing_round.blocks)
    quiet = tuple(
        block
        for timing_round in rounds
        if timing_round.stolen_share <= MAX_STOLEN_SHARE
        for block in timing_round.blocks
    )
    return quiet if len(quiet) >= min(MIN_QUIET_BLOCKS, len(all_blocks)) else all_blocks


SegmentedRounds = list[tuple[float, list[list[float]]]]


def segment_rounds(rounds: Sequence[TimingRound]) -> SegmentedRounds:
    """For each round, its stolen share and its segments for `profiling.pace`.

    A segment of SEGMENT_S is [when it began (Unix s), mean ms, standard error of the mean's logarithm]; runs are
    assumed to follow each other without gaps.
    """
    segmented: SegmentedRounds = []
    for timing_round in rounds:
        if timing_round.block_starts_s:
            blocks = zip(timing_round.block_starts_s, timing_round.blocks, strict=True)
            segmented.append(
                (
                    timing_round.stolen_share,
                    [segment for start_s, block in blocks for segment in _segments(start_s, block)],
                )
            )
    return segmented


def _segments(block_start_s: float, block: Sequence[float]) -> Iterator[list[float]]:
    """A block in segments of at least SEGMENT_S; the rest at its end belongs to the last."""
    start_s, spent, segment = block_start_s, 0.0, []
    segments: list[tuple[float, list[float]]] = []
    for ms in block:
        segment.append(ms)
        spent += ms / 1e3
        if spent >= SEGMENT_S:
            segments.append((start_s, segment))
            start_s, spent, segment = start_s + spent, 0.0, []
    if segment:
        segments = (
            [*segments[:-1], (segments[-1][0], [*segments[-1][1], *segment])]
            if segments
            else [(start_s, segment)]
        )
    for start, runs in segments:
        mean = fmean(runs)
        error = stdev(runs) / mean / sqrt(len(runs)) if len(runs) > 1 else 0.0
        yield [start, mean, error]


def unsteady_reason(rounds: Sequence[TimingRound]) -> str:
    """Why the point's figures may be disturbed; empty if they are steady."""
    blocks = undisturbed_blocks(rounds)
    if len(blocks) == sum(len(timing_round.blocks) for timing_round in rounds):
        stolen_share = max(timing_round.stolen_share for timing_round in rounds)
        if stolen_share > MAX_STOLEN_SHARE:
            return f"other work on this host took {100 * stolen_share:.0f} % of its time"
    means = [fmean(block) for block in blocks]
    low, high = min(means), max(means)
    if high > STEADY_RATIO * low:
        return f"its blocks of runs have means from {low:.3g} to {high:.3g} ms"
    return ""

"""Whether a point was measured in peace: its looks, each some blocks of runs, and what other work took from them.

Runs next to each other are all off alike. So a point is looked at twice, with the rest of the measurement between,
and again where its blocks part or the cores were busy. Loads no torch.
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
"""A point that is unsteady after two looks gets so many in all."""
MAX_STOLEN_SHARE = 0.05
"""Of a look's time: where other work took more, the point is not the model's alone."""
MIN_QUIET_BLOCKS = 3
"""Where quiet looks have so many blocks, those of busy ones do not count."""
SEGMENT_S = 0.1
"""A block in pieces so long tells how long a core stays slow, and single interrupts do not show in it."""
NEGLIGIBLE_TICKS = 2
"""Of stolen time: the kernel counts it in ticks, and so few are no share of a short look."""


@dataclass(frozen=True, slots=True)
class TimingRound:
    """Blocks of runs in ms, and the share of its time in which the process was ready and had no core.

    `block_starts_s`: when each block began, Unix seconds; empty where nobody looked.
    """

    blocks: tuple[tuple[float, ...], ...]
    stolen_share: float = 0.0
    block_starts_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class CpuTime:
    """A moment of the clock in ns; until then this process's threads ran and waited for a core, and other guests of
    the machine took so many ticks of its cores."""

    clock_ns: int
    ran_ns: int
    waited_ns: int
    stolen_ticks: int

    def stolen_share_since(self, before: CpuTime) -> float:
        """The share of the time between that was taken from the process; 0 where Linux does not tell.

        Time is the clock's, or that of all threads together where it is more: one that waits holds up the others.
        """
        ticks = self.stolen_ticks - before.stolen_ticks
        stolen = ticks * 10**9 // os.sysconf("SC_CLK_TCK") if ticks > NEGLIGIBLE_TICKS else 0
        taken = max(0, self.waited_ns - before.waited_ns) + stolen
        elapsed_ns = max(self.clock_ns - before.clock_ns, self.ran_ns - before.ran_ns + taken)
        return taken / elapsed_ns if elapsed_ns > 0 else 0.0


def read_cpu_time() -> CpuTime:
    """Of this process now, over its threads and the cores that it may run on."""
    ran = waited = stolen = 0
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError, ValueError):  # a thread that ended, a kernel that does not count
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
    """The blocks of the quiet looks, or of all where these have too few."""
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
    """Of each look the share of its time that was lost, and its pieces as `profiling.pace` takes them.

    A piece of PIECE_S is [when it began (Unix s), mean ms, standard error of the mean's logarithm]; what a run takes is
    taken to be all that passes between two.
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
    """A block in pieces of at least PIECE_S; what is left over at its end belongs to the last."""
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
    """Why the point's figures may be another time's; empty where they are steady."""
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

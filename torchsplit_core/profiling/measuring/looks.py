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

MOST_LOOKS = 4
"""A point that is unsteady after two looks gets so many in all."""
LOST_SHARE = 0.05
"""Of a look's time: where other work took more, the point is not the model's alone."""
ENOUGH_BLOCKS = 3
"""Where quiet looks have so many blocks, those of busy ones do not count."""
PIECE_S = 0.1
"""A block in pieces so long tells how long a core stays slow, and single interrupts do not show in it."""
FEW_TICKS = 2
"""Of stolen time: the kernel counts it in ticks, and so few are no share of a short look."""


@dataclass(frozen=True, slots=True)
class Look:
    """Blocks of runs in ms, and the share of its time in which the process was ready and had no core.

    `begun_s`: when each block began, Unix seconds; empty where nobody looked.
    """

    blocks: tuple[tuple[float, ...], ...]
    lost: float = 0.0
    begun_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class CoreTime:
    """A moment of the clock in ns; until then this process's threads ran and waited for a core, and other guests of
    the machine took so many ticks of its cores."""

    clock: int
    ran: int
    waited: int
    stolen_ticks: int

    def lost_since(self, before: CoreTime) -> float:
        """The share of the time between that was taken from the process; 0 where Linux does not tell.

        Time is the clock's, or that of all threads together where it is more: one that waits holds up the others.
        """
        ticks = self.stolen_ticks - before.stolen_ticks
        stolen = ticks * 10**9 // os.sysconf("SC_CLK_TCK") if ticks > FEW_TICKS else 0
        taken = max(0, self.waited - before.waited) + stolen
        whole = max(self.clock - before.clock, self.ran - before.ran + taken)
        return taken / whole if whole > 0 else 0.0


def core_time() -> CoreTime:
    """Of this process now, over its threads and the cores that it may run on."""
    ran = waited = stolen = 0
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError, ValueError):  # a thread that ended, a kernel that does not count
                told = (task / "schedstat").read_text().split()
                ran, waited = ran + int(told[0]), waited + int(told[1])
    with suppress(OSError):
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        for line in Path("/proc/stat").read_text().splitlines():
            name, *ticks = line.split()
            if name in cores and len(ticks) > 7:
                stolen += int(ticks[7])
    return CoreTime(time.perf_counter_ns(), ran, waited, stolen)


def counted(looks: Sequence[Look]) -> tuple[tuple[float, ...], ...]:
    """The blocks of the quiet looks, or of all where these have too few."""
    every = tuple(block for look in looks for block in look.blocks)
    quiet = tuple(block for look in looks if look.lost <= LOST_SHARE for block in look.blocks)
    return quiet if len(quiet) >= min(ENOUGH_BLOCKS, len(every)) else every


Course = list[tuple[float, list[list[float]]]]


def course_of(looks: Sequence[Look]) -> Course:
    """Of each look the share of its time that was lost, and its pieces as `profiling.pace` takes them.

    A piece of PIECE_S is [when it began (Unix s), mean ms, standard error of the mean's logarithm]; what a run takes is
    taken to be all that passes between two.
    """
    found: Course = []
    for look in looks:
        if look.begun_s:
            blocks = zip(look.begun_s, look.blocks, strict=True)
            found.append((look.lost, [piece for begun, block in blocks for piece in _pieces(begun, block)]))
    return found


def _pieces(begun_s: float, block: Sequence[float]) -> Iterator[list[float]]:
    """A block in pieces of at least PIECE_S; what is left over at its end belongs to the last."""
    at, spent, own = begun_s, 0.0, []
    pieces: list[tuple[float, list[float]]] = []
    for ms in block:
        own.append(ms)
        spent += ms / 1e3
        if spent >= PIECE_S:
            pieces.append((at, own))
            at, spent, own = at + spent, 0.0, []
    if own:
        pieces = [*pieces[:-1], (pieces[-1][0], [*pieces[-1][1], *own])] if pieces else [(at, own)]
    for start, runs in pieces:
        mean = fmean(runs)
        error = stdev(runs) / mean / sqrt(len(runs)) if len(runs) > 1 else 0.0
        yield [start, mean, error]


def unsteady_reason(looks: Sequence[Look]) -> str:
    """Why the point's figures may be another time's; empty where they are steady."""
    blocks = counted(looks)
    if len(blocks) == sum(len(look.blocks) for look in looks):
        lost = max(look.lost for look in looks)
        if lost > LOST_SHARE:
            return f"other work on this host took {100 * lost:.0f} % of its time"
    means = [fmean(block) for block in blocks]
    low, high = min(means), max(means)
    if high > STEADY_RATIO * low:
        return f"its blocks of runs have means from {low:.3g} to {high:.3g} ms"
    return ""

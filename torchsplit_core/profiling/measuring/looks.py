"""Whether a point was measured in peace: its looks, each some blocks of runs, and what other work took from them.

Runs next to each other are all off alike. So a point is looked at twice, with the rest of the measurement between,
and again where its blocks part or the cores were busy. Loads no torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from torchsplit_core.hardware.steadiness import STEADY_RATIO

MOST_LOOKS = 4
"""A point that is unsteady after two looks gets so many in all."""
LOST_SHARE = 0.05
"""Of a look's time: where other work took more, the point is not the model's alone."""
ENOUGH_BLOCKS = 3
"""Where quiet looks have so many blocks, those of busy ones do not count."""
FEW_TICKS = 2
"""Of stolen time: the kernel counts it in ticks, and so few are no share of a short look."""


@dataclass(frozen=True, slots=True)
class Look:
    """Blocks of runs in ms, and the share of its time in which the process was ready and had no core."""

    blocks: tuple[tuple[float, ...], ...]
    lost: float = 0.0


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

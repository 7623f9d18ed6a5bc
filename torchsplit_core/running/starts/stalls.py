"""Ranks that hang: each marks what it does, and the launcher names and ends the one that no longer moves.

A mark is one small write to a file of the rank's own. A monitored barrier would be an exchange of all ranks in every
step, would stall with them, and could not say what the named rank was doing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torchsplit_core.running.beside import LOOK_S, looking
from torchsplit_core.running.folder import RunFolder

STARTING_S = 300.0
"""Until the first step of a start is done models are loaded, compiled and data is indexed."""
LEAST_S, TIMES = 60.0, 10.0
"""Without a limit of the user's: so long at least, and so often the longest time between two marks so far."""
WAITS_FOR_DISK = "checkpoint"
"""What a rank does while it waits for storage, which is slow and no stall."""
STEP_BEGINS = "data"
"""What a rank does first in a step."""
_MARK_BYTES = 256


@dataclass(frozen=True, slots=True)
class Mark:
    """What a rank did last: the count of its marks, the steps it has done, in words what it began then.

    `stepping`: it has done a step since it was started.
    """

    rank: int
    pid: int
    node: str
    count: int
    step: int
    doing: str
    stepping: bool


@dataclass(frozen=True, slots=True)
class Stall:
    """A rank that no longer moves, and in words how that is known."""

    mark: Mark
    words: str


class Marker:
    """Writes a rank's marks into the folder of its start."""

    def __init__(self, folder: Path, rank: int, node: str) -> None:
        self._file = os.open(_path(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._mark = Mark(rank, os.getpid(), node, 0, 0, "", False)
        self._first_step: int | None = None

    def __call__(self, doing: str, step: int = 0) -> None:
        """The rank begins to do that, after `step` steps."""
        last = self._mark
        if self._first_step is None and doing == STEP_BEGINS:
            self._first_step = step
        stepping = self._first_step is not None and step > self._first_step
        self._mark = Mark(last.rank, last.pid, last.node, last.count + 1, step, doing, stepping)
        told = [getattr(self._mark, name) for name in Mark.__slots__]
        # A mark that cannot be written is one that is missed: the run goes on.
        with contextlib.suppress(OSError):
            os.pwrite(self._file, json.dumps(told).encode().ljust(_MARK_BYTES), 0)


class Watch:
    """Looks at the marks of a start: `look` gives the ranks of this node that have stalled since.

    Ranks wait for each other, so one that hangs stops the marks of all within a step. It is the one that is stopped,
    else the one with the fewest marks, else the one that computes where the others wait. Where nothing tells, all
    ranks of the node have stalled after twice the limit. Without `limit_s` the limit follows what was slow so far.
    `processes` gives an id's state and seconds on processors, None where it has ended.
    """

    def __init__(
        self,
        folder: Path,
        node: str,
        limit_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        processes: Callable[[int], tuple[str, float] | None] | None = None,
    ) -> None:
        self.folder, self.node, self.limit_s = folder, node, limit_s
        self._clock, self._process = clock, processes or _process
        self._last, self._silent_s, self._longest_s = clock(), 0.0, 0.0
        self._counts: dict[int, tuple[int, int]] = {}
        self._busy_s: dict[int, float] = {}
        self._stopped_s: dict[int, float] = {}
        self.named: dict[int, Stall] = {}
        """What was named last of each rank."""

    def look(self) -> list[Stall]:
        """The ranks that are to be ended, each told once."""
        now = self._clock()
        # A launcher that was itself stopped for a while, or a machine, saw nothing in that time.
        since, self._last = min(now - self._last, 2 * LOOK_S), now
        marks = self._marks()
        own = {one: told for one in marks if one.node == self.node and (told := self._process(one.pid))}
        self._heard(marks, own, since)
        found = [one for one in self._stalled(marks, own) if not self._is_named(one)]
        self.named |= {one.mark.rank: one for one in found}
        return found

    def _is_named(self, stall: Stall) -> bool:
        before = self.named.get(stall.mark.rank)
        return before is not None and before.mark.pid == stall.mark.pid

    def _heard(self, marks: list[Mark], own: dict[Mark, tuple[str, float]], since: float) -> None:
        """Count the seconds in which no rank moved, and those for which each is stopped."""
        self._stopped_s = {
            one.pid: self._stopped_s.get(one.pid, 0.0) + since
            for one, (state, _) in own.items()
            if state == "T"
        }
        counts = {one.rank: (one.pid, one.count) for one in marks}
        if counts == self._counts and not any(one.doing == WAITS_FOR_DISK for one in marks):
            self._silent_s += since
            return
        if _stepping(marks):
            self._longest_s = max(self._longest_s, self._silent_s)
        self._counts, self._silent_s = counts, 0.0
        self._busy_s = {one.pid: busy for one, (_, busy) in own.items()}

    def _limit(self) -> float:
        return self.limit_s or max(LEAST_S, TIMES * self._longest_s)

    def _stalled(self, marks: list[Mark], own: dict[Mark, tuple[str, float]]) -> list[Stall]:
        limit = self._limit()
        stopped = [one for one in own if self._stopped_s.get(one.pid, 0.0) > limit]
        if stopped:
            return [self._stall(one, self._stopped_s[one.pid], "it is stopped") for one in stopped]
        silent = self._silent_s
        if silent <= (limit if _stepping(marks) else max(limit, STARTING_S)):
            return []
        fewest = min((one.count for one in marks), default=0)
        behind = [one for one in own if one.count == fewest]
        if any(one.count > fewest for one in marks):
            if behind:
                return [self._stall(one, silent, "the others wait for it") for one in behind]
        else:
            busy = [one for one in own if own[one][1] - self._busy_s.get(one.pid, own[one][1]) > silent / 2]
            if 0 < len(busy) < len(marks):
                return [self._stall(one, silent, "it computes without end") for one in busy]
        if silent > 2 * limit:
            return [self._stall(one, silent, "it cannot be told which rank is at fault") for one in own]
        return []

    def _stall(self, mark: Mark, seconds: float, why: str) -> Stall:
        words = f"has not moved for {seconds:.0f} s (limit {self._limit():.0f} s) in {mark.doing!r}, {why}"
        return Stall(mark, words)

    def _marks(self) -> list[Mark]:
        """The last mark of each rank, of this node and of others."""
        found = []
        for path in sorted(self.folder.glob("marks-*")):
            # One that is being made has nothing yet.
            with contextlib.suppress(ValueError, OSError):
                found.append(Mark(*json.loads(path.read_text(encoding="utf-8"))))
        return found


@contextlib.contextmanager
def watched(watch: Watch, run: RunFolder) -> Iterator[None]:
    """End the ranks that stall meanwhile, and tell of each."""

    def look() -> None:
        for stall in watch.look():
            rank = stall.mark.rank
            run.tell(
                "rank_stalled",
                f"rank {rank} {stall.words}; it is ended, at step {stall.mark.step + 1}",
                rank,
            )
            with contextlib.suppress(ProcessLookupError):
                os.kill(stall.mark.pid, signal.SIGKILL)

    with looking(look, "stalls"):
        yield


def _stepping(marks: list[Mark]) -> bool:
    """Whether every rank has done a step since it was started."""
    return bool(marks) and all(one.stepping for one in marks)


def _path(folder: Path, rank: int) -> Path:
    return folder / f"marks-{rank}"


def _process(pid: int) -> tuple[str, float] | None:
    """State and seconds on processors of a process (proc(5), fields 3, 14 and 15); None where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])
    return None if fields[0] in "ZX" else (fields[0], ticks / os.sysconf("SC_CLK_TCK"))

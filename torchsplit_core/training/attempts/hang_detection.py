"""Hang detection: each rank writes heartbeats, and the launcher names and ends the rank whose heartbeats stop.

A heartbeat is one small write to the rank's own file. A monitored barrier would be an exchange of all ranks in every
step, would hang with them, and could not say what the named rank was doing.
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

from torchsplit_core.training.periodic import INTERVAL_S, run_periodically
from torchsplit_core.training.run_folder import RunFolder

STARTUP_LIMIT_S = 300.0
"""Minimum limit until the first step of an attempt is done: models are loaded and compiled, and data is indexed."""
MIN_LIMIT_S, LIMIT_FACTOR = 60.0, 10.0
"""Without a user's limit: at least this many seconds, and this many times the longest gap between two heartbeats."""
CHECKPOINT_PHASE = "checkpoint"
"""Phase in which a rank waits for storage, which is slow and no hang."""
DATA_PHASE = "data"
"""First phase of a step."""
_HEARTBEAT_BYTES = 256


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last heartbeat of a rank: how many it has written, the steps it has done, and in words the phase it began.

    `has_stepped`: it has done a step since it was started.
    """

    rank: int
    pid: int
    node: str
    count: int
    step: int
    phase: str
    has_stepped: bool


@dataclass(frozen=True, slots=True)
class Hang:
    """A rank that hangs, and in words how that is known."""

    heartbeat: Heartbeat
    message: str


class HeartbeatWriter:
    """Writes a rank's heartbeats into the folder of its attempt."""

    def __init__(self, folder: Path, rank: int, node: str) -> None:
        self._file = os.open(_path(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._heartbeat = Heartbeat(rank, os.getpid(), node, 0, 0, "", False)
        self._first_step: int | None = None

    def __call__(self, phase: str, step: int = 0) -> None:
        """The rank begins `phase` after `step` steps."""
        last = self._heartbeat
        if self._first_step is None and phase == DATA_PHASE:
            self._first_step = step
        stepping = self._first_step is not None and step > self._first_step
        self._heartbeat = Heartbeat(last.rank, last.pid, last.node, last.count + 1, step, phase, stepping)
        values = [getattr(self._heartbeat, name) for name in Heartbeat.__slots__]
        # A heartbeat that cannot be written is skipped: the run goes on.
        with contextlib.suppress(OSError):
            os.pwrite(self._file, json.dumps(values).encode().ljust(_HEARTBEAT_BYTES), 0)


class HangMonitor:
    """Reads the heartbeats of an attempt; `poll` returns the ranks of this node that have hung since the last call.

    Ranks wait for each other, so a hung rank stops the heartbeats of all within a step. It is the rank whose process is
    stopped, otherwise the one with the fewest heartbeats, otherwise the one that computes while the others wait. If
    nothing tells, all ranks of the node count as hung after twice the limit. Without `limit_s` the limit follows the
    longest gap so far. `processes` returns the state and CPU seconds of a process id, None if the process has ended.
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
        self._clock, self._process = clock, processes or _process_usage
        self._last, self._silent_s, self._longest_s = clock(), 0.0, 0.0
        self._counts: dict[int, tuple[int, int]] = {}
        self._busy_s: dict[int, float] = {}
        self._stopped_s: dict[int, float] = {}
        self.reported: dict[int, Hang] = {}
        """The last hang reported for each rank."""

    def poll(self) -> list[Hang]:
        """The ranks to end; each is reported once."""
        now = self._clock()
        # While the launcher or the machine was itself stopped, nothing was observed: that time does not count.
        since, self._last = min(now - self._last, 2 * INTERVAL_S), now
        heartbeats = self._read_heartbeats()
        local = {
            heartbeat: usage
            for heartbeat in heartbeats
            if heartbeat.node == self.node and (usage := self._process(heartbeat.pid))
        }
        self._update(heartbeats, local, since)
        hangs = [hang for hang in self._hung(heartbeats, local) if not self._is_reported(hang)]
        self.reported |= {hang.heartbeat.rank: hang for hang in hangs}
        return hangs

    def _is_reported(self, hang: Hang) -> bool:
        before = self.reported.get(hang.heartbeat.rank)
        return before is not None and before.heartbeat.pid == hang.heartbeat.pid

    def _update(
        self, heartbeats: list[Heartbeat], local: dict[Heartbeat, tuple[str, float]], since: float
    ) -> None:
        """Count the seconds without a heartbeat of any rank, and those for which each rank has been stopped."""
        self._stopped_s = {
            heartbeat.pid: self._stopped_s.get(heartbeat.pid, 0.0) + since
            for heartbeat, (state, _) in local.items()
            if state == "T"
        }
        counts = {heartbeat.rank: (heartbeat.pid, heartbeat.count) for heartbeat in heartbeats}
        if counts == self._counts and not any(
            heartbeat.phase == CHECKPOINT_PHASE for heartbeat in heartbeats
        ):
            self._silent_s += since
            return
        if _all_stepped(heartbeats):
            self._longest_s = max(self._longest_s, self._silent_s)
        self._counts, self._silent_s = counts, 0.0
        self._busy_s = {heartbeat.pid: busy for heartbeat, (_, busy) in local.items()}

    def _limit(self) -> float:
        return self.limit_s or max(MIN_LIMIT_S, LIMIT_FACTOR * self._longest_s)

    def _hung(self, heartbeats: list[Heartbeat], local: dict[Heartbeat, tuple[str, float]]) -> list[Hang]:
        limit = self._limit()
        stopped = [heartbeat for heartbeat in local if self._stopped_s.get(heartbeat.pid, 0.0) > limit]
        if stopped:
            return [
                self._hang(heartbeat, self._stopped_s[heartbeat.pid], "it is stopped")
                for heartbeat in stopped
            ]
        silent = self._silent_s
        if silent <= (limit if _all_stepped(heartbeats) else max(limit, STARTUP_LIMIT_S)):
            return []
        fewest = min((heartbeat.count for heartbeat in heartbeats), default=0)
        behind = [heartbeat for heartbeat in local if heartbeat.count == fewest]
        if any(heartbeat.count > fewest for heartbeat in heartbeats):
            if behind:
                return [self._hang(heartbeat, silent, "the others wait for it") for heartbeat in behind]
        else:
            busy = [
                heartbeat
                for heartbeat in local
                if local[heartbeat][1] - self._busy_s.get(heartbeat.pid, local[heartbeat][1]) > silent / 2
            ]
            if 0 < len(busy) < len(heartbeats):
                return [self._hang(heartbeat, silent, "it computes without end") for heartbeat in busy]
        if silent > 2 * limit:
            return [
                self._hang(heartbeat, silent, "it cannot be told which rank is at fault")
                for heartbeat in local
            ]
        return []

    def _hang(self, heartbeat: Heartbeat, seconds: float, why: str) -> Hang:
        words = (
            f"has not moved for {seconds:.0f} s (limit {self._limit():.0f} s) in {heartbeat.phase!r}, {why}"
        )
        return Hang(heartbeat, words)

    def _read_heartbeats(self) -> list[Heartbeat]:
        """The last heartbeat of each rank, on this node and on others."""
        heartbeats = []
        for path in sorted(self.folder.glob("marks-*")):
            # A file that is being created is empty.
            with contextlib.suppress(ValueError, OSError):
                heartbeats.append(Heartbeat(*json.loads(path.read_text(encoding="utf-8"))))
        return heartbeats


@contextlib.contextmanager
def end_hung_ranks(monitor: HangMonitor, run: RunFolder) -> Iterator[None]:
    """End the ranks that hang inside the `with` block, and log each."""

    def poll() -> None:
        for stall in monitor.poll():
            rank = stall.heartbeat.rank
            run.log_event(
                "rank_stalled",
                f"rank {rank} {stall.message}; it is ended, at step {stall.heartbeat.step + 1}",
                rank,
            )
            with contextlib.suppress(ProcessLookupError):
                os.kill(stall.heartbeat.pid, signal.SIGKILL)

    with run_periodically(poll, "stalls"):
        yield


def _all_stepped(heartbeats: list[Heartbeat]) -> bool:
    """Whether every rank has done a step since it was started."""
    return bool(heartbeats) and all(heartbeat.has_stepped for heartbeat in heartbeats)


def _path(folder: Path, rank: int) -> Path:
    return folder / f"marks-{rank}"


def _process_usage(pid: int) -> tuple[str, float] | None:
    """State and CPU seconds of a process (proc(5), fields 3, 14 and 15); None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])
    return None if fields[0] in "ZX" else (fields[0], ticks / os.sysconf("SC_CLK_TCK"))

"""Reads a run's folder incrementally: each read takes only what was added since the last."""

from __future__ import annotations

import contextlib
import fcntl
import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchsplit_core.checkpoints.store import LATEST
from torchsplit_core.checkpoints.trained_run import EVENTS, METRICS, Validation, read_best, read_validation
from torchsplit_core.training.communication.record import read_exchange
from torchsplit_core.training.monitor.gpu_sampler import read_gpus
from torchsplit_core.training.monitor.launch_record import read_launch
from torchsplit_core.training.monitor.run_view import Checkpoint, Event, Rank, RunView, State, Steps
from torchsplit_core.training.monitor.tail import JsonTail
from torchsplit_core.training.run_folder import LOCK, WATCH, RunFolder
from torchsplit_core.values import InputFault

SILENT_S = 30.0
"""Seconds without a report after which a rank counts as silent while its run goes on."""
ENDS = {
    "finished": "finished",
    "stopped": "stopped",
    "not_finite": "stopped",
    "validation_failed": "stopped",
}
"""Kinds of events after which a run writes nothing more, and the state that each means; what follows `finished` does
not change it."""
MOST_RANK_BYTES, MOST_RANKS = 2**16, 2**16
_HISTORY = ("started", "resumed")


class RunReader:
    """Reads one run; several threads may share it."""

    def __init__(self, path: str | Path) -> None:
        self.folder = RunFolder(path)
        self._metrics, self._event_lines = (
            JsonTail(self.folder.path / METRICS),
            JsonTail(self.folder.path / EVENTS),
        )
        self._steps, self._events = Steps(), tuple[Event, ...]()
        self._lock = threading.Lock()

    def view(self) -> RunView:
        """The run now. Raises InputFault if the folder is not a run's, or a file of it is damaged."""
        path = self.folder.path
        if not _is_run(path):
            raise InputFault(
                str(path), "is not the folder of a run", "Give the folder that `torchsplit train … -o` wrote."
            )
        with self._lock:
            # Checked first, so that whatever it wrote before it ended is then read.
            alive = _is_locked(path / LOCK)
            self._read()
            state, words = _state(alive, self._events)
            facts = self.folder.facts()
            # An attempt with more ranks than now may have left files.
            world = facts.get("processes", MOST_RANKS)
            view = RunView(
                state,
                alive,
                words,
                facts,
                read_launch(path),
                self._steps,
                self._events,
                tuple(rank for rank in _ranks(path / WATCH, state, self._events) if rank.rank < world),
                tuple(_checkpoints(self.folder.checkpoints)),
                read_gpus(path / WATCH),
                self._validation(),
                read_exchange(path),
            )
            return view.starting() if state == "starting" else view

    def _validation(self) -> Validation | None:
        """The last validation; None if the run resumed before its step, which then runs again."""
        validation = read_validation(self.folder.path)
        last_step = self._steps.step[-1] if len(self._steps) else 0
        return validation if validation and validation.step <= last_step else None

    def _read(self) -> None:
        replaced, lines = self._metrics.read_new()
        if replaced:
            # Other threads may still draw the old steps.
            self._steps = Steps()
        for line in lines:
            with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
                self._steps.add(line)
        replaced, event_records = self._event_lines.read_new()
        events = [event for line in event_records if (event := _event(line)) is not None]
        if replaced or events:
            self._events = (*(() if replaced else self._events), *events)


def _is_run(path: Path) -> bool:
    try:
        return any((path / name).exists() for name in (METRICS, EVENTS, LOCK))
    except OSError:
        return False


def _is_locked(path: Path) -> bool:
    """Whether a run, or any of its nodes, holds the lock of that file; this check releases the lock at once."""
    try:
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _event(line: dict[str, Any]) -> Event | None:
    try:
        rank = line["rank"]
        return Event(
            _time(line["time"]),
            str(line["kind"]),
            None if rank is None else int(rank),
            str(line["node"]),
            str(line["words"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _time(text: Any) -> datetime:
    time = datetime.fromisoformat(str(text))
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _state(alive: bool, events: Sequence[Event]) -> tuple[State, str]:
    """The run's state, and in words how it ended."""
    telling = (event for event in reversed(events) if event.kind in (*_HISTORY, *ENDS, "rank_lost"))
    last = next(telling, None)
    if last is not None and last.kind == "validation_failed":
        before = next(telling, None)
        last = before if before is not None and before.kind == "finished" else last
    if not alive:
        if last is not None and last.kind in ENDS:
            return ENDS[last.kind], last.words  # type: ignore[return-value]
        return "broken off", "it ended without a message: its processes were killed, or the machine restarted"
    if last is None or last.kind in ENDS:
        # The run was resumed and has not logged so yet.
        return "starting", ""
    return ("recovering" if last.kind == "rank_lost" else "running"), ""


def _ranks(folder: Path, state: State, events: Sequence[Event]) -> list[Rank]:
    """The last status of each rank, in rank order."""
    now = datetime.now(UTC)
    ranks = []
    for path in folder.glob("rank-*.json"):
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError, AttributeError):
            if path.stat().st_size <= MOST_RANK_BYTES:
                ranks.append(_rank(json.loads(path.read_bytes()), state, events, now))
    return sorted(ranks, key=lambda rank: rank.rank)


def _rank(record: dict[str, Any], state: State, events: Sequence[Event], now: datetime) -> Rank:
    parts, share = record.get("parts_s"), record.get("communication_share")
    communication, steps = record.get("communication_s"), record.get("averaged_steps")
    number, reported_at = int(record["rank"]), _time(record["time"])
    lost = next(
        (event for event in reversed(events) if event.rank == number and event.kind == "rank_lost"), None
    )
    words = f"at step {record['step']}" if record["step"] else "starting"
    if record.get("ended"):
        words = f"done at step {record['step']}"
    elif lost is not None and lost.time >= reported_at:
        words = f"lost: {lost.words}"
    elif state in ("finished", "stopped", "broken off"):
        words = f"ended, last report at step {record['step']}"
    elif (now - reported_at).total_seconds() > SILENT_S:
        words = f"silent for {(now - reported_at).total_seconds():.0f} s, at step {record['step']}"
    return Rank(
        number, str(record["node"]), int(record["pid"]), str(record["device"]), int(record["step"]), reported_at, words,
        int(record["peak_bytes"]),
        {str(name): float(spent) for name, spent in parts.items()} if parts else None,
        None if share is None else float(share),
        {str(name): None if spent is None else float(spent) for name, spent in record.get("blocks_s", {}).items()},
        {str(kind): float(spent) for kind, spent in communication.items()} if communication else None,
        None if steps is None else int(steps),
    )  # fmt: skip


def _checkpoints(folder: Path) -> list[Checkpoint]:
    """The complete checkpoints, oldest first. One may be deleted meanwhile."""
    try:
        newest = (folder / LATEST).read_text(encoding="utf-8").strip()
    except OSError:
        newest = ""
    checkpoints, best = [], read_best(folder.parent)
    for path in sorted(folder.glob("step-*")):
        with contextlib.suppress(OSError, ValueError):
            step, status = int(path.name[5:]), (path / "manifest.json").stat()
            size = sum(file.stat().st_size for file in path.iterdir())
            checkpoints.append(
                Checkpoint(
                    step,
                    size,
                    datetime.fromtimestamp(status.st_mtime, UTC),
                    path.name == newest,
                    best.metric if best and best.step == step else "",
                )
            )
    return checkpoints

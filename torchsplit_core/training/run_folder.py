"""A run's folder: who may write to it, the facts of the run, a line for each step and each event."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from torchsplit_core.checkpoints.trained_run import CHECKPOINTS, EVENTS, METRICS, RUN, json_lines
from torchsplit_core.files import replace_file
from torchsplit_core.values import InputFault, quoted, system_reason

LOGS: Final = "logs"
LOCK, _RANKS, _RENDEZVOUS, _NODE = ".lock", ".ranks", ".meeting", ".node-"
WATCH, TENSORBOARD, TRACES = "watch", "tensorboard", "traces"
STOP: Final = "stop"
"""Folders of what a run reports while it trains, and the file that asks it to stop; see `monitor`."""
OVERRIDES = ".setting.json"
"""Overrides of the strategy, such as those after running out of memory, which last until the run's command ends."""
MAKE_ROOM = "Free disk space or mend the folder, then resume the run."
"""Remedy if a file of a run cannot be written."""
TAIL_BYTES = 4096
LOCK_WAIT_S = 0.5
"""Seconds within which a process that only tests a lock releases it."""
RANKS_END_S = 10.0
"""Seconds to wait for ranks whose launcher is gone."""
FIRST_NODE_S = RANKS_END_S + 5.0
"""Seconds within which the first node has prepared the folder for the others."""


class RunFolder:
    """The files of a run. Each line is appended whole, by one call."""

    def __init__(self, path: str | Path, node: str = "") -> None:
        self.path = Path(path).expanduser().absolute()
        self.node = node or socket.gethostname()

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def logs(self) -> Path:
        return self.path / LOGS

    @contextlib.contextmanager
    def exclusive(self, *, resume: bool) -> Iterator[None]:
        """Hold the folder alone, created if it does not exist; processes that still write to it have ended.

        Raises InputFault if another run writes to the folder, if it holds a run and `resume` is false, or if it holds
        anything else.
        """
        with self._open_lock() as lock:
            if not _try_lock(lock, LOCK_WAIT_S):
                raise self._in_use()
            self._check_free(resume)
            yield

    @contextlib.contextmanager
    def shared(self, rendezvous: str, *, resume: bool) -> Iterator[None]:
        """Hold the folder with the run's other nodes, which name the same `rendezvous`; the first node also checks it.

        Raises InputFault as `exclusive` does, and if another node has this node's name or another run is there.
        """
        with self._open_lock() as lock, (self.path / f"{_NODE}{self.node}").open("a") as node_lock:
            if not _try_lock(node_lock, 0.0):
                raise InputFault(
                    "--node",
                    f"is {quoted(self.node)}, the name of another node of this run",
                    "Give each node a name of its own.",
                )
            if _try_lock(lock, LOCK_WAIT_S):
                self._check_free(resume)
                (self.path / _RENDEZVOUS).write_text(rendezvous, encoding="utf-8")
                fcntl.flock(lock, fcntl.LOCK_SH)
            elif not _try_lock(lock, FIRST_NODE_S, fcntl.LOCK_SH) or self._rendezvous() != rendezvous:
                raise self._in_use()
            yield

    def _rendezvous(self) -> str:
        return (self.path / _RENDEZVOUS).read_text(encoding="utf-8")

    def _open_lock(self) -> IO[str]:
        """The folder's lock file; creates the folder if needed. Raises InputFault if it holds anything but a run."""
        if self.path.is_dir() and not (self.path / RUN).exists():
            known = {
                LOCK,
                _RANKS,
                _RENDEZVOUS,
                OVERRIDES,
                LOGS,
                CHECKPOINTS,
                EVENTS,
                WATCH,
                TENSORBOARD,
                TRACES,
            }
            foreign = [
                path.name
                for path in self.path.iterdir()
                if path.name not in known and not path.name.startswith(_NODE)
            ]
            if foreign:
                raise InputFault(
                    str(self.path),
                    f"holds {quoted(min(foreign))}, which is no part of a run",
                    "Choose another folder by -o.",
                )
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.logs.mkdir(exist_ok=True)
            return (self.path / LOCK).open("a")
        except OSError as error:
            raise InputFault(
                str(self.path), f"cannot be written: {system_reason(error)}", "Choose another folder by -o."
            ) from error

    def _check_free(self, resume: bool) -> None:
        """Raises InputFault if ranks still write, or if there is a run and `resume` is false.

        Deletes the overrides of an earlier command and a request to stop it.
        """
        with (self.path / _RANKS).open("a") as ranks:
            # Ranks of a launcher that was killed end by themselves.
            if not _try_lock(ranks, RANKS_END_S):
                raise self._in_use()
        if (self.path / RUN).exists() and not resume:
            raise InputFault(
                str(self.path),
                "holds a run already",
                "Go on with it by --resume, or choose another folder by -o.",
            )
        (self.path / OVERRIDES).unlink(missing_ok=True)
        (self.path / WATCH / STOP).unlink(missing_ok=True)

    def _in_use(self) -> InputFault:
        return InputFault(
            str(self.path),
            "is in use: another run writes to it",
            "Wait for its end, or choose another folder by -o.",
        )

    @contextlib.contextmanager
    def rank_lock(self) -> Iterator[None]:
        """Keep other runs out while a rank writes, even after the rank's launcher was killed."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / _RANKS).open("a") as ranks:
            fcntl.flock(ranks, fcntl.LOCK_SH)
            yield

    def write_facts(self, facts: dict[str, Any], fixed: tuple[str, ...]) -> None:
        """Write run.json. Raises InputFault if one of the `fixed` facts differs from what the run began with."""
        before = self.facts()
        for name in fixed:
            # What an earlier version did not know, it did not do.
            if before and (was := before.get(name)) != facts[name] and (was or facts[name]):
                now, then = (
                    "none" if value is None else quoted(value) for value in (facts[name], before.get(name))
                )
                raise InputFault(
                    f"{self.path.name}: {name.replace('_', ' ')}",
                    f"is {now}, but the run began with {then}",
                    "Give what it began with, or start another run.",
                )
        replace_file(self.path / RUN, json.dumps(facts, indent=1) + "\n")

    def facts(self) -> dict[str, Any]:
        """The contents of run.json, empty before the first attempt. Raises InputFault if the file is not JSON."""
        path = self.path / RUN
        if not path.exists():
            return {}
        try:
            facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(facts, dict):
                raise ValueError
            return facts
        except (OSError, ValueError, RecursionError) as error:
            reason = system_reason(error) if isinstance(error, OSError) else "it is not JSON"
            raise InputFault(str(path), f"cannot be read: {reason}", "Start another run.") from error

    def log_event(self, kind: str, words: str, rank: int | None = None) -> None:
        """Append an event: what happened, to which rank (None: to the run)."""
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "kind": kind,
            "rank": rank,
            "node": self.node,
            "words": words,
        }
        try:
            self._append(EVENTS, line)
        except OSError as error:
            # A run must not end because an event cannot be logged.
            print(
                f"{EVENTS}: cannot be written: {system_reason(error)}. Not told there: {words}",
                file=sys.stderr,
            )

    def last_warnings(self) -> tuple[str, ...]:
        """The words of the events of kind `warning` since the last attempt began."""
        words = list[str]()
        for event in json_lines(self.path / EVENTS, '"kind"'):
            if event.get("kind") in ("started", "resumed"):
                words.clear()
            elif event.get("kind") == "warning":
                words.append(str(event.get("words")))
        return tuple(words)

    def add_step(
        self,
        step: int,
        loss: float,
        samples: int,
        step_s: float,
        world_size: int,
        memory_bytes: int,
        figures: Mapping[str, Any] | None = None,
    ) -> None:
        """Append a step's line, with further figures by name. Raises InputFault if it cannot be written."""
        line = {
            "step": step,
            "loss": loss,
            "samples": samples,
            "step_s": round(step_s, 6),
            "world_size": world_size,
            "memory_bytes": memory_bytes,
            **(figures or {}),
        }
        try:
            self._append(METRICS, line)
        except OSError as error:
            raise InputFault(
                str(self.path / METRICS), f"cannot be written: {system_reason(error)}", MAKE_ROOM
            ) from error

    def sync_steps(self) -> None:
        """Write all step lines so far to disk (fsync)."""
        with contextlib.suppress(FileNotFoundError), (self.path / METRICS).open("rb") as stream:
            os.fsync(stream.fileno())

    def _append(self, name: str, line: dict[str, Any]) -> None:
        """Append a line, whole or not at all. Raises OSError."""
        text = (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode()
        descriptor = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            written = os.write(descriptor, text)
            if written < len(text):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)

    def steps(self) -> list[dict[str, Any]]:
        """The step lines, up to the first that was cut off."""
        return [step for step, _ in self._lines()]

    def _lines(self) -> list[tuple[dict[str, Any], str]]:
        path = self.path / METRICS
        steps = []
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        for line in text.splitlines(keepends=True):
            if (step := _step_of(line)) is None:
                break
            steps.append((step, line))
        return steps

    def last_step(self) -> dict[str, Any] | None:
        """The line of the last completed step, if any."""
        path = self.path / METRICS
        if not path.exists():
            return None
        with path.open("rb") as stream:
            # A line has about 100 bytes and a run may have millions of them.
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
        return next((step for line in reversed(lines) if (step := _step_of(line)) is not None), None)

    def truncate_steps_after(self, step: int) -> int:
        """Delete the lines after `step`, since those steps run again; returns how many were deleted."""
        lines = self._lines()
        remaining = [line for record, line in lines if record["step"] <= step]
        text = "".join(remaining)
        path = self.path / METRICS
        if path.exists() and path.read_bytes() != text.encode():
            replace_file(path, text)
        return len(lines) - len(remaining)


def _step_of(line: str) -> dict[str, Any] | None:
    """A step's line; None if it was cut off or no run wrote it."""
    try:
        record = json.loads(line)
        return record if type(record["step"]) is int and isinstance(record["loss"], int | float) else None
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def _try_lock(lock: IO[str], wait_s: float, how: int = fcntl.LOCK_EX) -> bool:
    """Take the file's lock within the wait; whether that succeeded."""
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)
        else:
            return True

"""Counts what a child and all it started use together: tasks, memory, bytes of files.

A sample is cheap if little runs; the expensive count (shared pages once) is taken only if the cheap one is too high.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
ENTRY_BYTES = 4096
"""Least bytes that a folder entry counts for, so that empty files are limited too."""


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """One process in /proc. `resident_bytes` counts a shared page once for every process that shares it.

    `proc_path` has its memory and files; it is another thread's path if the main thread has already ended.
    """

    pid: int
    proc_path: str
    parent: int
    group: int
    threads: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class ExceededLimit:
    """An exceeded limit, by its name in `Limits`, and the value that exceeds it."""

    limit: Literal["tasks", "total_memory_bytes", "total_file_bytes"]
    value: int


class UsageMonitor:
    """Samples the descendants of this process and the folders they may write to.

    With `is_init` every other process that /proc shows is a descendant (this one is PID 1 of its namespace).
    """

    def __init__(self, limits: dict[str, Any], folders: Sequence[str], *, is_init: bool) -> None:
        self.limits, self.folders, self.is_init = limits, folders, is_init
        self.initial_bytes = sum(map(tree_bytes, folders)) if limits["total_file_bytes"] is not None else 0

    def check_limits(self) -> ExceededLimit | None:
        """The first limit that is exceeded now; None if none is."""
        processes = descendants(is_init=self.is_init)
        tasks, memory, files = (
            self.limits[name] for name in ("tasks", "total_memory_bytes", "total_file_bytes")
        )
        count = sum(process.threads for process in processes)
        if tasks is not None and count > tasks:
            return ExceededLimit("tasks", count)
        nameless = _unlinked_file_bytes(processes)
        if memory is not None:
            used = sum(process.resident_bytes for process in processes) + nameless[True]
            if used > memory:
                used = sum(map(_proportional_bytes, processes)) + nameless[True]
            if used > memory:
                return ExceededLimit("total_memory_bytes", used)
        if files is not None:
            grown = sum(map(tree_bytes, self.folders)) + nameless[False] - self.initial_bytes
            if grown > files:
                return ExceededLimit("total_file_bytes", grown)
        return None


def descendants(*, is_init: bool) -> list[ProcessUsage]:
    """Every descendant of this process that has not ended."""
    own_pid, processes = os.getpid(), list(_processes())
    if is_init:
        return [process for process in processes if process.pid != own_pid]
    below, known = [], {own_pid}
    while new := [process for process in processes if process.parent in known and process.pid not in known]:
        known |= {process.pid for process in new}
        below += new
    return below


def _processes() -> Iterable[ProcessUsage]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError, StopIteration):
                proc_path = f"/proc/{name}"
                fields = _stat_fields(proc_path)
                if fields[0] in (b"Z", b"X"):
                    if int(fields[17]) <= 1:
                        continue
                    tasks = [f"{proc_path}/task/{task}" for task in os.listdir(f"{proc_path}/task")]
                    proc_path = next(task for task in tasks if _stat_fields(task)[0] not in (b"Z", b"X"))
                parent, group, threads = int(fields[1]), int(fields[2]), int(fields[17])
                yield ProcessUsage(
                    int(name),
                    proc_path,
                    parent,
                    group,
                    threads,
                    int(_stat_fields(proc_path)[21]) * PAGE_BYTES,
                )


def _stat_fields(proc_path: str) -> list[bytes]:
    """The fields of `stat` after the name: state, parent, group, … (proc_pid_stat(5), from field 3 on)."""
    return Path(f"{proc_path}/stat").read_bytes().rpartition(b")")[2].split()


def _proportional_bytes(process: ProcessUsage) -> int:
    """The process's memory (PSS), with each shared page divided among the processes that share it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"{process.proc_path}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return process.resident_bytes


def _unlinked_file_bytes(processes: Iterable[ProcessUsage]) -> dict[bool, int]:
    """Bytes of files that are open but unlinked: in memory (True), on a disk (False)."""
    seen: dict[tuple[int, int], tuple[bool, int]] = {}
    for process in processes:
        folder = f"{process.proc_path}/fd"
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"{folder}/{name}")
                    if target.endswith(" (deleted)"):
                        status = os.stat(f"{folder}/{name}")
                        if stat.S_ISREG(status.st_mode):
                            in_memory = target.startswith(("/memfd:", "/dev/shm/"))
                            seen[status.st_dev, status.st_ino] = in_memory, status.st_blocks * 512
    return {kind: sum(size for memory, size in seen.values() if memory is kind) for kind in (True, False)}


def tree_bytes(folder: str) -> int:
    """Bytes on disk of a folder and its contents. Follows no link; one that is too deep counts as endless (2**62)."""
    total, pending = 0, [folder]
    while pending:
        path = pending.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        total += max(status.st_blocks * 512, ENTRY_BYTES)
                        if stat.S_ISDIR(status.st_mode):
                            pending.append(entry.path)
        except PermissionError:
            if _restore_access(path):
                pending.append(path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return 2**62
    return total


def _restore_access(path: str) -> bool:
    """Make a folder of ours readable again; True if its mode was changed. Never follows a link."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(handle).st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)
                return True
        finally:
            os.close(handle)
    return False

"""Counting what a child and all it started use together: tasks, memory, bytes of files.

Each look costs little where little runs; what is dear (shared pages counted once) is looked at only near a limit.
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

PAGE = os.sysconf("SC_PAGE_SIZE")
ENTRY_BYTES = 4096
"""What an entry of a folder counts for at least, so that empty files have a limit too."""


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc: `resident_bytes` counts a page for every process that shares it.

    `place` is where its memory and files are told: another thread's where the first has ended before them.
    """

    pid: int
    place: str
    parent: int
    group: int
    threads: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit that was passed and by what value; `limit` is its name in `Limits`."""

    limit: Literal["tasks", "total_memory_bytes", "total_file_bytes"]
    value: int


class Watch:
    """Looks at the descendants of this process, and at the folders they may write to.

    With `alone` every other process that /proc shows is a descendant (this one is PID 1 of its namespace).
    """

    def __init__(self, limits: dict[str, Any], folders: Sequence[str], *, alone: bool) -> None:
        self.limits, self.folders, self.alone = limits, folders, alone
        self.before = sum(map(tree_bytes, folders)) if limits["total_file_bytes"] is not None else 0

    def look(self) -> Excess | None:
        """The first limit that is passed now."""
        found = descendants(alone=self.alone)
        tasks, memory, files = (
            self.limits[name] for name in ("tasks", "total_memory_bytes", "total_file_bytes")
        )
        count = sum(process.threads for process in found)
        if tasks is not None and count > tasks:
            return Excess("tasks", count)
        nameless = _nameless(found)
        if memory is not None:
            used = sum(process.resident_bytes for process in found) + nameless[True]
            if used > memory:
                used = sum(map(_own_bytes, found)) + nameless[True]
            if used > memory:
                return Excess("total_memory_bytes", used)
        if files is not None:
            grown = sum(map(tree_bytes, self.folders)) + nameless[False] - self.before
            if grown > files:
                return Excess("total_file_bytes", grown)
        return None


def descendants(*, alone: bool) -> list[Process]:
    """Every process below this one that has not ended."""
    own, found = os.getpid(), list(_processes())
    if alone:
        return [process for process in found if process.pid != own]
    below, known = [], {own}
    while new := [process for process in found if process.parent in known and process.pid not in known]:
        known |= {process.pid for process in new}
        below += new
    return below


def _processes() -> Iterable[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError, StopIteration):
                place = f"/proc/{name}"
                fields = _fields(place)
                if fields[0] in (b"Z", b"X"):
                    if int(fields[17]) <= 1:
                        continue
                    tasks = [f"{place}/task/{task}" for task in os.listdir(f"{place}/task")]
                    place = next(task for task in tasks if _fields(task)[0] not in (b"Z", b"X"))
                parent, group, threads = int(fields[1]), int(fields[2]), int(fields[17])
                yield Process(int(name), place, parent, group, threads, int(_fields(place)[21]) * PAGE)


def _fields(place: str) -> list[bytes]:
    """What `stat` tells behind the name: state, parent, group, … (proc_pid_stat(5), from field 3 on)."""
    return Path(f"{place}/stat").read_bytes().rpartition(b")")[2].split()


def _own_bytes(process: Process) -> int:
    """Its memory with each shared page divided among those that share it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"{process.place}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return process.resident_bytes


def _nameless(processes: Iterable[Process]) -> dict[bool, int]:
    """Bytes of files that are open and have no name any more: in memory (True), on a disk (False)."""
    seen: dict[tuple[int, int], tuple[bool, int]] = {}
    for process in processes:
        folder = f"{process.place}/fd"
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"{folder}/{name}")
                    if target.endswith(" (deleted)"):
                        found = os.stat(f"{folder}/{name}")
                        if stat.S_ISREG(found.st_mode):
                            in_memory = target.startswith(("/memfd:", "/dev/shm/"))
                            seen[found.st_dev, found.st_ino] = in_memory, found.st_blocks * 512
    return {kind: sum(size for memory, size in seen.values() if memory is kind) for kind in (True, False)}


def tree_bytes(folder: str) -> int:
    """What a folder and all in it take on the disk. Follows no link; a folder that is too deep counts as endless."""
    total, left = 0, [folder]
    while left:
        place = left.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        total += max(found.st_blocks * 512, ENTRY_BYTES)
                        if stat.S_ISDIR(found.st_mode):
                            left.append(entry.path)
        except PermissionError:
            if _opened_again(place):
                left.append(place)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return 2**62
    return total


def _opened_again(place: str) -> bool:
    """Give a folder of our own that hides its content its modes back; True where it did. Never through a link."""
    with contextlib.suppress(OSError):
        found = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(found).st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(f"/proc/self/fd/{found}", stat.S_IRWXU)
                return True
        finally:
            os.close(found)
    return False

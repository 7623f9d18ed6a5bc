"""Limits the jobs that run at once on this machine, first come, first served.

A waiting job is a process of some 25 MiB that has loaded nothing yet. Every job holds a lock on a file of its own,
numbered in order of arrival, until it has a slot; a slot is a lock too. Locks end with their process, so a killed job
blocks nobody, and a restart of the server changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torchsplit_core.isolation import default_memory_bytes
from torchsplit_core.values import InputFault, quoted

SLOTS_VARIABLE = "TORCHSPLIT_JOBS"
MIN_SLOTS = 3
"""Even on the smallest machine, reading a file need not wait for two searches."""
JOB_BYTES = 400 * 2**20
"""Memory of a search; its two workers, if any, share most of it."""
POLL_S = 0.25
_TICKET = re.compile(r"ticket-(\d+)")


def slot_count() -> int:
    """How many jobs run at once: one a core and at least three, within the memory; or TORCHSPLIT_JOBS.

    Raises InputFault if that is no integer from 1 on.
    """
    setting = os.environ.get(SLOTS_VARIABLE)
    if setting is not None:
        if not (setting.isascii() and setting.isdigit() and 1 <= int(setting[:9]) <= 1024):
            problem = f"is {quoted(setting)}, not a whole number from 1 to 1024"
            raise InputFault(SLOTS_VARIABLE, problem, "Set it to, for example, 4.")
        return int(setting)
    return max(1, min(max(MIN_SLOTS, os.cpu_count() or 1), default_memory_bytes() // JOB_BYTES))


@contextlib.contextmanager
def acquire_slot(folder: Path, on_queue_position: Callable[[int], None]) -> Iterator[None]:
    """Wait for a slot and hold it. `on_queue_position` gets the number of jobs before this one, at once and on changes.

    Raises OSError if the folder's files cannot be made.
    """
    folder.mkdir(exist_ok=True)
    _held_slots.append(_HeldSlot(folder, on_queue_position, _wait_for_slot(folder, on_queue_position)))
    try:
        yield
    finally:
        if _held_slots:
            os.close(_held_slots.pop().handle)


@contextlib.contextmanager
def release_slot_meanwhile() -> Iterator[None]:
    """Release this job's slot while it waits for something else, then wait for one again.

    Does nothing outside a job, or if another thread has released it.
    """
    try:
        slot = _held_slots.pop()
    except IndexError:
        yield
        return
    os.close(slot.handle)
    yield
    # Work that was ended while it waited needs no slot.
    _held_slots.append(
        _HeldSlot(slot.folder, slot.on_queue_position, _wait_for_slot(slot.folder, slot.on_queue_position))
    )


@dataclass(frozen=True, slots=True)
class _HeldSlot:
    folder: Path
    on_queue_position: Callable[[int], None]
    handle: int


_held_slots: list[_HeldSlot] = []
"""The slot of the job of this process; a process is at most one job."""


def _wait_for_slot(folder: Path, on_queue_position: Callable[[int], None]) -> int:
    """The lock of a slot as an open file, once it is this job's turn."""
    with _ticket(folder) as number:
        reported = None
        while True:
            position = len(_waiting_before(folder, number))
            slot = _free_slot(folder) if not position else None
            if slot is not None:
                return slot
            if position != reported:
                on_queue_position(position)
                reported = position
            time.sleep(POLL_S)


@contextlib.contextmanager
def _ticket(folder: Path) -> Iterator[int]:
    """A number above all in use, held inside the `with` block."""
    with _open_handle(folder / "counter") as counter:
        fcntl.flock(counter, fcntl.LOCK_EX)
        number = max((known for known, _ in _tickets(folder)), default=0) + 1
        path = folder / f"ticket-{number}"
        ticket = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(ticket, fcntl.LOCK_EX)
    try:
        yield number
    finally:
        path.unlink(missing_ok=True)
        os.close(ticket)


def _waiting_before(folder: Path, number: int) -> list[int]:
    """The smaller numbers of waiting jobs; removes tickets of killed jobs."""
    waiting = []
    for known, path in _tickets(folder):
        if known >= number:
            continue
        with contextlib.suppress(FileNotFoundError), _open_handle(path, create=False) as ticket:
            try:
                fcntl.flock(ticket, fcntl.LOCK_SH | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            except BlockingIOError:
                waiting.append(known)
    return waiting


def _tickets(folder: Path) -> list[tuple[int, Path]]:
    return [(int(match[1]), path) for path in folder.iterdir() if (match := _TICKET.fullmatch(path.name))]


def _free_slot(folder: Path) -> int | None:
    """The lock of a free slot as an open file; None if all are held."""
    for index in range(slot_count()):
        slot = os.open(folder / f"slot-{index}", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return slot
        except BlockingIOError:
            os.close(slot)
    return None


@contextlib.contextmanager
def _open_handle(path: Path, *, create: bool = True) -> Iterator[int]:
    handle = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o666)
    try:
        yield handle
    finally:
        os.close(handle)

"""Holds a process to cores of its host, or away from them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


def pin_process(cores: Sequence[int]) -> None:
    """Pin every thread of this process to these cores; without any nothing changes."""
    if cores:
        for task in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cores)


@contextmanager
def off_cores(cores: Iterable[int]) -> Iterator[None]:
    """Pin this thread to other cores than these, if there are any, until the block ends."""
    before = os.sched_getaffinity(0)
    left = before - set(cores)
    if left:
        os.sched_setaffinity(0, left)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

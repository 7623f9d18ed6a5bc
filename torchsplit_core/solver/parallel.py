"""Searches that solve many small programs, on several cores: HiGHS runs without Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

MAX_THREADS = 8
"""Threads above which Python's part of the work, which one thread does at a time, leaves the others little. Chosen."""


def thread_count() -> int:
    """Threads of a search: one for each core that the process may use, up to MAX_THREADS."""
    return min(MAX_THREADS, len(os.sched_getaffinity(0)))


def run_in_threads(work: Callable[[Event], None]) -> None:
    """Run `work` in `thread_count()` threads at once and wait for all of them.

    The event is set when one of them raised, or the caller is interrupted: `work` then returns soon, and the first
    exception is raised.
    """
    stopped = Event()
    count = thread_count()
    with ThreadPoolExecutor(count) as pool:
        runs = [pool.submit(_run, work, stopped) for _ in range(count)]
        try:
            for run in runs:
                run.result()
        finally:
            stopped.set()


def _run(work: Callable[[Event], None], stopped: Event) -> None:
    try:
        work(stopped)
    except BaseException:
        stopped.set()
        raise

"""Set up what torch's agent needs, and restore what it changes: environment, signals, log."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

ATTEMPT_OVER_EXIT_CODE = os.EX_TEMPFAIL
"""Exit code of a rank whose attempt is over."""


@contextlib.contextmanager
def agent_variables(count: int, network: Mapping[str, str]) -> Iterator[None]:
    """Set the variables that torch's agent and its processes need: see docs/guides/training-runs.md."""
    cores = len(os.sched_getaffinity(0))
    fixes = {
        # With one store for rendezvous and processes, most restarts after a kill fail.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": str(max(1, cores // count)),
        **network,
    }
    added = {name: value for name, value in fixes.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextlib.contextmanager
def restored_signals() -> Iterator[None]:
    """Restore the signal handlers, which the agent replaces and leaves replaced."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def agent_log(path: Path) -> Iterator[None]:
    """Write the log of torch's agent to a file; what users must know is in the run's events. To the agent a rank whose
    attempt is over has failed; the log omits such lines."""
    loggers = [logging.getLogger(name) for name in ("torch.distributed", "torch.multiprocessing")]
    before = [(logger.handlers, logger.propagate) for logger in loggers]
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.addFilter(lambda record: f"(exitcode: {ATTEMPT_OVER_EXIT_CODE})" not in record.getMessage())
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        for logger, (handlers, propagated) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagated
        handler.close()

"""Requests to a run from outside, each an empty file in its folder: take a checkpoint now, or stop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from torchsplit_core.training.periodic import run_periodically
from torchsplit_core.training.run_folder import STOP, WATCH
from torchsplit_core.values import InputFault, system_reason

ControlRequest = Literal["checkpoint", "stop"]


def send_request(run: Path, what: ControlRequest) -> None:
    """Send a request to the run that writes to the folder. Raises InputFault if the folder cannot be written."""
    try:
        _file(run, what).parent.mkdir(exist_ok=True)
        _file(run, what).touch()
    except OSError as error:
        raise InputFault(
            str(run), f"cannot be written: {system_reason(error)}", "Make the folder writable for you."
        ) from error


def is_requested(run: Path, what: ControlRequest) -> bool:
    """Whether the request was sent and not acknowledged yet."""
    return _file(run, what).exists()


def acknowledge(run: Path, what: ControlRequest) -> None:
    """Withdraw a request that was carried out."""
    with contextlib.suppress(OSError):
        _file(run, what).unlink(missing_ok=True)


class StopRequest:
    """Stop requests that were sent after this was made; each node of the run sees each one once.

    The file stays until the run is started again: otherwise the first node to see it would take it from the others.
    """

    def __init__(self, run: Path) -> None:
        self._file = _file(run, STOP)
        self._last_stamp = self._stamp()

    def is_new(self) -> bool:
        """Whether a stop was requested since the last call."""
        before, self._last_stamp = self._last_stamp, self._stamp()
        return self._last_stamp is not None and self._last_stamp != before

    def _stamp(self) -> int | None:
        with contextlib.suppress(OSError):
            return self._file.stat().st_mtime_ns
        return None


@contextlib.contextmanager
def stop_on_request(run: Path) -> Iterator[None]:
    """While this process runs the ranks, treat a stop request as SIGTERM.

    Outside the main thread a signal would end the program that this is only a part of: requests are ignored there.
    """
    stop_request = StopRequest(run)
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def poll() -> None:
        if stop_request.is_new():
            os.kill(os.getpid(), signal.SIGTERM)

    with run_periodically(poll, "asked"):
        yield


def _file(run: Path, what: ControlRequest) -> Path:
    return run / WATCH / what

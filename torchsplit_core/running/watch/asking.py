"""What is asked of a run from outside, as an empty file in its folder: a checkpoint now, or to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from torchsplit_core.running.beside import looking
from torchsplit_core.running.folder import STOP, WATCH
from torchsplit_core.values import InputFault, system_reason

Asked = Literal["checkpoint", "stop"]


def ask(run: Path, what: Asked) -> None:
    """Ask the run that writes to the folder. Raises InputFault where the folder cannot be written."""
    try:
        _file(run, what).parent.mkdir(exist_ok=True)
        _file(run, what).touch()
    except OSError as error:
        raise InputFault(
            str(run), f"cannot be written: {system_reason(error)}", "Make the folder writable for you."
        ) from error


def is_asked(run: Path, what: Asked) -> bool:
    """Whether it is asked and was not answered yet."""
    return _file(run, what).exists()


def answer(run: Path, what: Asked) -> None:
    """It was done."""
    with contextlib.suppress(OSError):
        _file(run, what).unlink(missing_ok=True)


class Stops:
    """Stops that are asked of a run after this was made: each node of the run hears each once.

    The file stays until the run is started again: the node that hears first would else take it from the others.
    """

    def __init__(self, run: Path) -> None:
        self._file = _file(run, STOP)
        self._known = self._stamp()

    def asked(self) -> bool:
        """Whether one was asked since the last look."""
        before, self._known = self._known, self._stamp()
        return self._known is not None and self._known != before

    def _stamp(self) -> int | None:
        with contextlib.suppress(OSError):
            return self._file.stat().st_mtime_ns
        return None


@contextlib.contextmanager
def stopped_when_asked(run: Path) -> Iterator[None]:
    """While this process starts the ranks: a stop that is asked is to it what SIGTERM is.

    In a thread that is not the main one a signal would end what this is only a part of: nothing is heard there.
    """
    stops = Stops(run)
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def listen() -> None:
        if stops.asked():
            os.kill(os.getpid(), signal.SIGTERM)

    with looking(listen, "asked"):
        yield


def _file(run: Path, what: Asked) -> Path:
    return run / WATCH / what

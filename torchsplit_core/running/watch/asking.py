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
from torchsplit_core.running.folder import WATCH
from torchsplit_core.values import InputFault

Asked = Literal["checkpoint", "stop"]


def ask(run: Path, what: Asked) -> None:
    """Ask the run that writes to the folder. Raises InputFault where the folder cannot be written."""
    try:
        _file(run, what).parent.mkdir(exist_ok=True)
        _file(run, what).touch()
    except OSError as error:
        raise InputFault(
            str(run),
            error.strerror or "failed",
            "the run's folder can be written",
            "Give yourself the right to write there.",
        ) from error


def is_asked(run: Path, what: Asked) -> bool:
    """Whether it is asked and was not heard yet."""
    return _file(run, what).exists()


def answer(run: Path, what: Asked) -> None:
    """It was heard."""
    with contextlib.suppress(OSError):
        _file(run, what).unlink(missing_ok=True)


@contextlib.contextmanager
def stopped_when_asked(run: Path) -> Iterator[None]:
    """While this process starts the ranks: a stop that is asked is to it what SIGTERM is.

    In a thread that is not the main one a signal would end what this is only a part of: nothing is heard there.
    """
    answer(run, "stop")
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def listen() -> None:
        if is_asked(run, "stop"):
            answer(run, "stop")
            os.kill(os.getpid(), signal.SIGTERM)

    with looking(listen, "asked"):
        yield


def _file(run: Path, what: Asked) -> Path:
    return run / WATCH / what

"""One process forked from this one that answers question after question through a pipe.

For work of our own that no deadline of its own holds: whoever waits too long kills it. It is not confined and its
answers are unpickled, so nothing foreign may run in it. Forked, because a fresh interpreter would spend a third of a
second on its imports, longer than most questions take.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from torchsplit_core.isolation.sandbox.kernel import die_with_parent
from torchsplit_core.values import InternalFault

ResultT = TypeVar("ResultT")


class WorkerEnded(Exception):
    """The process ended without an answer (perhaps memory was short)."""


class ForkedWorker(Generic[ResultT]):
    """A process that calls `handler` with the values of each question; arguments and answers are pickled.

    It ends with `kill`, and with the thread that made it, however that ends. pipe: for
    `multiprocessing.connection.wait`, which tells of it when `result` need not wait.
    """

    def __init__(self, handler: Callable[..., ResultT]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, child_end = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(handler, child_end, self.pipe, os.getpid()), daemon=True
        )
        self._process.start()
        child_end.close()

    def submit(self, *arguments: Any) -> None:
        """Put a question; only when the one before has its answer. Where the process has ended, `result` says so."""
        with contextlib.suppress(OSError):
            self.pipe.send(arguments)

    def poll(self, seconds: float = 0.0) -> bool:
        """Whether within so many seconds there is an answer, or the process has ended."""
        return self.pipe.poll(seconds)

    def result(self) -> ResultT:
        """The answer, waited for. Raises WorkerEnded, and InternalFault where answering raised anything."""
        try:
            fault, value = self.pipe.recv()
        except (EOFError, OSError):
            raise WorkerEnded from None
        if fault is not None:
            raise InternalFault(fault)
        output: ResultT = value
        return output

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _serve(handler: Callable[..., Any], pipe: Connection, parents_end: Connection, parent: int) -> None:
    """The child's side: until the parent, or its end of the pipe, is gone."""
    die_with_parent()
    if os.getppid() != parent:  # it ended before the kernel was told to say so
        return
    parents_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        try:
            arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            reply: tuple[str | None, Any] = None, handler(*arguments)
        except Exception as error:  # noqa: BLE001 - the boundary of the process: its parent says it
            reply = f"{type(error).__name__}: {error}", None
        pipe.send(reply)

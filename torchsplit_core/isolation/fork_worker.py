"""A forked worker process that answers calls, one after the other, through a pipe.

For our own code that has no deadline: a caller that has waited too long kills the worker. It is not confined and its
answers are unpickled, so it must not run foreign code. It is forked because a new interpreter would spend a third of a
second on imports, longer than most calls take.
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
    """The worker ended without an answer, perhaps for lack of memory."""


class ForkedWorker(Generic[ResultT]):
    """A process that calls `handler` with the arguments of each call; arguments and results are pickled.

    It ends on `kill`, and with the thread that created it, however that ends. Pass `pipe` to
    `multiprocessing.connection.wait` to learn when `result` will not block.
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
        """Send a call; only after the previous one's result was read. If the worker has ended, `result` raises."""
        with contextlib.suppress(OSError):
            self.pipe.send(arguments)

    def poll(self, seconds: float = 0.0) -> bool:
        """Whether an answer arrives, or the worker ends, within `seconds`."""
        return self.pipe.poll(seconds)

    def result(self) -> ResultT:
        """Wait for the result. Raises WorkerEnded, or InternalFault if the handler raised."""
        try:
            fault, value = self.pipe.recv()
        except (EOFError, OSError):
            raise WorkerEnded from None
        if fault is not None:
            raise InternalFault(fault)
        output: ResultT = value
        return output

    def kill(self) -> None:
        """Kill the worker, whatever it is doing."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _serve(handler: Callable[..., Any], pipe: Connection, parents_end: Connection, parent: int) -> None:
    """The worker's loop, until the parent or its end of the pipe is gone."""
    die_with_parent()
    if os.getppid() != parent:  # it ended before the death signal was set
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
        except Exception as error:  # noqa: BLE001 - the process boundary: the parent raises it
            reply = f"{type(error).__name__}: {error}", None
        pipe.send(reply)

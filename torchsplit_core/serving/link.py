"""The connection to a worker as the front has it: a message out, and its answer in a future, without a task."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from torchsplit_core.serving.messages import HEAD, lengths, packed_head

JOINED = 64 * 1024
"""A message of fewer bytes goes out in one piece."""

Message = tuple[dict[str, Any], memoryview]
"""The head of a worker's answer, and what follows it."""


class Link(asyncio.Protocol):
    """One message at a time."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.closed = False
        self._answer: asyncio.Future[Message] | None = None
        self._start = bytearray()
        self._head: dict[str, Any] | None = None
        self._payload, self._got = bytearray(), 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self.fail(error or ConnectionResetError())

    def eof_received(self) -> None:
        self.closed = True

    def ask(self, head: dict[str, Any], blocks: Sequence[Any]) -> asyncio.Future[Message]:
        """Send a message. The future has the answer, or OSError or ValueError where there is none."""
        answer = self._answer = asyncio.get_running_loop().create_future()
        if self.closed:
            self.fail(ConnectionResetError())
            return answer
        total = sum(map(len, blocks))
        if total < JOINED:
            self.transport.write(b"".join((packed_head(head, total), *blocks)))
        else:
            self.transport.writelines((packed_head(head, total), *blocks))
        return answer

    def fail(self, error: Exception) -> None:
        """Whoever waits for an answer gets this."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def data_received(self, data: bytes) -> None:
        try:
            self._take(memoryview(data))
        except (ValueError, TypeError) as error:
            self.fail(error)
            self.transport.abort()

    def _take(self, data: memoryview) -> None:
        if self._head is None:
            self._start += data
            if len(self._start) < HEAD.size:
                return
            size, following = lengths(self._start[: HEAD.size])
            at = HEAD.size + size
            if len(self._start) < at:
                return
            self._head = json.loads(self._start[HEAD.size : at])
            self._payload, self._got = bytearray(following), 0
            data, self._start = memoryview(self._start)[at:], bytearray()
        if self._got + len(data) > len(self._payload):
            raise ValueError("more than was told")
        self._payload[self._got : self._got + len(data)] = data
        self._got += len(data)
        if self._got == len(self._payload):
            if self._answer is None or self._answer.done():
                raise ValueError("an answer to nothing")
            head, self._head = self._head, None
            self._answer.set_result((head, memoryview(self._payload)))

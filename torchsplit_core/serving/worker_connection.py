"""The frontend's connection to a worker: sends a message and gives a future for the response, without a task."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from torchsplit_core.serving.framing import LENGTH_PREFIX, encode_header, frame_lengths

COALESCE_BYTES = 64 * 1024
"""A smaller message is sent in one write."""

Message = tuple[dict[str, Any], memoryview]
"""Head and payload of a worker's response."""


class WorkerConnection(asyncio.Protocol):
    """Carries one message at a time."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.closed = False
        self._reply: asyncio.Future[Message] | None = None
        self._header = bytearray()
        self._head: dict[str, Any] | None = None
        self._payload, self._received = bytearray(), 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self.fail(error or ConnectionResetError())

    def eof_received(self) -> None:
        self.closed = True

    def send(self, head: dict[str, Any], blocks: Sequence[Any]) -> asyncio.Future[Message]:
        """Send a message. The future gets the response, or OSError or ValueError if there is none."""
        reply = self._reply = asyncio.get_running_loop().create_future()
        if self.closed:
            self.fail(ConnectionResetError())
            return reply
        total = sum(map(len, blocks))
        if total < COALESCE_BYTES:
            self.transport.write(b"".join((encode_header(head, total), *blocks)))
        else:
            self.transport.writelines((encode_header(head, total), *blocks))
        return reply

    def fail(self, error: Exception) -> None:
        """Fail the response that is awaited, if there is one."""
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)

    def data_received(self, data: bytes) -> None:
        try:
            self._feed(memoryview(data))
        except (ValueError, TypeError) as error:
            self.fail(error)
            self.transport.abort()

    def _feed(self, data: memoryview) -> None:
        if self._head is None:
            self._header += data
            if len(self._header) < LENGTH_PREFIX.size:
                return
            size, following = frame_lengths(self._header[: LENGTH_PREFIX.size])
            at = LENGTH_PREFIX.size + size
            if len(self._header) < at:
                return
            self._head = json.loads(self._header[LENGTH_PREFIX.size : at])
            self._payload, self._received = bytearray(following), 0
            data, self._header = memoryview(self._header)[at:], bytearray()
        if self._received + len(data) > len(self._payload):
            raise ValueError("more bytes than announced")
        self._payload[self._received : self._received + len(data)] = data
        self._received += len(data)
        if self._received == len(self._payload):
            if self._reply is None or self._reply.done():
                raise ValueError("a response to nothing")
            head, self._head = self._head, None
            self._reply.set_result((head, memoryview(self._payload)))

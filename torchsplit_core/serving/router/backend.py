"""HTTP/1.1 to one server: connections that are kept for a while, answers up to a size. h11 reads and writes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11

CONNECT_S = 3.0
"""A server that has not taken a connection by then is not there."""
KEPT_S = 5.0
KEPT_REQUESTS = 50
"""How long, and for how many requests, a connection is kept: behind the one name of a Kubernetes Service stand several
servers, of which each new connection reaches another."""
LARGEST_HEAD = 64 * 1024
"""Bytes of an answer's head."""
READ_BYTES = 256 * 1024
Body = bytes | bytearray


@dataclass(frozen=True, slots=True)
class BackendResponse:
    """A server's answer. Header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class InvalidResponseError(ConnectionError):
    """What a server sent is no whole HTTP answer."""


class ResponseTooLargeError(Exception):
    """An answer has more bytes than were allowed."""


@dataclass
class Backend:
    """A server by its address, `http://HOST:PORT`, with its connections that are free; `shown` are headers for all."""

    url: str
    default_headers: Mapping[str, str] = field(default_factory=dict)
    _free: list[_BackendConnection] = field(default_factory=list)

    async def send(
        self, method: str, path: str, headers: Mapping[str, str], body: Body, max_bytes: int
    ) -> BackendResponse:
        """The answer, its body of at most so many bytes. The caller says how long all of it may take.

        Raises OSError where it cannot be reached, NoAnswerError where it gives no answer, TooLargeError.
        """
        address = urlsplit(self.url)
        fields = [
            ("host", address.netloc),
            *self.default_headers.items(),
            *headers.items(),
            ("content-length", str(len(body))),
        ]
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
        request = h11.Request(method=method, target=path, headers=raw)
        while self._free:
            connection = self._free.pop()
            try:
                return await self._send_on(connection, request, body, max_bytes)
            except ConnectionError:
                # Closed by the server while it was free: that says nothing of the server.
                if connection.received_any:
                    raise
        return await self._send_on(
            await self._open(address.hostname or "", address.port or 80), request, body, max_bytes
        )

    async def _open(self, host: str, port: int) -> _BackendConnection:
        try:
            async with asyncio.timeout(CONNECT_S):
                streams = await asyncio.open_connection(host, port, limit=4 * READ_BYTES)
        except TimeoutError:
            raise ConnectionError(f"{self.url}: no connection within {CONNECT_S:g} s") from None
        connection = _BackendConnection(*streams)
        asyncio.get_running_loop().call_later(KEPT_S, self._expire, connection)
        return connection

    def _expire(self, connection: _BackendConnection) -> None:
        connection.requests_left = 0
        if connection in self._free:
            self._free.remove(connection)
            connection.close()

    async def _send_on(
        self, connection: _BackendConnection, request: h11.Request, body: Body, max_bytes: int
    ) -> BackendResponse:
        try:
            response = await connection.send(request, body, max_bytes)
        except BaseException:
            # Cut off in its midst it can carry no other.
            connection.close()
            raise
        if connection.prepare_reuse():
            self._free.append(connection)
        else:
            connection.close()
        return response


class _BackendConnection:
    """One at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)
        self.requests_left = KEPT_REQUESTS
        self.received_any = False

    async def send(self, request: h11.Request, body: Body, max_bytes: int) -> BackendResponse:
        self.received_any = False
        self.requests_left -= 1
        try:
            head = self.http.send(request) or b""
            # What h11 gives for a body of a known length is that body.
            self.http.send(h11.Data(data=body))  # type: ignore[arg-type]
            self.http.send(h11.EndOfMessage())
            if len(body) <= READ_BYTES:
                self.writer.write(head + body)
                return await self._read_response(max_bytes)
            self.writer.write(head)
            sending = asyncio.ensure_future(self._send(body))
            try:
                return await self._read_response(max_bytes)
            finally:
                # A server that refuses a large body answers before it has read it.
                if not sending.done():
                    self.requests_left = 0
                sending.cancel()
        except h11.RemoteProtocolError as error:
            raise InvalidResponseError(str(error)) from error

    async def _send(self, body: Body) -> None:
        """A large body piece by piece, so that neither it nor its copy holds up the event loop."""
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(body), READ_BYTES):
                self.writer.write(memoryview(body)[start : start + READ_BYTES])
                await self.writer.drain()

    async def _read_response(self, max_bytes: int) -> BackendResponse:
        head: h11.Response | None = None
        blocks: list[bytes] = []
        size = 0
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                data = await self.reader.read(READ_BYTES)
                if not (data or self.received_any):
                    raise ConnectionError("closed without an answer")
                self.received_any = True
                self.http.receive_data(data)
            elif isinstance(event, h11.Response):
                if event.status_code >= 600:
                    raise InvalidResponseError(f"the status {event.status_code}")
                head = event
            elif isinstance(event, h11.Data):
                blocks.append(event.data)
                size += len(event.data)
                if size > max_bytes:
                    raise ResponseTooLargeError
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                break
            elif not isinstance(event, h11.InformationalResponse):
                raise InvalidResponseError("it ended before its answer did")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        return BackendResponse(head.status_code, headers, b"".join(blocks))

    def prepare_reuse(self) -> bool:
        """Whether it can carry another request; then it is made ready for that."""
        trailing, _ = self.http.trailing_data
        if self.requests_left <= 0 or trailing or {self.http.our_state, self.http.their_state} != {h11.DONE}:
            return False
        self.http.start_next_cycle()
        return not self.reader.at_eof()

    def close(self) -> None:
        self.writer.transport.abort()

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
class Answer:
    """A server's answer. Header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class NoAnswerError(ConnectionError):
    """What a server sent is no whole HTTP answer."""


class TooLargeError(Exception):
    """An answer has more bytes than were allowed."""


@dataclass
class Server:
    """A server by its address, `http://HOST:PORT`, with its connections that are free; `shown` are headers for all."""

    url: str
    shown: Mapping[str, str] = field(default_factory=dict)
    _free: list[_Connection] = field(default_factory=list)

    async def ask(self, method: str, path: str, headers: Mapping[str, str], body: Body, most: int) -> Answer:
        """The answer, its body of at most so many bytes. The caller says how long all of it may take.

        Raises OSError where it cannot be reached, NoAnswerError where it gives no answer, TooLargeError.
        """
        where = urlsplit(self.url)
        sent = [
            ("host", where.netloc),
            *self.shown.items(),
            *headers.items(),
            ("content-length", str(len(body))),
        ]
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent]
        request = h11.Request(method=method, target=path, headers=raw)
        while self._free:
            connection = self._free.pop()
            try:
                return await self._over(connection, request, body, most)
            except ConnectionError:
                # Closed by the server while it was free: that says nothing of the server.
                if connection.heard:
                    raise
        return await self._over(
            await self._opened(where.hostname or "", where.port or 80), request, body, most
        )

    async def _opened(self, host: str, port: int) -> _Connection:
        try:
            async with asyncio.timeout(CONNECT_S):
                streams = await asyncio.open_connection(host, port, limit=4 * READ_BYTES)
        except TimeoutError:
            raise ConnectionError(f"{self.url}: no connection within {CONNECT_S:g} s") from None
        connection = _Connection(*streams)
        asyncio.get_running_loop().call_later(KEPT_S, self._expire, connection)
        return connection

    def _expire(self, connection: _Connection) -> None:
        connection.left = 0
        if connection in self._free:
            self._free.remove(connection)
            connection.close()

    async def _over(self, connection: _Connection, request: h11.Request, body: Body, most: int) -> Answer:
        try:
            answer = await connection.ask(request, body, most)
        except BaseException:
            # Cut off in its midst it can carry no other.
            connection.close()
            raise
        if connection.again():
            self._free.append(connection)
        else:
            connection.close()
        return answer


class _Connection:
    """One at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)
        self.left = KEPT_REQUESTS
        self.heard = False

    async def ask(self, request: h11.Request, body: Body, most: int) -> Answer:
        self.heard = False
        self.left -= 1
        try:
            head = self.http.send(request) or b""
            # What h11 gives for a body of a known length is that body.
            self.http.send(h11.Data(data=body))  # type: ignore[arg-type]
            self.http.send(h11.EndOfMessage())
            if len(body) <= READ_BYTES:
                self.writer.write(head + body)
                return await self._answer(most)
            self.writer.write(head)
            sending = asyncio.ensure_future(self._send(body))
            try:
                return await self._answer(most)
            finally:
                # A server that refuses a large body answers before it has read it.
                if not sending.done():
                    self.left = 0
                sending.cancel()
        except h11.RemoteProtocolError as error:
            raise NoAnswerError(str(error)) from error

    async def _send(self, body: Body) -> None:
        """A large body piece by piece, so that neither it nor its copy holds up the event loop."""
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(body), READ_BYTES):
                self.writer.write(memoryview(body)[start : start + READ_BYTES])
                await self.writer.drain()

    async def _answer(self, most: int) -> Answer:
        head: h11.Response | None = None
        blocks: list[bytes] = []
        size = 0
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                data = await self.reader.read(READ_BYTES)
                if not (data or self.heard):
                    raise ConnectionError("closed without an answer")
                self.heard = True
                self.http.receive_data(data)
            elif isinstance(event, h11.Response):
                if event.status_code >= 600:
                    raise NoAnswerError(f"the status {event.status_code}")
                head = event
            elif isinstance(event, h11.Data):
                blocks.append(event.data)
                size += len(event.data)
                if size > most:
                    raise TooLargeError
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                break
            elif not isinstance(event, h11.InformationalResponse):
                raise NoAnswerError("it ended before its answer did")
        found = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        return Answer(head.status_code, found, b"".join(blocks))

    def again(self) -> bool:
        """Whether it can carry another request; then it is made ready for that."""
        behind, _ = self.http.trailing_data
        if self.left <= 0 or behind or {self.http.our_state, self.http.their_state} != {h11.DONE}:
            return False
        self.http.start_next_cycle()
        return not self.reader.at_eof()

    def close(self) -> None:
        self.writer.transport.abort()

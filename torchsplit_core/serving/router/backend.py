"""A server of a part, with connections that are kept for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from torchsplit_core.serving.protocol.http_client import ClientConnection, ClientResponse, Result

CONNECT_S = 3.0
"""A server that has not accepted a connection by then counts as unreachable."""
KEPT_S = 5.0
KEPT_REQUESTS = 50
"""How long, and for how many requests, a connection is kept. The name of a Kubernetes Service stands for several
servers, and each new connection reaches another."""


@dataclass
class Backend:
    """A server by its address, `http://HOST:PORT`, and its free connections. All requests have `default_headers`."""

    url: str
    default_headers: Mapping[str, str] = field(default_factory=dict)
    _free: list[ClientConnection] = field(default_factory=list)

    async def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | bytearray, max_bytes: int
    ) -> ClientResponse:
        """The response, its body of at most `max_bytes`. The caller limits how long it may take.

        Raises OSError where the server cannot be reached or gives no response (InvalidResponseError), and
        ResponseTooLargeError.
        """
        fields = {"host": urlsplit(self.url).netloc, **self.default_headers, **headers}
        lines = [f"{name}: {value}" for name, value in fields.items()]
        head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, f"content-length: {len(body)}", "", ""])
        while self._free:
            connection = self._free.pop()
            try:
                return await self._send_on(connection, head.encode("latin-1"), body, max_bytes)
            except ConnectionError:
                # A server may close a free connection at any time; that says nothing about the server.
                if connection.received_any:
                    raise
        return await self._send_on(await self._open(), head.encode("latin-1"), body, max_bytes)

    async def _open(self) -> ClientConnection:
        address, loop = urlsplit(self.url), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(
                    ClientConnection, address.hostname or "", address.port or 80
                )
        except TimeoutError:
            raise ConnectionError(f"{self.url}: no connection within {CONNECT_S:g} s") from None
        loop.call_later(KEPT_S, self._expire, connection)
        return connection

    def _expire(self, connection: ClientConnection) -> None:
        connection.reusable = False
        if connection in self._free:
            self._free.remove(connection)
            connection.close()

    async def _send_on(
        self, connection: ClientConnection, head: bytes, body: bytes | bytearray, max_bytes: int
    ) -> ClientResponse:
        if not connection.reusable:
            connection.received_any = False
            raise ConnectionError("closed by the server")
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def on_result(result: Result) -> None:
            if not done.done():
                done.set_result(result)

        connection.send(head, body, on_result=on_result, max_bytes=max_bytes)
        try:
            result = await done
        except BaseException:
            # Whoever asked is gone: the response to this request would be taken for the next one's.
            connection.close()
            raise
        if isinstance(result, Exception):
            raise result
        if connection.reusable and connection.requests_sent < KEPT_REQUESTS:
            self._free.append(connection)
        else:
            connection.close()
        return result

"""HTTP/1.1 to a server, one request at a time on a connection; httptools parses the responses."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httptools

LARGEST_HEAD = 64 * 1024
"""Bytes of a response's head, or between two blocks of its body."""
EVENT_STREAM = "text/event-stream"
"""The type of server-sent events."""
COALESCE_BYTES = 64 * 1024
"""A larger body is not copied behind its head."""


@dataclass(frozen=True, slots=True)
class ClientResponse:
    """A server's response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class InvalidResponseError(ConnectionError):
    """The server did not send a whole HTTP response."""


class ResponseTooLargeError(Exception):
    """A response has more bytes than were allowed."""


Result = ClientResponse | ConnectionError | ResponseTooLargeError


class ClientConnection(asyncio.Protocol):
    """A connection to a server; `reusable` tells whether it can carry another request."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.reusable = True
        self.requests_sent = 0
        self.received_any = False
        self._parser = httptools.HttpResponseParser(self)
        self._on_result: Callable[[Result], None] | None = None
        self._on_event_bytes: Callable[[bytes], object] | None = None
        self._streams_events = False
        self._max_bytes = 0
        self._headers: dict[str, str] = {}
        self._has_head = False
        self._blocks: list[bytes] = []
        self._body_bytes = self._unparsed_bytes = 0

    def send(
        self,
        head: bytes,
        body: bytes | bytearray = b"",
        *,
        on_result: Callable[[Result], None],
        max_bytes: int = sys.maxsize,
        on_event_bytes: Callable[[bytes], object] | None = None,
    ) -> None:
        """Send a request. `on_result` gets the response, whose body may have `max_bytes`, or the error.

        `on_event_bytes` gets each block of a response of status 200 in text/event-stream when it comes; its body
        is empty then.
        """
        self._on_result, self._max_bytes, self.received_any = on_result, max_bytes, False
        self._on_event_bytes = on_event_bytes
        self.requests_sent += 1
        if len(body) < COALESCE_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def close(self) -> None:
        """Close at once."""
        self.reusable = False
        self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received_any = True
        self._unparsed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._finish(InvalidResponseError(str(error)))
        if self._unparsed_bytes > LARGEST_HEAD:
            self._finish(InvalidResponseError(f"more than {LARGEST_HEAD} bytes without a body"))

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        if self._has_head and not {"content-length", "transfer-encoding"} & self._headers.keys():
            self.on_message_complete()  # such a body ends with its connection
        elif self.received_any:
            self._finish(InvalidResponseError("it ended before its answer did"))
        else:
            self._finish(ConnectionError("closed without an answer"))

    def on_message_begin(self) -> None:
        if self._on_result is None:
            self.reusable = False  # nobody asked
        self._headers, self._has_head, self._blocks = {}, False, []
        self._body_bytes = self._unparsed_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower().decode("latin-1")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_head = True
        kind = self._headers.get("content-type", "").partition(";")[0].strip().lower()
        is_stream = self._parser.get_status_code() == 200 and kind == EVENT_STREAM
        self._streams_events = is_stream and self._on_event_bytes is not None

    def on_body(self, block: bytes) -> None:
        self._unparsed_bytes = 0
        self._body_bytes += len(block)
        if self._body_bytes > self._max_bytes:
            self._finish(ResponseTooLargeError())
        elif self._streams_events:
            assert self._on_event_bytes is not None
            self._on_event_bytes(block)
        else:
            self._blocks.append(block)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        self._has_head, self._unparsed_bytes = False, 0
        if status < 200:
            return  # the response is still to come
        if status >= 600:
            self._finish(InvalidResponseError(f"the status {status}"))
            return
        # A server that rejects a large request may answer before it has read it.
        if not self._parser.should_keep_alive() or self.transport.get_write_buffer_size():
            self.reusable = False
        self._finish(ClientResponse(status, self._headers, b"".join(self._blocks)))

    def _finish(self, result: Result) -> None:
        """Report the result of the request, if there is one. After an error the connection is of no use."""
        if isinstance(result, Exception):
            self.close()
        on_result, self._on_result = self._on_result, None
        if on_result is not None:
            on_result(result)

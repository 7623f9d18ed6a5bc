"""HTTP/1.1 server for frontend and router: httptools parses, and limits apply before a handler is called.

Head, body and time of a request are limited. A connection has one active request; requests that arrive meanwhile wait
in order. Everything runs in callbacks of the event loop, without a task for each request.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from socket import socket
from typing import Any, Protocol
from urllib.parse import unquote

import httptools

from torchsplit_core.serving.protocol.http_body import body_too_large
from torchsplit_core.serving.protocol.listener import BACKLOG
from torchsplit_core.serving.protocol.tensors import REQUEST, RequestFault
from torchsplit_core.serving.settings import RequestLimits

MOST_PIPELINED = 32
"""Requests of a connection that may wait for the active one."""
LINGER_S = 2.0
"""How long to read on from a client that was rejected within its request, so that it receives the response."""
SWEEP_S = 0.5
"""Interval between checks of the time limits."""
LARGE_BODY = 64 * 1024
"""From this size on, a body of known length is received in place and a response is written block by block. Requests
whose body is not read may have one of this size."""
JSON = (("content-type", "application/json"),)
_SINGLE_HEADERS = frozenset(
    (b"host", b"content-length", b"authorization", b"origin", b"inference-header-content-length")
)
_REASONS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus} | {
    499: "HTTP/1.1 499 Client Closed Request\r\n"
}


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response; the blocks of `body` are written without a copy."""

    status: int
    body: tuple[bytes | memoryview, ...] = ()
    headers: tuple[tuple[str, str], ...] = JSON


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """A response in JSON."""
    text = json.dumps(content, separators=(",", ":")).encode()
    return HttpResponse(status, (text,), (*JSON, *(headers or {}).items()))


def error_response(fault: RequestFault) -> HttpResponse:
    """The response for a fault."""
    return json_response({"error": str(fault)}, fault.status, fault.headers)


def check_method(request: Request, *methods: str) -> None:
    """Raises RequestFault for a method that a path does not accept. GET includes HEAD."""
    accepted = (*methods, "HEAD") if "GET" in methods else methods
    if request.method not in accepted:
        problem, allowed = f"does not take {request.method}", ", ".join(accepted)
        raise RequestFault(request.path, problem, f"Send {allowed}.", 405, "", {"allow": allowed})


class Request:
    """A request. Names in `headers` are in lower case; `path` is unquoted and without its query."""

    __slots__ = ("body", "connection", "gone", "headers", "held", "keep_alive", "method", "path", "refused")

    def __init__(
        self, connection: ServerConnection, method: str, path: str, headers: dict[bytes, bytes]
    ) -> None:
        self.connection = connection
        self.method, self.path, self.headers = method, path, headers
        self.body: bytes | bytearray = b""
        self.keep_alive = True
        self.held = 0
        self.refused: RequestFault | None = None
        self.gone: Callable[[], object] | None = None
        """Called when the client disconnects before its response."""

    def header(self, name: bytes) -> str:
        """The value of a header; empty if it is missing."""
        return self.headers.get(name, b"").decode("latin-1")

    def reply(self, response: HttpResponse) -> None:
        """Send the response. Call it once, in the event loop."""
        self.connection.respond(self, response)

    def begin_stream(self, headers: tuple[tuple[str, str], ...]) -> None:
        """Send the head of a response of status 200 whose body comes in blocks: `write`, then `end_stream`."""
        self.connection.begin_stream(self, headers)

    def write(self, block: bytes) -> None:
        """Send a block of a streamed body; nothing if the client is gone."""
        if block:
            self.connection.write_stream(self, b"%x\r\n%b\r\n" % (len(block), block))

    def end_stream(self) -> None:
        """End a streamed body; the connection can carry the next request."""
        self.connection.write_stream(self, b"0\r\n\r\n")
        self.connection.end_response(self)

    def fail(self, error: BaseException) -> None:
        """Send the response for an error: a RequestFault in its words, anything else as an internal fault."""
        if not isinstance(error, RequestFault):
            traceback.print_exception(error, file=sys.stderr)
            remedy = "Report it with the server's log."
            error = RequestFault(REQUEST, f"met an internal fault ({type(error).__name__})", remedy, 500)
        self.reply(error_response(error))


class Application(Protocol):
    """What handles the requests of a server."""

    def admit(self, request: Request) -> int:
        """Largest allowed body in bytes; called with the head alone. Raises RequestFault to reject the request."""
        ...

    def handle(self, request: Request) -> None:
        """Handle a request: call `request.reply` or `request.fail`, now or later. May raise RequestFault."""
        ...

    def refused(self, request: Request | None, fault: RequestFault) -> None:
        """Called for a request that was rejected before `handle`."""
        ...


class ServerConnection(asyncio.Protocol):
    """The connection of a client."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.parser = httptools.HttpRequestParser(self)
        self.transport: Any = None
        self.phase_began = server.now()
        """When the current phase of reading, or idleness, began."""
        self.reading = "idle"
        self.current: Request | None = None
        self.waiting: deque[Request] = deque()
        self.write_blocked_since: float | None = None
        """Since when the client does not read its response."""
        self.ending = ""
        """"answered": close after the next response; "lingering": discard what the client still sends; "closed"."""
        self._incoming: Request | None = None
        self._url, self._headers = b"", dict[bytes, bytes]()
        self._head_bytes = 0
        self._blocks: list[bytes] = []
        self._body_buffer: bytearray | None = None
        self._received, self._max_body_bytes = 0, 0

    # --- of the transport ---

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if self.server.make_room():
            self.server.connections.add(self)
            return
        problem = f"has {self.server.limits.connections} connections, which is the most"
        self._refuse(RequestFault("the server", problem, "Ask again later.", 503, "connections"))
        # No lingering: a client that opens thousands would keep them all.
        self.ending = "closed"
        transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.ending = "closed"
        self.server.connections.discard(self)
        request, self.current = self.current, None
        if request is not None:
            self.server.active_requests -= 1
            if request.gone is not None:
                request.gone()
        for pending in (request, self._incoming, *self.waiting):
            self._release_memory(pending)
        self.waiting.clear()
        self._incoming = None

    def pause_writing(self) -> None:
        self.write_blocked_since = self.server.now()

    def resume_writing(self) -> None:
        self.write_blocked_since = None
        self._handle_next()

    def data_received(self, data: bytes) -> None:
        if self.ending:
            self._received += len(data)
            if self._received > LARGE_BODY * 16:
                self.transport.abort()
            return
        self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Respond as to any other request; what follows would be another protocol.
            if self.current is None and not self.waiting:
                self._close_after_response()
            else:
                self.ending = "answered"
        except httptools.HttpParserCallbackError as error:
            # Raised by one of the callbacks below.
            if not isinstance(error.__context__, RequestFault):
                raise
            self._refuse(error.__context__)
        except httptools.HttpParserError as error:
            self._refuse(_malformed(f"is not HTTP/1.1: {error}"))
        else:
            # Trailers after the last chunk count as a head.
            if self.reading != "idle" and self._head_bytes > self.server.limits.head_bytes:
                self._refuse(_large_head(self.server.limits))

    # --- of the parser ---

    def on_message_begin(self) -> None:
        self.reading, self.phase_began = "head", self.server.now()
        self._url, self._headers = b"", {}

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.reading == "body":
            return  # a trailer: the head was admitted without it
        name = name.lower()
        if name in self._headers:
            if name in _SINGLE_HEADERS:
                raise _malformed(f"has the header {name.decode('latin-1')} twice")
            value = self._headers[name] + b", " + value
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        limits, headers = self.server.limits, self._headers
        size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in headers.items())
        if size > limits.head_bytes:
            raise _large_head(limits)
        request = Request(self, self.parser.get_method().decode("ascii"), _path(self._url), headers)
        request.keep_alive = self.parser.should_keep_alive()
        self._incoming, self.reading, self.phase_began = request, "body", self.server.now()
        self._head_bytes, self._blocks, self._body_buffer, self._received = 0, [], None, 0
        if len(self.waiting) >= MOST_PIPELINED:
            raise _malformed(f"comes before the answers to {MOST_PIPELINED} others on its connection")
        length = int(headers.get(b"content-length", 0))
        try:
            self._max_body_bytes = self.server.application.admit(request)
        except RequestFault as fault:
            if length > LARGE_BODY:
                raise
            # A short body is read to its end, so that the connection can stay.
            self.server.application.refused(request, fault)
            request.refused, self._max_body_bytes = fault, LARGE_BODY
        if length:
            if length > self._max_body_bytes:
                raise body_too_large(self._max_body_bytes)
            if length >= LARGE_BODY:
                # The kernel provides the memory as it is filled.
                self._body_buffer = bytearray(length)
        if self.current is None and headers.get(b"expect", b"").lower() == b"100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, block: bytes) -> None:
        request, at = self._incoming, self._received
        assert request is not None
        self._head_bytes = 0
        self._received += len(block)
        if self._received > self._max_body_bytes:
            raise body_too_large(self._max_body_bytes)
        self._reserve_memory(request, len(block))
        if self._body_buffer is not None:
            self._body_buffer[at : self._received] = block
        else:
            self._blocks.append(block)

    def on_message_complete(self) -> None:
        request = self._incoming
        assert request is not None
        blocks = self._blocks
        if self._body_buffer is not None:
            request.body = self._body_buffer
        elif blocks:
            request.body = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        self._incoming, self._body_buffer, self._blocks = None, None, []
        self._head_bytes = 0
        self.reading, self.phase_began = "idle", self.server.now()
        self.waiting.append(request)
        self._handle_next()

    # --- requests ---

    def _handle_next(self) -> None:
        """Handle the next request if none is active and the client reads its responses."""
        server = self.server
        while self.waiting and self.current is None and self.write_blocked_since is None:
            if self.ending not in ("", "answered"):
                return  # the last response announced the end
            request = self.current = self.waiting.popleft()
            server.active_requests += 1
            try:
                if request.refused is not None:
                    raise request.refused
                if server.active_requests > server.limits.requests:
                    problem = f"has {server.limits.requests} requests at work, which is the most"
                    fault = RequestFault("the server", problem, "Ask again later.", 503, "requests")
                    server.application.refused(request, fault)
                    raise fault
                server.application.handle(request)
            except Exception as error:  # noqa: BLE001 - the client gets a response for every error
                request.fail(error)

    def respond(self, request: Request, response: HttpResponse) -> None:
        """Write the response to the active request; nothing if its client is gone."""
        if self.current is not request:
            return
        length = sum(map(len, response.body))
        last = self._is_last(request)
        head = self._head(response.status, response.headers, f"content-length: {length}\r\n", last)
        if request.method == "HEAD" or not length:
            self.transport.write(head)
        elif length < LARGE_BODY:
            self.transport.write(b"".join((head, *response.body)))
        else:
            self.transport.writelines((head, *response.body))
        self._end_request(request, last)

    def begin_stream(self, request: Request, headers: tuple[tuple[str, str], ...]) -> None:
        """Write the head of a response in chunks to the active request; nothing if its client is gone."""
        if self.current is request:
            request.keep_alive = not self._is_last(request)
            length = "transfer-encoding: chunked\r\n"
            self.transport.write(self._head(200, headers, length, not request.keep_alive))

    def write_stream(self, request: Request, data: bytes) -> None:
        """Write to the active request; nothing if its client is gone."""
        if self.current is request:
            self.transport.write(data)

    def end_response(self, request: Request) -> None:
        """The streamed response is written."""
        if self.current is request:
            self._end_request(request, not request.keep_alive)

    def _is_last(self, request: Request) -> bool:
        """Whether the connection closes after the response to this request."""
        return (
            not request.keep_alive or self.server.closing or (self.ending == "answered" and not self.waiting)
        )

    def _head(self, status: int, headers: tuple[tuple[str, str], ...], length: str, last: bool) -> bytes:
        lines = [_REASONS.get(status) or f"HTTP/1.1 {status} \r\n", self.server.date]
        lines += [f"{name}: {value}\r\n" for name, value in headers]
        lines += [length, "connection: close\r\n\r\n" if last else "\r\n"]
        return "".join(lines).encode("latin-1")

    def _end_request(self, request: Request, last: bool) -> None:
        """The active request has its response: close the connection, or handle the next."""
        server = self.server
        self.current = None
        server.active_requests -= 1
        self._release_memory(request)
        if last:
            self._close_after_response()
        else:
            self.phase_began = server.now() if self.reading == "idle" else self.phase_began
            self._handle_next()

    def _refuse(self, fault: RequestFault) -> None:
        """Reject the incoming request in its turn, and close: its end is unknown."""
        if self.ending:
            return  # no more requests are handled
        request = self._incoming or Request(self, "", "", {})
        self.server.application.refused(self._incoming, fault)
        self._incoming, self._body_buffer, self._blocks = None, None, []
        request.refused, self.ending, self._received = fault, "answered", 0
        self.waiting.append(request)
        self._handle_next()

    def expire(self, now: float) -> None:
        """Enforce the time limits."""
        limits, elapsed = self.server.limits, now - self.phase_began
        if self.write_blocked_since is not None and now - self.write_blocked_since > limits.send_s:
            self.transport.abort()
        elif self.ending == "lingering":
            if elapsed > LINGER_S:
                self.transport.abort()
        elif self.ending:
            return
        elif self.reading == "head" and elapsed > limits.head_s:
            self._refuse(_timed_out("a head", limits.head_s, "head_time"))
        elif self.reading == "body" and elapsed > limits.body_s:
            self._refuse(_timed_out("a body", limits.body_s, "body_time"))
        elif self.idle and elapsed > limits.idle_s:
            self.transport.close()

    @property
    def idle(self) -> bool:
        """Whether it has no request, active or incoming."""
        return self.reading == "idle" and self.current is None and not self.waiting and not self.ending

    def _close_after_response(self) -> None:
        """Close after the response. Read on first: the kernel drops the response if unread bytes are left."""
        if self.ending == "answered" and self.transport.can_write_eof():
            self.ending, self.phase_began = "lingering", self.server.now()
            self.transport.write_eof()
        else:
            self.ending = "closed"
            self.transport.close()

    def _reserve_memory(self, request: Request, size: int) -> None:
        server = self.server
        if server.held_bytes + size > server.limits.held_bytes:
            problem = (
                f"holds bodies of {server.held_bytes} bytes, and at most {server.limits.held_bytes} at once"
            )
            raise RequestFault("the server", problem, "Ask again later, or in smaller parts.", 503, "memory")
        server.held_bytes += size
        request.held += size

    def _release_memory(self, request: Request | None) -> None:
        if request is not None:
            self.server.held_bytes -= request.held
            request.held = 0


class HttpServer:
    """Serves an application on a socket."""

    def __init__(
        self, application: Application, limits: RequestLimits, tls: ssl.SSLContext | None = None
    ) -> None:
        self.application, self.limits, self.tls = application, limits, tls
        self.connections: set[ServerConnection] = set()
        self.active_requests = 0
        self.held_bytes = 0
        self.closing = False
        self.date = ""
        self.now: Callable[[], float] = asyncio.get_running_loop().time

    @asynccontextmanager
    async def run(self, listener: socket, grace_s: float) -> AsyncIterator[None]:
        """Serve while the block runs; then finish the active requests, for at most `grace_s`."""
        loop = asyncio.get_running_loop()
        self._update_date()
        sweeping = asyncio.create_task(self._expire_connections())
        server = await loop.create_server(
            lambda: ServerConnection(self), sock=listener, ssl=self.tls, backlog=BACKLOG
        )
        try:
            yield
        finally:
            self.closing = True
            server.close()
            for connection in tuple(self.connections):
                if connection.idle or connection.ending == "lingering":
                    connection.transport.close()
            until = self.now() + grace_s
            while self.connections and self.now() < until:
                await asyncio.sleep(0.01)
            sweeping.cancel()
            for connection in tuple(self.connections):
                connection.transport.abort()
            # Let the loop call connection_lost.
            await asyncio.sleep(0)

    def make_room(self) -> bool:
        """Whether there is room for another connection; closes an idle one if necessary."""
        if len(self.connections) < self.limits.connections:
            return True
        idle = next((connection for connection in self.connections if connection.idle), None)
        if idle is not None:
            self.connections.discard(idle)
            idle.transport.close()
        return idle is not None

    async def _expire_connections(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._update_date()
            now = self.now()
            for connection in tuple(self.connections):
                connection.expire(now)

    def _update_date(self) -> None:
        self.date = f"date: {formatdate(usegmt=True)}\r\n"


def _path(url: bytes) -> str:
    """The path of a URL. Raises RequestFault if there is none."""
    try:
        if b"?" in url or not url.startswith(b"/"):
            url = httptools.parse_url(url).path or b"/"
        text = url.decode("ascii")
        return unquote(text, errors="strict") if "%" in text else text
    except (httptools.HttpParserError, ValueError):
        raise _malformed("asks for what is no path") from None


def _malformed(problem: str) -> RequestFault:
    return RequestFault(REQUEST, problem, "Send HTTP/1.1.", 400, "malformed")


def _large_head(limits: RequestLimits) -> RequestFault:
    problem = f"has a head of more than the {limits.head_bytes} bytes that are taken"
    return RequestFault(REQUEST, problem, "Send fewer or shorter headers.", 431, "head")


def _timed_out(what: str, limit_s: float, reason: str) -> RequestFault:
    return RequestFault(
        REQUEST, f"has {what} that did not come within {limit_s:g} s", "Send it again.", 408, reason
    )

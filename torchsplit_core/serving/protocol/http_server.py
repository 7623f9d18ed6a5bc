"""HTTP/1.1 for the front and the router: httptools parses, limits hold before any handler sees a byte.

A connection is read up to a head, a body and a time that are limited, and has one request at work; what it sends
meanwhile waits in order. Everything runs in the event loop's thread, in callbacks: a request makes no task.
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
from torchsplit_core.serving.settings import Limits

MOST_PIPELINED = 32
"""Requests of a connection that wait for the one at work."""
LINGER_S = 2.0
"""How long a client that was refused in the middle of its request is heard out, so that it reads the answer."""
SWEEP_S = 0.5
"""Between two looks at connections whose time may be over."""
LARGE_BODY = 64 * 1024
"""A body whose length is told is received in place from here on, an answer is written block by block; what nothing is
read of may have so many bytes."""
JSON = (("content-type", "application/json"),)
_SINGLE_HEADERS = frozenset(
    (b"host", b"content-length", b"authorization", b"origin", b"inference-header-content-length")
)
_REASONS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus} | {
    499: "HTTP/1.1 499 Client Closed Request\r\n"
}


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a request is answered with; `body` is written block by block, uncopied."""

    status: int
    body: tuple[bytes | memoryview, ...] = ()
    headers: tuple[tuple[str, str], ...] = JSON


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """An answer in JSON."""
    text = json.dumps(content, separators=(",", ":")).encode()
    return HttpResponse(status, (text,), (*JSON, *(headers or {}).items()))


def error_response(fault: RequestFault) -> HttpResponse:
    """The answer that says why a request is not served."""
    return json_response({"error": str(fault)}, fault.status, fault.headers)


def check_method(request: Request, *methods: str) -> None:
    """Raises RequestFault where a path does not take the request's method; who takes GET takes HEAD."""
    accepted = (*methods, "HEAD") if "GET" in methods else methods
    if request.method not in accepted:
        problem, allowed = f"does not take {request.method}", ", ".join(accepted)
        raise RequestFault(request.path, problem, f"Send {allowed}.", 405, "", {"allow": allowed})


class Request:
    """A request as it came. `headers` by names in lower case; `path` unquoted, without its query."""

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
        self.gone: Callable[[], None] | None = None
        """What is called where the client goes away before its answer."""

    def header(self, name: bytes) -> str:
        """A header's value, empty where it is not there."""
        return self.headers.get(name, b"").decode("latin-1")

    def reply(self, response: HttpResponse) -> None:
        """Answer it; once, and from the event loop."""
        self.connection.respond(self, response)

    def fail(self, error: BaseException) -> None:
        """Answer with what went wrong: a RequestFault in its words, anything else as a fault of ours."""
        if not isinstance(error, RequestFault):
            traceback.print_exception(error, file=sys.stderr)
            remedy = "Report it with the server's log."
            error = RequestFault(REQUEST, f"met an internal fault ({type(error).__name__})", remedy, 500)
        self.reply(error_response(error))


class Application(Protocol):
    """What answers."""

    def admit(self, request: Request) -> int:
        """Bytes that the body may have, asked when the head is there. Raises RequestFault to refuse it."""
        ...

    def handle(self, request: Request) -> None:
        """See that `request.reply` or `request.fail` is called, now or later. May raise RequestFault."""
        ...

    def refused(self, request: Request | None, fault: RequestFault) -> None:
        """Hears of what was refused before it could be handled."""
        ...


class ServerConnection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.parser = httptools.HttpRequestParser(self)
        self.transport: Any = None
        self.phase_began = server.now()
        """When what is being read began, or the connection became idle."""
        self.reading = "idle"
        self.current: Request | None = None
        self.waiting: deque[Request] = deque()
        self.write_blocked_since: float | None = None
        """Since when the client takes no more of its answer."""
        self.ending = ""
        """"answered": to be closed with the next answer; "lingering": heard out, unread; "closed"."""
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
        # Not heard out: whoever opens thousands would keep them all.
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
            # The request is answered as any other; what follows it would be of a protocol that is not spoken here.
            if self.current is None and not self.waiting:
                self._close_after_response()
            else:
                self.ending = "answered"
        except httptools.HttpParserCallbackError as error:
            # What one of the callbacks below has raised.
            if not isinstance(error.__context__, RequestFault):
                raise
            self._refuse(error.__context__)
        except httptools.HttpParserError as error:
            self._refuse(_malformed(f"is not HTTP/1.1: {error}"))
        else:
            # Behind a body's last chunk too: what is no body is a head.
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
            # What is short is read to its end, and the connection stays.
            self.server.application.refused(request, fault)
            request.refused, self._max_body_bytes = fault, LARGE_BODY
        if length:
            if length > self._max_body_bytes:
                raise body_too_large(self._max_body_bytes)
            if length >= LARGE_BODY:
                # Takes memory as it is filled, not as it is told.
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
        """Begin with the next request where none is at work and the client takes its answers."""
        server = self.server
        while self.waiting and self.current is None and self.write_blocked_since is None:
            if self.ending not in ("", "answered"):
                return  # the end was told with the last answer
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
            except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
                request.fail(error)

    def respond(self, request: Request, response: HttpResponse) -> None:
        """Write the answer to the request at work; nothing where its client is gone."""
        if self.current is not request:
            return
        server = self.server
        self.current = None
        server.active_requests -= 1
        self._release_memory(request)
        last = not request.keep_alive or server.closing or (self.ending == "answered" and not self.waiting)
        length = sum(map(len, response.body))
        lines = [_REASONS.get(response.status) or f"HTTP/1.1 {response.status} \r\n", server.date]
        lines += [f"{name}: {value}\r\n" for name, value in response.headers]
        lines.append(
            f"content-length: {length}\r\nconnection: close\r\n\r\n"
            if last
            else f"content-length: {length}\r\n\r\n"
        )
        head = "".join(lines).encode("latin-1")
        if request.method == "HEAD" or not length:
            self.transport.write(head)
        elif length < LARGE_BODY:
            self.transport.write(b"".join((head, *response.body)))
        else:
            self.transport.writelines((head, *response.body))
        if last:
            self._close_after_response()
        else:
            self.phase_began = server.now() if self.reading == "idle" else self.phase_began
            self._handle_next()

    def _refuse(self, fault: RequestFault) -> None:
        """Answer in its turn that what comes cannot be served, and close: where its end is, nobody knows."""
        if self.ending:
            return  # behind the last request whose answer was written with its end
        request = self._incoming or Request(self, "", "", {})
        self.server.application.refused(self._incoming, fault)
        self._incoming, self._body_buffer, self._blocks = None, None, []
        request.refused, self.ending, self._received = fault, "answered", 0
        self.waiting.append(request)
        self._handle_next()

    def expire(self, now: float) -> None:
        """End what takes longer than it may."""
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
        """Whether no request of it is at work or being read."""
        return self.reading == "idle" and self.current is None and not self.waiting and not self.ending

    def _close_after_response(self) -> None:
        """Close after the answer: unread bytes would make the kernel take it back, so they are read first."""
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
    """An application on a socket."""

    def __init__(self, application: Application, limits: Limits, tls: ssl.SSLContext | None = None) -> None:
        self.application, self.limits, self.tls = application, limits, tls
        self.connections: set[ServerConnection] = set()
        self.active_requests = 0
        self.held_bytes = 0
        self.closing = False
        self.date = ""
        self.now: Callable[[], float] = asyncio.get_running_loop().time

    @asynccontextmanager
    async def run(self, listener: socket, grace_s: float) -> AsyncIterator[None]:
        """Answer on the socket; at the end what was taken is answered, at most for so long."""
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
            # The loop tells the connections so in its next round.
            await asyncio.sleep(0)

    def make_room(self) -> bool:
        """Whether another connection can be had; one that is idle gives way to it."""
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
    """Raises RequestFault for what is no path."""
    try:
        if b"?" in url or not url.startswith(b"/"):
            url = httptools.parse_url(url).path or b"/"
        text = url.decode("ascii")
        return unquote(text, errors="strict") if "%" in text else text
    except (httptools.HttpParserError, ValueError):
        raise _malformed("asks for what is no path") from None


def _malformed(problem: str) -> RequestFault:
    return RequestFault(REQUEST, problem, "Send HTTP/1.1.", 400, "malformed")


def _large_head(limits: Limits) -> RequestFault:
    problem = f"has a head of more than the {limits.head_bytes} bytes that are taken"
    return RequestFault(REQUEST, problem, "Send fewer or shorter headers.", 431, "head")


def _timed_out(what: str, limit_s: float, reason: str) -> RequestFault:
    return RequestFault(
        REQUEST, f"has {what} that did not come within {limit_s:g} s", "Send it again.", 408, reason
    )

"""The limits of a connection: bytes, times, counts; what is refused is told in JSON and stops nobody else."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from torchsplit_core.serving.protocol.http_server import HttpResponse, HttpServer, Request, json_response
from torchsplit_core.serving.protocol.listener import open_listener
from torchsplit_core.serving.protocol.tensors import RequestFault
from torchsplit_core.serving.settings import RequestLimits

LIMITS = RequestLimits(head_bytes=1000, head_s=60, body_s=60, send_s=60, idle_s=60, body_bytes=10_000)
SHORT = replace(LIMITS, head_s=0.3, body_s=0.3, send_s=0.3)
"""For those who pass a limit of time: others may be stopped for as long by the machine."""


@dataclass
class Echo:
    """Answers with what it got; `/held` when it is let go, `/broken` with a fault of its own."""

    most: int = 10_000
    reasons: list[str] = field(default_factory=list)
    held: list[Request] = field(default_factory=list)
    gone: int = 0

    def admit(self, request: Request) -> int:
        if request.path == "/closed":
            raise RequestFault("the request", "is not wanted", "Go.", 403, "host")
        return self.most

    def handle(self, request: Request) -> None:
        if request.path == "/broken":
            raise KeyError("broken")
        if request.path == "/held":
            self.held.append(request)
            request.gone = self._count
        elif request.path == "/large":
            request.reply(HttpResponse(200, (bytes(30_000_000),)))
        else:
            body = bytes(request.body).decode()
            request.reply(json_response({"method": request.method, "path": request.path, "body": body}))

    def refused(self, request: Request | None, fault: RequestFault) -> None:
        self.reasons.append(fault.reason)

    def _count(self) -> None:
        self.gone += 1


@dataclass
class Client:
    """A connection spoken to in bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self) -> tuple[int, Any, dict[str, str]]:
        """Status, JSON and headers of the next answer."""
        async with asyncio.timeout(50):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            lines = head.split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
            body = await self.reader.readexactly(int(headers["content-length"]))
            return int(lines[0].split()[1]), json.loads(body or b"null"), headers

    async def ask(self, text: str) -> tuple[int, Any, dict[str, str]]:
        """Send bytes, and the answer."""
        self.writer.write(text.encode("latin-1"))
        return await self.answer()

    async def ended(self) -> bool:
        """Whether the server closes the connection without another byte."""
        async with asyncio.timeout(50):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


Open = Callable[[], Awaitable[Client]]


@asynccontextmanager
async def served(limits: RequestLimits = LIMITS) -> AsyncIterator[tuple[Open, HttpServer, Echo]]:
    """A server of Echo, with a way to open a connection to it."""
    echo = Echo()
    with open_listener("127.0.0.1", 0) as listener:
        server = HttpServer(echo, limits)

        async def opened():
            return Client(*await asyncio.open_connection(*listener.getsockname()))

        async with server.run(listener, 20):
            yield opened, server, echo
        assert not server.connections and not server.active_requests and not server.held_bytes


GET = "GET {} HTTP/1.1\r\nhost: x\r\n\r\n"


async def test_requests_are_answered_in_turn_on_one_connection():
    async with served() as (opened, server, echo):
        client = await opened()
        status, told, headers = await client.ask(
            "POST /a%20b?c=d HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi"
        )
        assert (status, told) == (200, {"method": "POST", "path": "/a b", "body": "hi"})
        assert headers["date"].endswith("gmt") and "connection" not in headers
        chunked = (
            "POST /c HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
        )
        assert (await client.ask(chunked))[1]["body"] == "abc"
        client.writer.write((GET.format("/held") + GET.format("/1") + GET.format("/2")).encode())
        while not echo.held:
            await asyncio.sleep(0.01)
        assert server.active_requests == 1
        echo.held[0].reply(json_response("first"))
        assert [(await client.answer())[1] for _ in range(3)] == [
            "first", {"method": "GET", "path": "/1", "body": ""}, {"method": "GET", "path": "/2", "body": ""},
        ]  # fmt: skip
        expecting = "POST /e HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n"
        client.writer.write(expecting.encode())
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await client.ask("ok"))[1]["body"] == "ok"
        head = await opened()
        head.writer.write(b"HEAD /h HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        text = await head.reader.read()
        assert text.startswith(b"HTTP/1.1 200") and text.endswith(b"\r\n\r\n")
        assert b"content-length: 39" in text


@pytest.mark.parametrize(("text", "status", "reason"), [
    ("GET / HTTP/1.1\r\n" + "x-a: bbbbbbbbbb\r\n" * 100, 431, "head"),
    ("GET / HTTP/1.1\r\nx: " + "b" * 2000 + "\r\n\r\n", 431, "head"),
    (GET.format("/" + "a" * 2000), 431, "head"),
    ("POST / HTTP/1.1\r\ncontent-length: 10001\r\n\r\n", 413, "body"),
    ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2712\r\n" + "a" * 10002 + "\r\n", 413, "body"),
    ("POST /closed HTTP/1.1\r\ncontent-length: 100000\r\n\r\n", 403, "host"),
    ("POST / HTTP/1.1\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n", 400, "malformed"),
    ("POST / HTTP/1.1\r\ncontent-length: 9\r\ncontent-length: 8\r\n\r\n", 400, "malformed"),
    ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400, "malformed"),
    ("GET /%ff HTTP/1.1\r\n\r\n", 400, "malformed"),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed"),
    ("\x16\x03\x01\x02\x00", 400, "malformed"),
    ("GET / HT", 408, "head_time"),
    ("POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nabc", 408, "body_time"),
])  # fmt: skip
async def test_what_passes_a_limit_is_told_so_and_cut_off(text, status, reason):
    async with served(SHORT if status == 408 else LIMITS) as (opened, _, echo):
        client, other = await opened(), await opened()
        found, told, headers = await client.ask(text)
        assert (found, echo.reasons) == (status, [reason])
        assert told["error"].count(". ") == 1 and headers["connection"] == "close"
        assert (await other.ask(GET.format("/")))[0] == 200
        assert await client.ended()


CHUNKED = "POST /t HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"


async def test_headers_behind_a_body_are_limited_as_those_before_it_and_change_nothing():
    async with served() as (opened, server, echo):
        client = await opened()
        client.writer.write((CHUNKED + "host: y\r\nx: y\r\n\r\n" + CHUNKED).encode())
        assert (await client.answer())[:2] == (200, {"method": "POST", "path": "/t", "body": "a"})
        await asyncio.sleep(0.05)  # what follows comes by itself
        for trailers in (["x: " + "b" * 2000], ["x: b\r\n" * 100] * 2):
            for part in trailers:
                client.writer.write(part.encode())
                await asyncio.sleep(0.05)
            assert (await client.answer())[0] == 431 and await client.ended()
            client = await opened()
            client.writer.write(CHUNKED.encode())
            while server.held_bytes != 1:
                await asyncio.sleep(0.01)
        assert echo.reasons == ["head", "head"]
        client.writer.close()


@pytest.mark.parametrize("last", ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nconnection: close\r\n\r\n"])
async def test_what_follows_the_last_request_is_no_fault_of_ours(last, caplog):
    async with served() as (opened, _, echo):
        client = await opened()
        assert (await client.ask(last + "garbage"))[0] == 200
        assert await client.ended() and echo.reasons == []
    assert not caplog.records


async def test_what_waits_behind_the_last_request_is_not_begun(caplog):
    async with served() as (opened, _, echo):
        client = await opened()
        client.writer.write((GET.format("/held") + "GET /last HTTP/1.0\r\n\r\n" + "garbage").encode())
        while not echo.held or echo.reasons != ["malformed"]:
            await asyncio.sleep(0.01)
        echo.held[0].reply(json_response("first"))
        assert [(await client.answer())[0] for _ in range(2)] == [200, 200] and await client.ended()
    assert not caplog.records


async def test_a_refusal_that_is_short_leaves_the_connection():
    async with served() as (opened, _, echo):
        client = await opened()
        assert (await client.ask("POST /closed HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"))[0] == 403
        assert (await client.ask(GET.format("/")))[0] == 200 and echo.reasons == ["host"]


async def test_a_fault_of_ours_is_an_answer_in_json(capsys):
    async with served() as (opened, _, _):
        client = await opened()
        status, told, _ = await client.ask(GET.format("/broken"))
        assert status == 500 and "internal fault (KeyError)" in told["error"]
        assert (await client.ask(GET.format("/")))[0] == 200
    assert "KeyError" in capsys.readouterr().err


async def test_a_client_that_goes_away_is_told_of():
    async with served() as (opened, _, echo):
        client = await opened()
        client.writer.write(GET.format("/held").encode())
        while not echo.held:
            await asyncio.sleep(0.01)
        client.writer.close()
        while not echo.gone:
            await asyncio.sleep(0.01)
        echo.held[0].reply(json_response("too late"))


async def test_a_client_that_takes_no_answer_is_cut_off():
    async with served(SHORT) as (opened, server, _):
        client = await opened()
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(GET.format("/large").encode())
        while server.connections:
            await asyncio.sleep(0.05)


async def test_so_many_connections_and_idle_ones_give_way():
    async with served(replace(LIMITS, connections=3)) as (opened, _, echo):
        busy = [await opened() for _ in range(2)]
        for client in busy:
            client.writer.write(GET.format("/held").encode())
        idle = await opened()
        assert (await idle.ask(GET.format("/")))[0] == 200
        another = await opened()
        assert (await another.ask(GET.format("/")))[0] == 200 and await idle.ended()
        another.writer.write(GET.format("/held").encode())
        while len(echo.held) < 3:
            await asyncio.sleep(0.01)
        status, told, _ = await (await opened()).answer()
        assert status == 503 and "3 connections" in told["error"] and echo.reasons == ["connections"]
        for request in echo.held:
            request.reply(json_response("held"))
        assert [(await client.answer())[1] for client in (*busy, another)] == ["held"] * 3


async def test_so_many_requests_and_bytes_at_once():
    async with served(replace(LIMITS, requests=1, held_bytes=10000)) as (opened, server, echo):
        first, second = await opened(), await opened()
        first.writer.write(b"POST /held HTTP/1.1\r\ncontent-length: 5000\r\n\r\n" + bytes(5000))
        while not echo.held:
            await asyncio.sleep(0.01)
        status, told, headers = await second.ask(GET.format("/"))
        assert status == 503 and "1 requests" in told["error"] and headers["retry-after"] == "1"
        third = await opened()
        status, told, _ = await third.ask("POST / HTTP/1.1\r\ncontent-length: 6000\r\n\r\n" + "a" * 6000)
        assert status == 503 and "5000 bytes" in told["error"] and echo.reasons == ["requests", "memory"]
        echo.held[0].reply(json_response("held"))
        assert (await first.answer())[1] == "held" and server.held_bytes == 0
        assert (await second.ask(GET.format("/")))[0] == 200


async def test_what_was_taken_is_answered_at_the_end():
    answers = []
    async with served() as (opened, _, echo):
        client = await opened()
        answers.append(asyncio.create_task(client.ask(GET.format("/held"))))
        while not echo.held:
            await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        loop.call_later(0.2, lambda: echo.held[0].reply(json_response("done")))
    _, body, headers = await answers[0]
    assert body == "done" and headers["connection"] == "close"


async def test_many_pipelined_requests_wait_up_to_a_limit():
    async with served() as (opened, _, echo):
        client = await opened()
        client.writer.write(GET.format("/held").encode() + GET.format("/").encode() * 40)
        while not echo.held:
            await asyncio.sleep(0.01)
        echo.held[0].reply(json_response("held"))
        statuses = [(await client.answer())[0] for _ in range(34)]
        assert statuses == [200] * 33 + [400] and await client.ended()

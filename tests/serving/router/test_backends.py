"""The router in front of servers that drip, never end, lie or are silent; many that wait; connections that are kept."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from torchsplit_core.serving.protocol.http_body import content_headers
from torchsplit_core.serving.protocol.http_server import HttpServer
from torchsplit_core.serving.protocol.listener import open_listener
from torchsplit_core.serving.protocol.tensors import LENGTH_HEADER
from torchsplit_core.serving.router import app
from torchsplit_core.serving.router import backend as connections
from torchsplit_core.serving.router.app import Router
from torchsplit_core.serving.settings import AccessSettings, RequestLimits
from torchsplit_core.values.serving.routes import (
    RoutedModel,
    RoutedOutput,
    RoutedTensor,
    Routes,
    RouteServer,
    RouteStep,
)

Writes = Callable[[asyncio.StreamWriter], Awaitable[None]]

ASKED = {"inputs": [{"name": "v0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
METADATA = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "output_0", "datatype": "FP32", "shape": [-1, 2]}],
}


def answer(content: Any, status: int = 200, **headers: str) -> bytes:
    """A whole HTTP answer."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    told = {"content-length": str(len(body)), **headers}
    lines = [f"HTTP/1.1 {status} OK", *(": ".join(pair) for pair in told.items()), "", ""]
    return "\r\n".join(lines).encode() + body


def tensors(rows: int = 1) -> bytes:
    """What a part gives."""
    size = {"binary_data_size": 8 * rows}
    entry = {"name": "output_0", "datatype": "FP32", "shape": [rows, 2], "parameters": size}
    text = json.dumps({"outputs": [entry]}).encode()
    return answer(text + bytes(8 * rows), **content_headers(len(text)))


@dataclass
class Backend:
    """A server that answers questions for metadata with `about`, others with `gives`: bytes, or what writes them."""

    gives: bytes | Writes = field(default_factory=tensors)
    about: bytes = field(default_factory=lambda: answer(METADATA))
    connections: int = 0
    open: int = 0
    asked: int = 0
    port: int = 0
    reads: bool = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = (line.partition(": ") for line in head.split("\r\n")[1:])
                told = {name.lower(): value for name, _, value in lines}
                if self.reads:
                    await reader.readexactly(int(told["content-length"]))
                if head.startswith("GET"):
                    writer.write(self.about)
                    continue
                self.asked += 1
                if isinstance(self.gives, bytes):
                    writer.write(self.gives)
                else:
                    await self.gives(writer)
        self.open -= 1
        writer.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def model(name: str, *steps: list[str]) -> RoutedModel:
    """A model through these servers, part after part."""
    parts = tuple(
        RouteStep(f"{name}-{number}", (f"v{number}",), (f"v{number + 1}",), tuple(map(RouteServer, urls)))
        for number, urls in enumerate(steps)
    )
    gives = (RoutedOutput("output_0", "FP32", (-1, 2), f"v{len(steps)}"),)
    return RoutedModel(name, (RoutedTensor("v0", "FP32", (-1, 2)),), gives, parts)


@dataclass
class Asking:
    """A client of a router."""

    port: int

    async def __call__(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON (or text) of an answer."""
        content = b"" if body is None else json.dumps(body).encode()
        verb = "GET" if body is None else "POST"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"{verb} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(content)}\r\n\r\n"
        try:
            writer.write(head.encode() + content)
            told, _, text = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        status = int(told.split(b" ", 2)[1])
        with suppress(ValueError):
            return status, json.loads(text)
        return status, text.decode()

    async def infer(self, name: str = "m") -> tuple[int, Any]:
        """An inference of one row."""
        return await self(f"/v2/models/{name}/infer", ASKED)


@asynccontextmanager
async def routing(
    backends: list[Backend], *models: Callable[[], RoutedModel], timeout_s: float = 20.0
) -> Any:
    """The router of models over these servers, all in this loop."""
    loop = asyncio.get_running_loop()
    servers = []
    for backend in backends:
        server = await asyncio.start_server(backend.serve, "127.0.0.1", 0, limit=2**20)
        backend.port = server.sockets[0].getsockname()[1]
        servers.append(server)
    held = open_listener("127.0.0.1", 0)
    with held as listener:
        routes = Routes(tuple(made() for made in models))
        router = Router(routes, timeout_s, AccessSettings(), RequestLimits())
        async with HttpServer(router, RequestLimits()).run(listener, 1):
            yield Asking(listener.getsockname()[1])
    for server in servers:
        server.close()
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("count", [2, 3])
async def test_several_models_have_one_address_and_series_of_their_own(count):
    one, names = Backend(), [f"model{number}" for number in range(count)]
    made = [lambda name=name: model(name, [one.url], [one.url]) for name in names]
    async with routing([one], *made) as ask:
        for name in names:
            status, told = await ask.infer(name)
            assert status == 200 and told["model_name"] == name
        for name in ("other", "another"):
            assert (await ask.infer(name))[0] == 404
        _, metrics = await ask("/metrics")
    for name in names:
        assert f'torchsplit_route_requests_total{{code="200",model="{name}"}} 1.0' in metrics
    assert "other" not in metrics


async def drip(writer: asyncio.StreamWriter) -> None:
    """A byte again and again, which no limit of silence would end."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def drip_heads(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


async def silence(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def endless_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + bytes(2**16) + b"\r\n")
        await writer.drain()


async def endless_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: " + b"a" * 2**16 + b"\r\n")
        await writer.drain()


async def endless_line(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nx-more: ")
    while True:
        writer.write(bytes(b"a" * 2**16))
        await writer.drain()


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def half(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{")
    writer.close()


BAD: list[tuple[bytes | Writes, int, str]] = [
    (drip, 504, "no answer within 0.5 s"),
    (drip_heads, 504, "no answer within 0.5 s"),
    (silence, 504, "no answer within 0.5 s"),
    (endless_body, 502, "gave an answer of more than"),
    (endless_head, 502, "no answer that can be read"),
    (endless_line, 502, "no answer that can be read"),
    (half, 502, "no answer that can be read"),
    (b"220 mail.example ESMTP\r\n\r\n", 502, "no answer that can be read"),
    (answer({}, 999), 502, "the status 999"),
    (hang_up, 503, "no server that can be reached"),
]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(("gives", "status", "words"), BAD, ids=lambda one: getattr(one, "__name__", ""))
async def test_no_server_holds_a_request_longer_or_larger_than_it_may(gives, status, words, cut):
    bad, good = Backend(gives), Backend()
    limit_s = 0.5 if status == 504 else 30.0

    def made():
        return model("m", *([[good.url], [bad.url]] if cut else [[bad.url]]))

    async with routing([bad, good], made, timeout_s=limit_s) as ask:
        found, told = await ask.infer()
        assert found == status, told
        assert words in told["error"]
        assert told["error"].startswith(("m: ", "m-"))
        assert f'code="{status}",model="m"' in (await ask("/metrics"))[1]


async def test_another_server_is_asked_where_one_gives_nothing_that_can_be_read():
    bad, good = Backend(half), Backend()
    async with routing([bad, good], lambda: model("m", [bad.url, good.url], [good.url])) as ask:
        for _ in range(4):
            assert (await ask.infer())[0] == 200
    assert bad.asked == 4


async def test_a_whole_models_answer_may_have_what_as_many_rows_as_fit_into_the_request_need(monkeypatch):
    monkeypatch.setattr("torchsplit_core.serving.router.load_balancer.LARGEST_TEXT", 200)
    backend = Backend()
    # Two numbers a row: at least four bytes of the request, at most 52 of the answer.
    most = 200 + len(json.dumps(ASKED)) // 4 * 52
    async with routing([backend], lambda: model("m", [backend.url])) as ask:
        for size, status in ((most, 200), (most + 1, 502)):
            backend.gives = answer(b"1" * size)
            assert (await ask.infer())[0] == status


async def test_an_answer_may_have_what_its_rows_need_and_no_more(monkeypatch):
    monkeypatch.setattr("torchsplit_core.serving.router.load_balancer.LARGEST_TEXT", 200)
    one, rows = Backend(), 30
    body = {"inputs": [{"name": "v0", "datatype": "FP32", "shape": [rows, 2], "data": [0] * 2 * rows}]}
    async with routing([one], lambda: model("m", [one.url], [one.url])) as ask:
        # Two numbers of four bytes a row beside its JSON.
        one.gives = tensors(rows)
        assert (await ask("/v2/models/m/infer", body))[0] == 200
        one.gives = answer(bytes(200 + rows * 8 + 1))
        status, told = await ask("/v2/models/m/infer", body)
        assert status == 502 and f"more than {200 + rows * 8} bytes" in told["error"]
        monkeypatch.setattr(app, "LARGEST_TEXT", 200)
        for json_bytes in ("201", "no number", "9" * 5000):
            one.gives = answer(bytes(201), **{LENGTH_HEADER: json_bytes})
            status, told = await ask("/v2/models/m/infer", body)
            assert status == 502 and "more than 200 bytes of JSON" in told["error"]


@pytest.mark.parametrize(("about", "status", "words"), [
    (answer(b"<html>"), 502, "names no inputs"),
    (answer({"name": "m"}), 502, "names no inputs"),
    (answer([]), 502, "names no inputs"),
    (answer({"inputs": [{}]}), 502, "names no inputs"),
    (answer(b"[" * 100_000), 502, "names no inputs"),
    (answer({**METADATA, "outputs": [{"name": "y", "datatype": [], "shape": [1]}]}), 502, "names no inputs"),
    (answer({**METADATA, "outputs": [{"name": "y", "datatype": "FP32", "shape": ["a"]}]}), 502, "inputs"),
    (answer({"inputs": [{"name": "x"}, {"name": "y"}]}), 502, "takes x, y, not v0"),
    (answer({"error": "no such"}, 404), 502, "answers 404"),
    (answer({"error": "later"}, 503), 503, "can be reached"),
    (b"SSH-2.0-x\r\n\r\n", 502, "no answer that can be read"),
], ids=lambda one: "")  # fmt: skip
async def test_metadata_that_says_nothing_is_told_by_the_parts_name_and_counted(about, status, words):
    bad = Backend(about=about)
    async with routing([bad], lambda: model("m", [bad.url], [bad.url])) as ask:
        found, told = await ask.infer()
        assert (found, told["error"].startswith("m-0: ")) == (status, True), told
        assert words in told["error"]
        assert f'code="{status}",model="m"' in (await ask("/metrics"))[1]
        # It is asked again: a server that was started anew says it.
        bad.about = answer(METADATA)
        assert (await ask.infer())[0] == 200


async def test_what_nobody_thought_of_is_json_too_and_counted(monkeypatch, capsys):
    def broken(*_):
        raise RuntimeError("broken here")

    backend = Backend()
    async with routing([backend], lambda: model("m", [backend.url], [backend.url])) as ask:
        monkeypatch.setattr(app, "decode_outputs", broken)
        status, told = await ask.infer()
        assert status == 500 and "internal fault (RuntimeError)" in told["error"]
        assert 'code="500",model="m"' in (await ask("/metrics"))[1]
        assert (await ask("/nothing"))[1]["error"].startswith("unknown path")
        status, told = await ask("/metrics", {})
        assert status == 405 and "does not take POST" in told["error"]
    assert "broken here" in capsys.readouterr().err


@pytest.mark.repeated
async def test_hundreds_that_wait_hold_no_threads_and_all_are_answered():
    count, free = 300, asyncio.Event()

    async def wait(writer):
        await free.wait()
        writer.write(tensors())

    slow = Backend(wait)
    async with routing([slow], lambda: model("m", [slow.url], [slow.url])) as ask:
        before = threading.active_count()
        tasks = [asyncio.ensure_future(ask.infer()) for _ in range(count)]
        while slow.asked < count:
            await asyncio.sleep(0.01)
        assert threading.active_count() == before
        assert (await ask("/v2/health/live"))[0] == 200
        free.set()
        assert {status for status, _ in await asyncio.gather(*tasks)} == {200}


async def test_who_goes_away_is_not_computed_for():
    slow = Backend(silence)
    async with routing([slow], lambda: model("m", [slow.url])) as ask:
        task = asyncio.ensure_future(ask.infer())
        while slow.asked == 0:
            await asyncio.sleep(0.01)
        task.cancel()
        while 'code="499",model="m"' not in (await ask("/metrics"))[1]:
            await asyncio.sleep(0.01)


def reused() -> Iterator[tuple[int, float, int]]:
    """Requests and seconds that a connection is kept for, and the connections that 12 requests in a row then take."""
    yield 100, 60.0, 1
    yield 4, 60.0, 3


@pytest.mark.parametrize(("requests", "kept_s", "expected"), reused())
async def test_connections_are_used_again_and_then_given_up(requests, kept_s, expected, monkeypatch):
    monkeypatch.setattr(connections, "KEPT_REQUESTS", requests)
    monkeypatch.setattr(connections, "KEPT_S", kept_s)
    backend = Backend()
    async with routing([backend], lambda: model("m", [backend.url])) as ask:
        for _ in range(12):
            assert (await ask.infer())[0] == 200
    assert (backend.asked, backend.connections) == (12, expected)


async def test_a_connection_that_is_old_or_closed_by_its_server_is_not_used(monkeypatch):
    async def last(writer):
        """An answer, and the connection closed behind it without a word."""
        writer.write(tensors())
        writer.close()

    backend = Backend(last)
    async with routing([backend], lambda: model("m", [backend.url])) as ask:
        for _ in range(5):
            assert (await ask.infer())[0] == 200
        assert backend.connections == 5
    monkeypatch.setattr(connections, "KEPT_S", 0.05)
    backend = Backend()
    async with routing([backend], lambda: model("m", [backend.url])) as ask:
        assert (await ask.infer())[0] == 200
        while backend.open:
            await asyncio.sleep(0.01)


async def test_large_bodies_go_through_whole_and_may_be_refused_before_they_have():
    backend = Backend()
    large = {"text": "a" * 8 * 2**20}

    def made():
        free = RoutedTensor("v0", "FP32", (-1, -1))
        return replace(model("m", [backend.url]), inputs=(free,))

    async with routing([backend], made) as ask:
        for _ in range(2):
            assert (await ask("/v2/models/m/infer", large))[0] == 200
        assert (backend.asked, backend.connections) == (2, 1)
        backend.reads, backend.gives = False, answer({"error": "too large"}, 413)
        status, told = await ask("/v2/models/m/infer", large)
        assert (status, told) == (413, {"error": "too large"})
        # What was cut off carries no other request.
        backend.reads, backend.gives = True, tensors()
        assert (await ask.infer())[0] == 200
        assert (backend.asked, backend.connections) == (4, 2)


async def test_an_answer_keeps_its_length_header():
    backend = Backend()
    async with routing([backend], lambda: model("m", [backend.url])) as ask:
        reader, writer = await asyncio.open_connection("127.0.0.1", ask.port)
        body = json.dumps(ASKED).encode()
        head = f"POST /v2/models/m/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        assert LENGTH_HEADER.encode() in (await reader.readuntil(b"\r\n\r\n")).lower()
        writer.close()

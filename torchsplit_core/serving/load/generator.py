"""The process that sends requests when they are due, whatever has come back (an open loop), and notes every answer.

Run as `python -m torchsplit_core.serving.load.generator`; a line of JSON on standard input says what to send (see
`Plan`), lines on standard output say how it goes, the last has all answers. It ends with its standard input. A response
time counts from when its request was due: one that waits for a connection, or for this process, is not left out.
"""

from __future__ import annotations

import asyncio
import base64
import heapq
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MOST_CONNECTIONS = 1000
EVERY_S = 0.5
"""Between two lines on how it goes."""
WINDOW_S = 3.0
"""Answers of this long make a percentile of the moment."""


@dataclass(slots=True)
class Stream:
    """One model's requests: all alike, `times_s` from the start. `answers`: (due, response time, status)."""

    name: str
    request: bytes
    times_s: list[float]
    answers: list[tuple[float, float, int]] = field(default_factory=list)
    sent: int = 0


class Connection(asyncio.Protocol):
    """A connection with one request at a time; the answer's body is counted, not kept."""

    def __init__(self, ended: Callable[[Connection, int], None]) -> None:
        self.ended = ended
        self.transport: Any = None
        self.stream: Stream | None = None
        self.due = 0.0
        self._head = b""
        self._left = -1
        self._status = 0
        self.closed = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self, stream: Stream, due: float) -> None:
        """Send its request."""
        self.stream, self.due = stream, due
        self._head, self._left = b"", -1
        self.transport.write(stream.request)

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            head, found, rest = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            self._status = int(head.split(b" ", 2)[1])
            length = next(
                line.partition(b":")[2]
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            )
            self._left = int(length) - len(rest)
        else:
            self._left -= len(data)
        if self._left == 0 and self.stream is not None:
            self.ended(self, self._status)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self.stream is not None:
            self.ended(self, 0)


class Generator:
    """Every stream's requests on as many connections as they need."""

    def __init__(
        self,
        host: str,
        port: int,
        streams: list[Stream],
        settle_s: float,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        self.host, self.port, self.streams, self.settle_s = host, port, streams, settle_s
        self.most_connections = most_connections
        self.free: list[Connection] = []
        self.open = 0
        self.waiting: deque[tuple[Stream, float]] = deque()
        self.outstanding = 0
        self.begin = 0.0
        self.processor_s = 0.0
        self.tasks: set[asyncio.Task[None]] = set()
        self.idle = asyncio.Event()

    async def run(self) -> None:
        """Send everything, then wait for what is still out, at most `settle_s`."""
        telling = asyncio.create_task(self._tell())
        # Connections that stand before the first request is due: making one is no part of a response.
        for _ in range(min(4, self.most_connections)):
            await self._connect()
        self.begin, spent = time.perf_counter(), time.process_time()
        for due, stream in heapq.merge(*(_dues(stream) for stream in self.streams), key=lambda pair: pair[0]):
            while (early := self.begin + due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            stream.sent += 1
            self.outstanding += 1
            self.waiting.append((stream, due))
            self._hand_out()
            # The loop sends and receives while the next is due already.
            await asyncio.sleep(0)
        self.idle.clear()
        if self.outstanding:
            try:
                await asyncio.wait_for(self.idle.wait(), self.settle_s)
            except TimeoutError:
                now = time.perf_counter() - self.begin
                missing = [(stream, due) for stream, due in self.waiting]
                for stream, due in missing:
                    stream.answers.append((due, now - due, 0))
        telling.cancel()
        self.processor_s = time.process_time() - spent

    def _hand_out(self) -> None:
        while self.waiting and self.free:
            connection = self.free.pop()
            if not connection.closed:
                connection.ask(*self.waiting.popleft())
        if self.waiting and self.open < self.most_connections:
            task = asyncio.ensure_future(self._connect())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _connect(self) -> None:
        self.open += 1
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self._ended), self.host, self.port
            )
        except OSError:
            self.open -= 1
            if self.waiting:
                stream, due = self.waiting.popleft()
                self._note(stream, due, 0)
            return
        self.free.append(connection)
        self._hand_out()

    def _ended(self, connection: Connection, status: int) -> None:
        stream, due = connection.stream, connection.due
        assert stream is not None
        connection.stream = None
        self._note(stream, due, status)
        if connection.closed:
            self.open -= 1
        else:
            self.free.append(connection)
        self._hand_out()

    def _note(self, stream: Stream, due: float, status: int) -> None:
        stream.answers.append((due, time.perf_counter() - self.begin - due, status))
        self.outstanding -= 1
        if not self.outstanding:
            self.idle.set()

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            if self.begin:
                now = time.perf_counter() - self.begin
                say({"at_s": now, "models": {stream.name: _moment(stream, now) for stream in self.streams}})


def _dues(stream: Stream) -> Any:
    return ((due, stream) for due in stream.times_s)


def _moment(stream: Stream, now: float) -> dict[str, Any]:
    """Rate and 95th percentile of the answers of the last seconds."""
    found = []
    for due, response, status in reversed(stream.answers):
        if due + response < now - WINDOW_S:
            break
        if status == 200:
            found.append(response * 1e3)
    found.sort()
    p95 = found[max(0, -(-len(found) * 95 // 100) - 1)] if found else None
    return {
        "sent": stream.sent,
        "answered": len(stream.answers),
        "rate_rps": len(found) / min(WINDOW_S, max(now, 1e-9)),
        "p95_ms": p95,
    }


def say(content: dict[str, Any]) -> None:
    """A line on standard output."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


async def _until_alone(work: asyncio.Task[None]) -> None:
    """End the work where standard input ends: who asked for it is gone."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    await reader.read()
    work.cancel()


async def main(asked: dict[str, Any]) -> None:
    """Run one load and tell all answers."""
    streams = [
        Stream(one["name"], base64.b64decode(one["request"]), one["times_s"]) for one in asked["streams"]
    ]
    generator = Generator(asked["host"], asked["port"], streams, asked["settle_s"], asked["connections"])
    work = asyncio.create_task(generator.run())
    watching = asyncio.create_task(_until_alone(work))
    await work
    watching.cancel()
    # One clock for every process of a host: CLOCK_MONOTONIC, of which batches are noted too.
    answers = {stream.name: stream.answers for stream in streams}
    say({"begun_s": generator.begin, "processor_s": generator.processor_s, "answers": answers})


if __name__ == "__main__":
    told = json.loads(sys.stdin.readline())
    if told["cores"]:
        os.sched_setaffinity(0, told["cores"])
    asyncio.run(main(told))

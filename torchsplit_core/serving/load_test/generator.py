"""An open-loop load generator: sends each request when it is due and records every response.

Run as `python -m torchsplit_core.serving.load_test.generator`. Standard input has the command as a line of JSON (see
`main`); standard output gets progress as lines of JSON, the last with all responses. It ends when standard input does.
Response times count from the due time, so that waiting for a connection or for this process is included.
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
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torchsplit_core.serving.protocol.child_lines import send_line
from torchsplit_core.serving.protocol.http_client import ClientConnection, ClientResponse, Result
from torchsplit_core.serving.settings import MOST_CONNECTIONS

REPORT_INTERVAL_S = 0.5
"""Interval of progress lines."""
WINDOW_S = 3.0
"""Span of the responses in a progress line."""


@dataclass(slots=True)
class ArrivalStream:
    """Equal requests to a model, due at `times_s` from the start. `responses`: (due, response time, status)."""

    name: str
    request: bytes
    times_s: list[float]
    responses: list[tuple[float, float, int]] = field(default_factory=list)
    sent: int = 0


class LoadGenerator:
    """Sends the requests of all streams, on as many connections as they need."""

    def __init__(
        self,
        host: str,
        port: int,
        streams: list[ArrivalStream],
        settle_s: float,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        self.host, self.port, self.streams, self.settle_s = host, port, streams, settle_s
        self.most_connections = most_connections
        self.idle_connections: list[ClientConnection] = []
        self.connection_count = 0
        self.waiting: deque[tuple[ArrivalStream, float]] = deque()
        self.outstanding = 0
        self.began_at = 0.0
        self.processor_s = 0.0
        self.tasks: set[asyncio.Task[None]] = set()
        self.all_answered = asyncio.Event()

    async def run(self) -> None:
        """Send every request, then wait at most `settle_s` for the last responses."""
        reporting = asyncio.create_task(self._report_progress())
        # Connect before the first request is due: connecting is not part of a response time.
        for _ in range(min(4, self.most_connections)):
            await self._connect()
        self.began_at, spent = time.perf_counter(), time.process_time()
        for due, stream in heapq.merge(
            *(_arrivals(stream) for stream in self.streams), key=lambda pair: pair[0]
        ):
            while (early := self.began_at + due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            stream.sent += 1
            self.outstanding += 1
            self.waiting.append((stream, due))
            self._send_waiting()
            # Let the loop send and receive even if the next request is already due.
            await asyncio.sleep(0)
        self.all_answered.clear()
        if self.outstanding:
            try:
                await asyncio.wait_for(self.all_answered.wait(), self.settle_s)
            except TimeoutError:
                now = time.perf_counter() - self.began_at
                missing = [(stream, due) for stream, due in self.waiting]
                for stream, due in missing:
                    stream.responses.append((due, now - due, 0))
        reporting.cancel()
        self.processor_s = time.process_time() - spent

    def _send_waiting(self) -> None:
        while self.waiting and self.idle_connections:
            connection = self.idle_connections.pop()
            if connection.reusable:
                stream, due = self.waiting.popleft()
                connection.send(stream.request, on_result=partial(self._on_result, connection, stream, due))
            else:
                self.connection_count -= 1
        if self.waiting and self.connection_count < self.most_connections:
            task = asyncio.ensure_future(self._connect())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _connect(self) -> None:
        self.connection_count += 1
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                ClientConnection, self.host, self.port
            )
        except OSError:
            self.connection_count -= 1
            if self.waiting:
                stream, due = self.waiting.popleft()
                self._record(stream, due, 0)
            return
        self.idle_connections.append(connection)
        self._send_waiting()

    def _on_result(
        self, connection: ClientConnection, stream: ArrivalStream, due: float, result: Result
    ) -> None:
        self._record(stream, due, result.status if isinstance(result, ClientResponse) else 0)
        if connection.reusable:
            self.idle_connections.append(connection)
        else:
            self.connection_count -= 1
        self._send_waiting()

    def _record(self, stream: ArrivalStream, due: float, status: int) -> None:
        stream.responses.append((due, time.perf_counter() - self.began_at - due, status))
        self.outstanding -= 1
        if not self.outstanding:
            self.all_answered.set()

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            if self.began_at:
                now = time.perf_counter() - self.began_at
                send_line(
                    {"at_s": now, "models": {stream.name: _progress(stream, now) for stream in self.streams}}
                )


def _arrivals(stream: ArrivalStream) -> Any:
    return ((due, stream) for due in stream.times_s)


def _progress(stream: ArrivalStream, now: float) -> dict[str, Any]:
    """Rate and 95th percentile of the recent responses."""
    times_ms = []
    for due, response, status in reversed(stream.responses):
        if due + response < now - WINDOW_S:
            break
        if status == 200:
            times_ms.append(response * 1e3)
    times_ms.sort()
    p95 = times_ms[max(0, -(-len(times_ms) * 95 // 100) - 1)] if times_ms else None
    return {
        "sent": stream.sent,
        "answered": len(stream.responses),
        "rate_rps": len(times_ms) / min(WINDOW_S, max(now, 1e-9)),
        "p95_ms": p95,
    }


async def _cancel_at_stdin_eof(work: asyncio.Task[None]) -> None:
    """Cancel the work when standard input ends, with the parent process."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    await reader.read()
    work.cancel()


async def main(command: dict[str, Any]) -> None:
    """Generate one load and report all responses."""
    streams = [
        ArrivalStream(entry["name"], base64.b64decode(entry["request"]), entry["times_s"])
        for entry in command["streams"]
    ]
    generator = LoadGenerator(
        command["host"], command["port"], streams, command["settle_s"], command["connections"]
    )
    work = asyncio.create_task(generator.run())
    watching = asyncio.create_task(_cancel_at_stdin_eof(work))
    await work
    watching.cancel()
    # CLOCK_MONOTONIC, one clock for all processes of a host; batches use it too.
    responses = {stream.name: stream.responses for stream in streams}
    send_line({"begun_s": generator.began_at, "processor_s": generator.processor_s, "answers": responses})


if __name__ == "__main__":
    load_command = json.loads(sys.stdin.readline())
    if load_command["cores"]:
        os.sched_setaffinity(0, load_command["cores"])
    asyncio.run(main(load_command))

"""Streamed completions from an endpoint on connections that are kept, and how each ended."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torchsplit_core.serving.llm_endpoint.address import LlmEndpoint
from torchsplit_core.serving.llm_endpoint.event_stream import AnswerReader, error_text, event_count
from torchsplit_core.serving.protocol.http_client import (
    ClientConnection,
    ClientResponse,
    InvalidResponseError,
    ResponseTooLargeError,
    Result,
)
from torchsplit_core.values import system_reason

LONGEST_ANSWER_S = 3600.0
"""Longest time of a whole answer."""
BYTES_A_TOKEN = 8192
"""Bytes that an answer may have for each token asked for, beside LEAST_BYTES: an event is some hundreds."""
LEAST_BYTES = 1 << 20
DOCUMENT_S = 10.0
"""Longest time without a byte of a document, such as /v1/models."""
LINGER_S = 1.0
"""How long to wait for the end of a response whose events are all there."""


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """One request and its answer; seconds on the clock of time.perf_counter.

    `due_s`: when it was to be sent. `token_times_s`: each event with output. Tokens are counted by the endpoint, None
    where it does not. `status` is of HTTP, 0 without an answer. `problem` says why it failed, empty where it did not.
    """

    due_s: float
    sent_s: float
    token_times_s: tuple[float, ...]
    prompt_tokens: int | None
    output_tokens: int | None
    status: int
    problem: str

    @property
    def tokens(self) -> int:
        """Output tokens: by the endpoint's count, else the events with output."""
        return len(self.token_times_s) if self.output_tokens is None else self.output_tokens


class EndpointClient:
    """Sends requests to an endpoint in the running event loop; each has a connection while it is answered."""

    def __init__(self, endpoint: LlmEndpoint, clock: Callable[[], float] = time.perf_counter) -> None:
        self.endpoint, self.clock = endpoint, clock
        self._tls = endpoint.tls()
        self._idle: list[ClientConnection] = []

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def complete(self, body: bytes, asked_tokens: int, due_s: float | None = None) -> StreamedAnswer:
        """Send a body of `LlmEndpoint.body` and read the stream to its end. A failure is the answer's `problem`."""
        sent_s = self.clock()
        due_s = sent_s if due_s is None else due_s
        head = self.endpoint.head("POST", self.endpoint.path, len(body))
        most_bytes = LEAST_BYTES + BYTES_A_TOKEN * asked_tokens
        ended: asyncio.Event = asyncio.Event()
        reader = AnswerReader(self.clock, asked_tokens, ended.set)
        try:
            result = await self._send(head, body, most_bytes, reader, ended)
        except OSError as error:
            return StreamedAnswer(due_s, sent_s, (), None, None, 0, connect_problem(error, self.endpoint))
        if isinstance(result, ClientResponse) and result.status == 200 and not result.body:
            reader.end()
        status = result.status if isinstance(result, ClientResponse) else 200 if reader.token_times_s else 0
        problem = reader.problem or _result_problem(result, len(reader.token_times_s), most_bytes)
        counts = reader.prompt_tokens, reader.output_tokens
        if not problem and reader.output_tokens == 0:
            problem = "its answer has 0 tokens by its own count"
        if self.endpoint.key:
            # Some servers repeat a key that they refuse.
            problem = problem.replace(self.endpoint.key, "…")
        return StreamedAnswer(due_s, sent_s, tuple(reader.token_times_s), *counts, status, problem)

    async def fetch(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET, of at most LEAST_BYTES. Raises OSError where there is none."""
        reader = AnswerReader(self.clock, 1, lambda: None)
        timeout_s = min(DOCUMENT_S, self.endpoint.timeout_s)
        head = self.endpoint.head("GET", path)
        result = await self._send(head, b"", LEAST_BYTES, reader, asyncio.Event(), timeout_s=timeout_s)
        if not isinstance(result, ClientResponse):
            raise ConnectionError(_result_problem(result, 0, LEAST_BYTES))
        return result.status, result.body

    async def _send(
        self,
        head: bytes,
        body: bytes,
        most_bytes: int,
        reader: AnswerReader,
        ended: asyncio.Event,
        *,
        timeout_s: float | None = None,
    ) -> Result | None:
        """The result; None where the reader ended it. Raises OSError where there is no connection, or it stalls.

        With a `timeout_s` of its own nothing is streamed.
        """
        while True:
            connection, fresh = await self._connection()
            results: list[Result] = []
            connection.send(
                head,
                body,
                on_result=partial(_keep, results, ended),
                max_bytes=most_bytes,
                on_event_bytes=reader.feed if timeout_s is None else None,
            )
            try:
                await self._wait(reader, ended, timeout_s or self.endpoint.timeout_s)
            finally:
                if connection.reusable and results:
                    self._idle.append(connection)
                else:
                    connection.close()
            is_lost = results and isinstance(results[0], ConnectionError) and not connection.received_any
            if is_lost and not fresh:
                # The server closed an idle connection: the request did not reach it.
                ended.clear()
                continue
            return results[0] if results else None

    async def _wait(self, reader: AnswerReader, ended: asyncio.Event, timeout_s: float) -> None:
        """Until the response or the reader ends. Raises TimeoutError where nothing comes."""
        began = self.clock()
        while not ended.is_set():
            now = self.clock()
            left_s = min(
                max(reader.last_byte_s, began) + (LINGER_S if reader.done else timeout_s),
                began + LONGEST_ANSWER_S,
            )
            if left_s <= now:
                if reader.done:
                    reader.end()
                    return
                if now >= began + LONGEST_ANSWER_S:
                    raise TimeoutError(f"was not finished within {LONGEST_ANSWER_S:g} s")
                heard = event_count(len(reader.token_times_s))
                raise TimeoutError(f"stalled: no byte came for {timeout_s:g} s, after {heard}")
            try:
                await asyncio.wait_for(ended.wait(), left_s - now)
            except TimeoutError:
                continue

    async def _connection(self) -> tuple[ClientConnection, bool]:
        """A connection, and whether it is new. Raises OSError."""
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection, False
        endpoint = self.endpoint
        try:
            _, connection = await asyncio.wait_for(
                asyncio.get_running_loop().create_connection(
                    ClientConnection, endpoint.host, endpoint.port, ssl=self._tls
                ),
                endpoint.timeout_s,
            )
        except TimeoutError:
            raise TimeoutError(f"took no connection within {endpoint.timeout_s:g} s") from None
        return connection, True


def _result_problem(result: Result | None, events: int, most_bytes: int) -> str:
    """Why a result is no stream, after so many events with output; empty where it is one."""
    if isinstance(result, ResponseTooLargeError):
        return f"its answer has more than {most_bytes} bytes, after {event_count(events)}"
    if isinstance(result, ConnectionError):
        if not isinstance(result, InvalidResponseError):
            return "the connection was closed without an answer"
        if "ended" in str(result):
            return f"the connection ended before the answer did, after {event_count(events)}"
        return f"what it sends is not HTTP: {result}"
    if not isinstance(result, ClientResponse):
        return ""
    if result.status != 200:
        return f"answered {result.status}: {_message(result.body)}"
    if result.body:
        return f"answered without streaming ({result.headers.get('content-type', 'no content-type')})"
    return ""


def _keep(results: list[Result], ended: asyncio.Event, result: Result) -> None:
    results.append(result)
    ended.set()


def _message(body: bytes) -> str:
    """What the body of an error says, in one line."""
    text = body[:LEAST_BYTES].decode(errors="replace").strip()
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError):
        content = text
    return error_text(content) if content else "without a word"


def connect_problem(error: OSError, endpoint: LlmEndpoint) -> str:
    """Why there is no connection, or no answer on it, as a clause."""
    if isinstance(error, TimeoutError) and not error.errno:
        return str(error)
    if isinstance(error, ssl.SSLError):
        return f"TLS with {endpoint.host} failed: {error.reason or error}".replace("_", " ").lower()
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        return f"nothing listens at {endpoint.host}:{endpoint.port}"
    return f"{endpoint.host}:{endpoint.port} cannot be reached: {system_reason(error)}"

"""Server-sent events, and the answer of one streamed completion as its tokens come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from torchsplit_core.values.errors import quoted

LONGEST_EVENT = 1 << 18
"""Bytes of an event: it is a token with its probabilities, not a document."""
DONE = "[DONE]"
_OUTPUT_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal")


class EventStreamError(ValueError):
    """The bytes are no event stream."""


class EventStreamParser:
    """Splits a text/event-stream into the data of its events (WHATWG HTML, 9.2.6); other fields are left out."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._data: list[str] = []
        self._rest_bytes = self._data_bytes = 0

    @property
    def unfinished(self) -> bool:
        """Whether the bytes so far end within a line or an event."""
        return bool(self._rest or self._data)

    def feed(self, block: bytes) -> Iterator[str]:
        """The data of the events that end in this block. Raises EventStreamError, after the events before it."""
        lines = block.split(b"\n")
        for number, part in enumerate(lines):
            if part:
                self._rest.append(part)
                self._rest_bytes += len(part)
            if self._rest_bytes + self._data_bytes > LONGEST_EVENT:
                raise EventStreamError(f"has an event of more than {LONGEST_EVENT} bytes")
            if number + 1 < len(lines):
                line = b"".join(self._rest).removesuffix(b"\r")
                self._rest, self._rest_bytes = [], 0
                if line:
                    self._take_line(line)
                elif self._data:
                    data, self._data, self._data_bytes = "\n".join(self._data), [], 0
                    yield data

    def _take_line(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            try:
                text = line[5:].decode()
            except UnicodeDecodeError:
                raise EventStreamError("has a line that is not UTF-8") from None
            self._data.append(text.removeprefix(" "))
            self._data_bytes += len(line)


class AnswerReader:
    """The events of one streamed completion.

    `token_times_s`: by `clock`, of each event that carries output; events of one block of bytes have one time.
    `problem` says why it is no answer, empty so far; `on_problem` is called when it is set.
    """

    def __init__(
        self, clock: Callable[[], float], asked_tokens: int, on_problem: Callable[[], object]
    ) -> None:
        self.token_times_s: list[float] = []
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.finished = self.done = False
        self.problem = ""
        self.last_byte_s = clock()
        self._parser = EventStreamParser()
        self._clock, self._on_problem = clock, on_problem
        self._most_events = 2 * asked_tokens + 64
        self._asked_tokens = asked_tokens

    def feed(self, block: bytes) -> None:
        """Take the next bytes of the stream."""
        self.last_byte_s = self._clock()
        if self.problem:
            return
        try:
            for data in self._parser.feed(block):
                self._take(data)
        except EventStreamError as error:
            self._fail(f"its stream {error}")

    def end(self) -> None:
        """The stream is over: what is missing is a problem."""
        if self.problem:
            return
        if not (self.done or self.finished):
            where = "within an event" if self._parser.unfinished else "before the answer was finished"
            self._fail(f"its stream ended {where}, after {event_count(len(self.token_times_s))}")
        elif not self.token_times_s:
            self._fail("its answer has no token")

    def _fail(self, problem: str) -> None:
        self.problem = problem
        self._on_problem()

    def _take(self, data: str) -> None:
        if data == DONE:
            self.done = True
            return
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            raise EventStreamError(f"has an event that is not JSON: {quoted(data[:200])}") from None
        if not isinstance(content, dict):
            raise EventStreamError(f"has an event that is no object: {quoted(data[:200])}")
        if error := content.get("error"):
            raise EventStreamError(f"says: {error_text(error)}")
        self._take_usage(content.get("usage"))
        choices = content.get("choices")
        if not choices:
            return
        choice = choices[0] if isinstance(choices, list) else None
        if not isinstance(choice, dict):
            raise EventStreamError(f"has an event whose choices are no list of objects: {quoted(data[:200])}")
        if _has_output(choice):
            self.token_times_s.append(self.last_byte_s)
            if len(self.token_times_s) > self._most_events:
                raise EventStreamError(
                    f"goes on past {self._most_events} events, and {self._asked_tokens} tokens were asked for"
                )
        self.finished |= choice.get("finish_reason") is not None

    def _take_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
            self.output_tokens = _count(usage.get("completion_tokens"), self.output_tokens)


def _count(value: Any, otherwise: int | None) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40
    return value if is_count else otherwise


def _has_output(choice: dict[str, Any]) -> bool:
    """Whether an event brings output. A token may be an empty text (half a letter); a bare role or end is none."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        text = choice.get("text")
        return bool(text) or (isinstance(text, str) and choice.get("finish_reason") is None)
    if any(delta.get(name) for name in _OUTPUT_FIELDS):
        return True
    return delta.get("content") == "" and "role" not in delta and choice.get("finish_reason") is None


def event_count(events: int) -> str:
    """How many events with output came, in words."""
    return "an event with output" if events == 1 else f"{events or 'no'} events with output"


def error_text(content: Any) -> str:
    """The message in what a server says of an error, as one line of at most 300 characters."""
    for name in ("error", "message", "detail"):
        if isinstance(content, dict) and content.get(name):
            return error_text(content[name])
    text = content if isinstance(content, str) else json.dumps(content)
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:299]}…"

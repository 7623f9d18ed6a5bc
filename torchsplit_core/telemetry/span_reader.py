"""Reads exported spans: OTLP JSON, one request per line, as written by TorchSplit and by the OpenTelemetry
collector's file exporter."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from torchsplit_core.values import InputFault, quoted, system_reason

AttributeValue = bool | int | float | str | tuple[Any, ...] | None
LARGEST_TRACE_BYTES = 64 * 2**20
"""Most bytes of a trace that is read at once, of all files of a folder together: some 100,000 spans."""
_REMEDY = "Remove the line, or give a file that the telemetry wrote."
STATUS_ERROR = 2  # opentelemetry/proto/trace/v1/trace.proto: STATUS_CODE_ERROR


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """One ended span. Ids are hexadecimal; `parent_id` is None for a root; times are in ns since 1970.

    `attributes` are in file order, with their exported names; `error` is the message of a failed span
    (empty if it has none), None if it did not fail.
    """

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start_unix_ns: int
    end_unix_ns: int
    attributes: tuple[tuple[str, AttributeValue], ...]
    error: str | None

    @property
    def duration_ms(self) -> float:
        """Milliseconds from start to end."""
        return (self.end_unix_ns - self.start_unix_ns) / 1e6

    def attribute(self, name: str) -> AttributeValue:
        """The value of an attribute; None if the span does not have it."""
        return dict(self.attributes).get(name)


@dataclass(frozen=True, slots=True)
class SpanTotal:
    """All spans of one name; times in milliseconds, where parallel spans each count in full."""

    name: str
    count: int
    failed: int
    total_ms: float
    median_ms: float
    longest_ms: float


def read_spans(path: Path) -> tuple[SpanRecord, ...]:
    """The spans of a file, or of all `*.jsonl` files of a folder, sorted by start.

    Raises InputFault if the path cannot be read, and for the first line that is not OTLP JSON of spans,
    with its number.
    """
    try:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        spans = [span for file in files for span in _spans_of(file)]
    except OSError as error:
        raise InputFault(
            str(path), f"cannot be read: {system_reason(error)}", "Give a file of spans or its folder."
        ) from error
    return by_start(spans)


def read_trace(path: Path) -> tuple[tuple[SpanRecord, ...], tuple[str, ...]]:
    """Like `read_spans`, with a limit and for a process that was killed: the spans, and notes on what is missing.

    Raises InputFault also for more than `LARGEST_TRACE_BYTES`.
    """
    spans: list[SpanRecord] = []
    notes: list[str] = []
    left = LARGEST_TRACE_BYTES
    try:
        for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
            with file.open("rb") as stream:
                data = stream.read(left + 1)
            more, note = parse_trace(data, str(file), most_bytes=left)
            left -= len(data)
            spans.extend(more)
            notes.extend(note)
    except InputFault:
        raise
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = system_reason(error) if isinstance(error, OSError) else str(error)
        raise InputFault(
            str(path), f"cannot be read: {reason}", "Give a file of spans or its folder."
        ) from error
    return by_start(spans), tuple(notes)


def parse_trace(
    data: bytes, origin: str, most_bytes: int = LARGEST_TRACE_BYTES
) -> tuple[tuple[SpanRecord, ...], tuple[str, ...]]:
    """The spans of a file's content, sorted by start, and notes: a last line cut off by a kill is one, not a fault.

    Raises InputFault like `read_trace`; `origin` is what it calls the file.
    """
    if len(data) > most_bytes:
        most = LARGEST_TRACE_BYTES >> 20
        raise InputFault(origin, f"makes more than {most} MiB of trace", "Give the files of fewer processes.")
    lines = data.splitlines(keepends=True)
    cut = bool(lines) and not lines[-1].endswith((b"\n", b"\r")) and not _is_json(lines[-1])
    spans = _spans_of_lines(lines[:-1] if cut else lines, origin)
    notes = (f"{origin}: the last line is cut off, as by a kill; its spans are missing",) if cut else ()
    return by_start(spans), notes


def by_start(spans: Iterable[SpanRecord]) -> tuple[SpanRecord, ...]:
    """The spans in the order of their starts; of those that begin together the longest first, as a parent is."""
    return tuple(sorted(spans, key=lambda span: (span.start_unix_ns, -span.end_unix_ns)))


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def summary(spans: Iterable[SpanRecord]) -> tuple[SpanTotal, ...]:
    """Totals by name, largest total time first."""
    by_name: dict[str, list[SpanRecord]] = defaultdict(list)
    for span in spans:
        by_name[span.name].append(span)
    totals = [_total(name, group) for name, group in by_name.items()]
    return tuple(sorted(totals, key=lambda total: (-total.total_ms, total.name)))


def _total(name: str, group: list[SpanRecord]) -> SpanTotal:
    times = [span.duration_ms for span in group]
    failed = sum(span.error is not None for span in group)
    return SpanTotal(name, len(group), failed, sum(times), median(times), max(times))


def _spans_of(file: Path) -> Iterator[SpanRecord]:
    with file.open("rb") as lines:
        yield from _spans_of_lines(lines, str(file))


def _spans_of_lines(lines: Iterable[bytes], origin: str) -> Iterator[SpanRecord]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{origin}, line {number}"
        try:
            yield from _parse(line)
        except _SpanTimeError as error:
            raise InputFault(where, f"has {error}", _REMEDY) from error
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            problem = f"is {quoted(line.decode(errors='replace'))}, not OTLP JSON with resourceSpans"
            raise InputFault(where, problem, _REMEDY) from error


class _SpanTimeError(ValueError):
    """Times that no span can have."""


def _parse(line: bytes) -> Iterator[SpanRecord]:
    """Parse one line: a TracesData or an ExportTraceServiceRequest; both have only resourceSpans."""
    for resource in json.loads(line)["resourceSpans"]:
        about = dict(_attributes(resource.get("resource", {})))
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                yield _record(span, str(about.get("service.name", "")))


def _record(span: dict[str, Any], service: str) -> SpanRecord:
    status = span.get("status", {})
    failed = int(status.get("code", 0)) == STATUS_ERROR
    start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
    if not 0 <= start <= end < 2**64:
        problem = "that ends before it starts" if end < start else "with times outside of 64 bits"
        raise _SpanTimeError(f"the span {quoted(str(span.get('name', '')))} {problem}")
    parent = span.get("parentSpanId")
    return SpanRecord(
        name=str(span["name"]),
        service=service,
        trace_id=_id(span["traceId"], 16),
        span_id=_id(span["spanId"], 8),
        parent_id=_id(parent, 8) if parent else None,
        start_unix_ns=start,
        end_unix_ns=end,
        attributes=tuple(_attributes(span)),
        error=str(status.get("message", "")) if failed else None,
    )


def _id(text: str, size_bytes: int) -> str:
    """Validate an id: OTLP JSON writes ids in hexadecimal, unlike other bytes of protobuf JSON."""
    if not re.fullmatch(f"[0-9a-fA-F]{{{2 * size_bytes}}}", text):
        raise ValueError(f"not an id of {size_bytes} bytes")
    return text.lower()


def _attributes(owner: dict[str, Any]) -> Iterator[tuple[str, AttributeValue]]:
    for pair in owner.get("attributes", ()):
        yield str(pair["key"]), _value(pair.get("value", {}))


def _value(value: dict[str, Any]) -> AttributeValue:
    """Decode an AnyValue; 64-bit integers, NaN and infinities may be text, as in protobuf JSON."""
    if not value:
        return None
    ((kind, content),) = value.items()
    if kind == "stringValue":
        return str(content)
    if kind == "boolValue":
        return bool(content)
    if kind == "intValue":
        return int(content)
    if kind == "doubleValue":
        return float(content)
    if kind == "arrayValue":
        return tuple(_value(part) for part in content.get("values", ()))
    if kind == "kvlistValue":
        return tuple((str(part["key"]), _value(part.get("value", {}))) for part in content.get("values", ()))
    if kind == "bytesValue":
        return str(content)
    raise ValueError(f"unknown kind of value {kind}")

"""The only module that imports opentelemetry: a tracer that exports spans to a file or a collector in bounded time.

An unreachable collector must not delay the work: spans wait in memory and a thread sends them, every request has a
timeout, and shutdown is bounded by a join, however long a request or a DNS lookup takes.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from opentelemetry.context import attach, detach
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import Span, SpanContext, Status, StatusCode, TraceFlags, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from torchsplit_core import __version__
from torchsplit_core.isolation import printable
from torchsplit_core.telemetry.active_span import ActiveSpan
from torchsplit_core.telemetry.schema import JOB, PREFIX, SPANS
from torchsplit_core.telemetry.settings import TelemetrySettings
from torchsplit_core.telemetry.span_reader import SpanRecord, read_spans
from torchsplit_core.values import InputFault, system_reason

REQUEST_TIMEOUT_S = 1.0
SHUTDOWN_S = 1.8  # including overhead, a process ends within 2 s
SEND_EVERY_MS = 1000
LARGEST_HANDED_BYTES = 16 * 2**20
"""Largest file of a child's spans that is read; a model's points take some hundred kilobytes."""
LARGEST_JOB_TRACE_BYTES = 4 * 2**20
"""Size of a job's file from which on only the span of the job itself is added: some 6,000 spans."""
MAX_QUEUED_SPANS = (
    4096  # more are dropped, oldest first; one request takes them all, so that shutdown needs one
)

_log = logging.getLogger("torchsplit.telemetry")
_propagator = TraceContextTextMapPropagator()


class SpanExport:
    """Exports the spans of one process until `close`. Raises InputFault for an unusable folder."""

    def __init__(self, settings: TelemetrySettings) -> None:
        self.settings = settings
        self._exporter = _LossCountingExporter(_exporter(settings))
        self._provider = TracerProvider(
            resource=Resource.create(
                {
                    "service.name": settings.service,
                    "service.version": __version__,
                    "process.pid": os.getpid(),
                }
            ),
            shutdown_on_exit=False,
        )
        self._processor = _processor(settings, self._exporter)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("torchsplit", __version__)

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, object]) -> Iterator[ActiveSpan]:
        """One span; see `spans.span`."""
        with self._tracer.start_as_current_span(name) as started:
            active = _RecordingSpan(started)
            active.set(**attributes)
            yield active

    def parent(self) -> dict[str, str]:
        """The current trace and span ids, in the form of W3C Trace Context."""
        carried: dict[str, str] = {}
        _propagator.inject(carried)
        return carried

    def export_child_spans(self, folder: Path) -> None:
        """Export the spans of this trace that a child wrote to `folder`. It ran foreign code: trust no content."""
        trace = _propagator.extract(self.parent())
        current = get_current_span(trace).get_span_context().trace_id
        for entry in os.scandir(folder):
            if not entry.is_file(follow_symlinks=False) or entry.stat().st_size > LARGEST_HANDED_BYTES:
                continue
            try:
                records = read_spans(Path(entry.path))
            except InputFault:
                _log.warning("Telemetry: the spans of a child cannot be read; the work goes on without them.")
                continue
            for record in records:
                if int(record.trace_id, 16) == current and _is_known_span(record):
                    self._processor.on_end(_readable_span(record))

    def close(self) -> bool:
        """Deliver the waiting spans in at most `SHUTDOWN_S`; returns whether every span was delivered."""
        # A daemon thread, because a request may hang where no timeout applies (a DNS lookup).
        ending = threading.Thread(
            target=self._provider.shutdown, name="torchsplit-telemetry-end", daemon=True
        )
        ending.start()
        ending.join(SHUTDOWN_S)
        if ending.is_alive():
            _log.warning("Telemetry: the last spans were not delivered to %s in time.", self.settings.target)
            return False
        return self._exporter.lost == 0


@contextmanager
def with_parent(carried: Mapping[str, str]) -> Iterator[None]:
    """Make spans in the block children of the span in `carried`."""
    token = attach(_propagator.extract(carried))
    try:
        yield
    finally:
        detach(token)


class _RecordingSpan:
    """A started span; see `ActiveSpan`."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def set(self, **attributes: object) -> None:
        for name, value in attributes.items():
            if value is not None:
                self._span.set_attribute(PREFIX + name, _attribute_value(value))


def _readable_span(record: SpanRecord) -> ReadableSpan:
    """Convert a span that was read from a file to the exporters' type."""

    def context(span_id: str) -> SpanContext:
        sampled = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(int(record.trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=sampled)

    failed = Status(StatusCode.ERROR, printable(record.error)) if record.error is not None else Status()
    return ReadableSpan(
        record.name,
        context=context(record.span_id),
        parent=context(record.parent_id) if record.parent_id else None,
        resource=Resource({"service.name": record.service, "service.version": __version__}),
        attributes={
            name: _attribute_value(value) for name, value in record.attributes if _is_exportable(value)
        },
        status=failed,
        start_time=record.start_unix_ns,
        end_time=record.end_unix_ns,
    )


def _is_known_span(record: SpanRecord) -> bool:
    """Whether TorchSplit creates spans of that name, and OTLP can represent its times."""
    return record.name in SPANS and 0 < record.start_unix_ns <= record.end_unix_ns < 2**63


def _is_exportable(value: object) -> bool:
    """Whether OTLP can represent the value; a child may have written any JSON."""
    if isinstance(value, tuple):
        return all(map(_is_exportable, value))
    if isinstance(value, str):
        return value.isprintable()
    return isinstance(value, float) or (isinstance(value, int) and -(2**63) <= value < 2**63)


def _attribute_value(
    value: object,
) -> bool | int | float | str | list[bool] | list[int] | list[float] | list[str]:
    """The value if OTLP supports its type, else its text."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Sequence):
        for kind in (bool, int, float):
            if all(type(part) is kind for part in value):
                return list(value)
        return [str(part) for part in value]
    return str(value)


class _LossCountingExporter(SpanExporter):
    """Forwards spans and counts lost ones; warns once, whereas the exporters warn every time."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner
        self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if self.lost == 0:
                _log.warning("Telemetry: spans could not be delivered; the work goes on without them.")
            self.lost += len(spans)
        return result

    def shutdown(self) -> None:
        try:
            self._inner.shutdown()
        except OSError:  # a full disk, already reported for the first span
            self.lost = max(self.lost, 1)

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._inner.force_flush(timeout_millis)


class _BoundedExporter(SpanExporter):
    """Writes spans until their file has `LARGEST_JOB_TRACE_BYTES`, and always the span of the job."""

    def __init__(self, inner: SpanExporter, path: Path) -> None:
        self._inner, self._path = inner, path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            is_full = self._path.stat().st_size >= LARGEST_JOB_TRACE_BYTES
        except OSError:
            is_full = False
        written = [span for span in spans if span.name == JOB] if is_full else spans
        result = self._inner.export(written) if written else SpanExportResult.SUCCESS
        return result if len(written) == len(spans) else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._inner.shutdown()


def _exporter(settings: TelemetrySettings) -> SpanExporter:
    # _LossCountingExporter warns instead, and only once.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    if settings.kind == "otlp":
        # Imported here, because requests and protobuf load slowly and files need neither.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=settings.target, timeout=REQUEST_TIMEOUT_S)
    from opentelemetry.exporter.otlp.json.file.trace_exporter import FileSpanExporter

    # One file per process: no two processes write to the same file, and a killed one leaves the others intact.
    name = settings.file_name or f"spans-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
    path = Path(settings.target) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        exporter = FileSpanExporter(path)
        return _BoundedExporter(exporter, path) if settings.file_name else exporter
    except OSError as error:
        raise InputFault(
            str(path.parent),
            f"cannot be written: {system_reason(error)}",
            "Set TORCHSPLIT_TELEMETRY_FOLDER to another folder, or TORCHSPLIT_TELEMETRY=off.",
        ) from error


def _processor(settings: TelemetrySettings, exporter: SpanExporter) -> SpanProcessor:
    """Writes each span to a file when it ends, so that a kill loses only open spans; a collector gets batches."""
    if settings.kind == "file":
        return SimpleSpanProcessor(exporter)
    return BatchSpanProcessor(
        exporter,
        max_queue_size=MAX_QUEUED_SPANS,
        schedule_delay_millis=SEND_EVERY_MS,
        max_export_batch_size=MAX_QUEUED_SPANS,
    )

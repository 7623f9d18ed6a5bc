"""The one file that knows opentelemetry: a tracer whose spans go to a file or a collector, within bounds.

A collector that is gone must not hold our work up: spans wait in memory and are sent by a thread, every
request has a time-out, and the end of all is bounded by a join, whatever a request or a name's look-up does.
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
from torchsplit_core.telemetry.schema import PREFIX, SPANS
from torchsplit_core.telemetry.settings import TelemetrySettings
from torchsplit_core.telemetry.span_reader import SpanRecord, read_spans
from torchsplit_core.values import InputFault, system_reason

REQUEST_TIMEOUT_S = 1.0
SHUTDOWN_S = 1.8  # with what surrounds it, a process ends within 2 s
SEND_EVERY_MS = 1000
LARGEST_HANDED_BYTES = 16 * 2**20
"""A file of a child's spans that is larger is not read: a model's points take some hundred kilobytes."""
MAX_QUEUED_SPANS = (
    4096  # more are dropped, oldest first; one request takes them all, so that the end is one request
)

_log = logging.getLogger("torchsplit.telemetry")
_propagator = TraceContextTextMapPropagator()


class SpanExport:
    """Telemetry of one process, from its first span to `close`. Raises InputFault for an unusable folder."""

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
        """The ids of trace and span that are current, in the form of W3C Trace Context."""
        carried: dict[str, str] = {}
        _propagator.inject(carried)
        return carried

    def export_child_spans(self, folder: Path) -> None:
        """Export the spans of this trace that a child wrote there. It ran foreign code, so anything may be there."""
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
        """Deliver what waits, in at most `SHUTDOWN_S`; whether every span was delivered."""
        # A daemon thread, for a request may hang where no time-out reaches (a name's look-up).
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
    """A block whose spans are children of the span that `carried` names."""
    token = attach(_propagator.extract(carried))
    try:
        yield
    finally:
        detach(token)


class _RecordingSpan:
    """A span that was started; see `ActiveSpan`."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def set(self, **attributes: object) -> None:
        for name, value in attributes.items():
            if value is not None:
                self._span.set_attribute(PREFIX + name, _attribute_value(value))


def _readable_span(record: SpanRecord) -> ReadableSpan:
    """A span that was read back, as the exporters take it."""

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
    """Whether it is a span this program makes, at times that OTLP can tell."""
    return record.name in SPANS and 0 < record.start_unix_ns <= record.end_unix_ns < 2**63


def _is_exportable(value: object) -> bool:
    """Whether OTLP can carry it: what a child wrote may be any JSON."""
    if isinstance(value, tuple):
        return all(map(_is_exportable, value))
    if isinstance(value, str):
        return value.isprintable()
    return isinstance(value, float) or (isinstance(value, int) and -(2**63) <= value < 2**63)


def _attribute_value(
    value: object,
) -> bool | int | float | str | list[bool] | list[int] | list[float] | list[str]:
    """A value of the kinds OTLP has; anything else as its text."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Sequence):
        for kind in (bool, int, float):
            if all(type(part) is kind for part in value):
                return list(value)
        return [str(part) for part in value]
    return str(value)


class _LossCountingExporter(SpanExporter):
    """Passes spans on and counts those that were lost; says so once, where the exporters say it every time."""

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
        except OSError:  # a full disk, said when the first span met it
            self.lost = max(self.lost, 1)

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._inner.force_flush(timeout_millis)


def _exporter(settings: TelemetrySettings) -> SpanExporter:
    # _LossCountingExporter says it once.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    if settings.kind == "otlp":
        # Here, for requests and protobuf are slow to import and files need neither.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=settings.target, timeout=REQUEST_TIMEOUT_S)
    from opentelemetry.exporter.otlp.json.file.trace_exporter import FileSpanExporter

    # A file a process: no two ever write to one, and a killed one leaves the others whole.
    path = Path(settings.target) / f"spans-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileSpanExporter(path)
    except OSError as error:
        raise InputFault(
            str(path.parent),
            f"cannot be written: {system_reason(error)}",
            "Set TORCHSPLIT_TELEMETRY_FOLDER to another folder, or TORCHSPLIT_TELEMETRY=off.",
        ) from error


def _processor(settings: TelemetrySettings, exporter: SpanExporter) -> SpanProcessor:
    """Files get each span when it ends, so that a kill loses only open ones; a collector gets batches."""
    if settings.kind == "file":
        return SimpleSpanProcessor(exporter)
    return BatchSpanProcessor(
        exporter,
        max_queue_size=MAX_QUEUED_SPANS,
        schedule_delay_millis=SEND_EVERY_MS,
        max_export_batch_size=MAX_QUEUED_SPANS,
    )

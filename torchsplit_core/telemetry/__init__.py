"""Spans of our own work (OpenTelemetry), to files or to a collector; off unless the environment asks.

`with span(schema.PROFILE_POINT, model="bert", batch_size=4) as point: ...; point.set(p50_ms=1.2)`.
Names and units are in `schema`, the whole story in docs/telemetry.md.
"""

from torchsplit_core.telemetry import schema
from torchsplit_core.telemetry.active_span import ActiveSpan
from torchsplit_core.telemetry.reading import SpanRecord, SpanTotal, read_spans, summary
from torchsplit_core.telemetry.spans import adopt, carrier, configure, handed_on, shutdown, span

__all__ = [
    "ActiveSpan",
    "SpanRecord",
    "SpanTotal",
    "adopt",
    "carrier",
    "configure",
    "handed_on",
    "read_spans",
    "schema",
    "shutdown",
    "span",
    "summary",
]

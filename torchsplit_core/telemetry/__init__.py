"""OpenTelemetry spans of TorchSplit's work, written to files or sent to a collector; off unless the environment asks.

`with span(schema.PROFILE_POINT, model="bert", batch_size=4) as point: ...; point.set(p50_ms=1.2)`.
`schema` has names and units, docs/reference/telemetry.md the full description.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand
from torchsplit_core.telemetry import schema

if TYPE_CHECKING:
    from torchsplit_core.telemetry.active_span import ActiveSpan
    from torchsplit_core.telemetry.span_reader import SpanRecord, SpanTotal, read_spans, summary
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

__getattr__ = on_demand(
    __name__,
    {
        "active_span": "ActiveSpan",
        "span_reader": "SpanRecord SpanTotal read_spans summary",
        "spans": "adopt carrier configure handed_on shutdown span",
    },
)

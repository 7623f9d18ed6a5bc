"""OpenTelemetry spans of TorchSplit's work, written to files or sent to a collector.

Off unless the environment asks; jobs of the dashboard write a file of their own unless it says off.

`with span(schema.PROFILE_POINT, model="bert", batch_size=4) as point: ...; point.set(p50_ms=1.2)`.
`schema` has names and units, docs/reference/telemetry.md the full description.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand
from torchsplit_core.telemetry import schema

if TYPE_CHECKING:
    from torchsplit_core.telemetry.active_span import ActiveSpan
    from torchsplit_core.telemetry.span_reader import (
        SpanRecord,
        SpanTotal,
        parse_trace,
        read_spans,
        read_trace,
        summary,
    )
    from torchsplit_core.telemetry.span_times import SpanNode, SpanTree, span_tree
    from torchsplit_core.telemetry.spans import (
        adopt,
        carrier,
        configure,
        configure_job,
        handed_on,
        shutdown,
        span,
    )

__all__ = [
    "ActiveSpan",
    "SpanNode",
    "SpanRecord",
    "SpanTotal",
    "SpanTree",
    "adopt",
    "carrier",
    "configure",
    "configure_job",
    "handed_on",
    "parse_trace",
    "read_spans",
    "read_trace",
    "schema",
    "shutdown",
    "span",
    "span_tree",
    "summary",
]

__getattr__ = on_demand(
    __name__,
    {
        "active_span": "ActiveSpan",
        "span_reader": "SpanRecord SpanTotal parse_trace read_spans read_trace summary",
        "span_times": "SpanNode SpanTree span_tree",
        "spans": "adopt carrier configure configure_job handed_on shutdown span",
    },
)

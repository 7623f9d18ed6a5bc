"""The spans of a job as bars on a time axis: each below the one that it is part of."""

from __future__ import annotations

import html
from collections.abc import Sequence

import plotly.graph_objects as go

from app.charts.theme import AMBER, RED, apply_layout, axis, theme_name
from torchsplit_core.isolation.faults import printable_line
from torchsplit_core.telemetry import SpanNode

ROW_PX = 24
LONGEST_LABEL = 24
"""Characters beside a bar: on a phone the bars need the room."""
PLAIN = {"light": "#8a94a6", "dark": "#7d8899"}


def span_bars(nodes: Sequence[SpanNode], *, dark: bool) -> go.Figure:
    """A row for each span, the first on top; what was on the critical path and what failed have colours."""
    theme = theme_name(dark)
    groups = {
        "on the critical path": (AMBER[theme], [node for node in nodes if _group(node) == "critical"]),
        "beside it": (PLAIN[theme], [node for node in nodes if _group(node) == "beside"]),
        "failed": (RED[theme], [node for node in nodes if _group(node) == "failed"]),
    }
    rows = {id(node): row for row, node in enumerate(nodes)}
    figure = go.Figure()
    for name, (colour, group) in groups.items():
        if not group:
            continue
        figure.add_bar(
            orientation="h", name=name, marker={"color": colour}, width=0.7,
            base=[node.start_ms / 1e3 for node in group], x=[node.total_ms / 1e3 for node in group],
            y=[rows[id(node)] for node in group],
            customdata=[[_words(node)] for node in group], hovertemplate="%{customdata[0]}<extra></extra>",
        )  # fmt: skip
    apply_layout(figure, theme, height=110 + ROW_PX * len(nodes), key="spans")
    labels = [html.escape(_short("\u2002" * min(node.depth, 6) + node.label)) for node in nodes]
    figure.update_layout(
        barmode="overlay",
        xaxis=axis("s since the first span", theme, rangemode="tozero", title_standoff=10),
        yaxis=axis(
            "", theme, tickvals=list(range(len(nodes))), ticktext=labels, range=[len(nodes) - 0.5, -0.5],
            tickfont={"size": 12}, fixedrange=True,
        ),
    )  # fmt: skip
    return figure


def _group(node: SpanNode) -> str:
    if node.span.error is not None:
        return "failed"
    return "critical" if node.critical_ms > 0 else "beside"


def _short(text: str) -> str:
    return f"{text[: LONGEST_LABEL - 1]}…" if len(text) > LONGEST_LABEL else text


def _words(node: SpanNode) -> str:
    """What hovering shows: all of the label, the times, the reason of a failure."""
    lines = [
        f"<b>{html.escape(node.label[:100])}</b>",
        f"{node.total_ms:,.1f} ms from {node.start_ms:,.1f} ms on",
        f"by itself {node.self_ms:,.1f} ms, on the critical path {node.critical_ms:,.1f} ms",
    ]
    if node.span.error is not None:
        lines.append(html.escape(printable_line(f"failed: {node.span.error[:100]}")))
    return "<br>".join(lines)

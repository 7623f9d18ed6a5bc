"""TTFT and TPOT of engines over the rate of their requests, with the limits."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.charts.theme import RED, apply_layout, axis, log_axis, theme_name


@dataclass(frozen=True, slots=True)
class EngineLine:
    """One engine: requests/s, ms at each, and its largest rate within the limits (None: there is none)."""

    label: str
    colour: str
    rates_rps: tuple[float, ...]
    times_ms: tuple[float, ...]
    largest_rps: float | None = None


def token_times(
    lines: Sequence[EngineLine], y_title: str, limit_ms: float | None, *, dark: bool
) -> go.Figure:
    """A line for each engine; its largest rate is a ring, the limit a dotted line."""
    theme = theme_name(dark)
    figure = go.Figure()
    for line in lines:
        named = html.escape(line.label)
        figure.add_scatter(
            x=line.rates_rps, y=line.times_ms, mode="lines+markers", name=named,
            line={"color": line.colour, "width": 2.5, "shape": "spline", "smoothing": 0.6},
            marker={"size": [11 if rate == line.largest_rps else 5 for rate in line.rates_rps]},
            hovertemplate=f"{named}: %{{y:.4g}} ms at %{{x:.4g}} requests/s<extra></extra>",
        )  # fmt: skip
    times = [time for line in lines for time in line.times_ms]
    far = max((rate for line in lines for rate in line.rates_rps), default=1.0)
    if limit_ms is not None:
        figure.add_scatter(
            x=[0.0, far], y=[limit_ms] * 2, mode="lines", name="limit",
            line={"color": RED[theme], "width": 1.5, "dash": "dot"}, hovertemplate="limit %{y:.6g} ms<extra></extra>",
        )  # fmt: skip
    apply_layout(figure, theme, height=300, key=f"token times {y_title}")
    figure.update_layout(
        xaxis=axis("requests/s of one engine", theme, rangemode="tozero"),
        yaxis=log_axis(y_title, theme, [*times, *([limit_ms] if limit_ms is not None else [])]),
    )
    return figure

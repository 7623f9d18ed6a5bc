"""A run under load: rate, 95th percentile and queue of every model over time, beside the expected figures."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.charts.theme import GRID, apply_layout, axis, theme_name

TITLES = ("requests/s", "p95, ms", "rows that wait")
HEIGHT_PX = 420


@dataclass(frozen=True, slots=True)
class LoadSeries:
    """One model: seconds, and at each its rate, p95 (None: nothing was answered) and waiting rows.

    The expected figures are those of plan and simulation, None where they give none.
    """

    label: str
    colour: str
    seconds: tuple[float, ...]
    rate_rps: tuple[float, ...]
    p95_ms: tuple[float | None, ...]
    queued: tuple[int, ...]
    expected_rps: float | None = None
    expected_p95_ms: float | None = None


def load_chart(lines: Sequence[LoadSeries], duration_s: float, *, dark: bool) -> go.Figure:
    """Three charts, one above the other; expected figures are dashed in the model's colour."""
    theme = theme_name(dark)
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    for line in lines:
        label = html.escape(line.label)
        for row, (values, wanted) in enumerate(
            ((line.rate_rps, line.expected_rps), (line.p95_ms, line.expected_p95_ms), (line.queued, None)),
            start=1,
        ):
            figure.add_scatter(
                x=line.seconds, y=values, mode="lines+markers", name=label, legendgroup=label,
                showlegend=row == 1, line={"color": line.colour, "width": 2}, marker={"size": 4},
                hovertemplate=f"{label}: %{{y:.4g}} at %{{x:.1f}} s<extra></extra>", row=row, col=1,
            )  # fmt: skip
            if wanted is not None:
                figure.add_scatter(
                    x=[0.0, duration_s], y=[wanted, wanted], mode="lines", showlegend=False, legendgroup=label,
                    line={"color": line.colour, "width": 1.5, "dash": "dash"},
                    hovertemplate=f"{label}: {wanted:.4g} expected<extra></extra>", row=row, col=1,
                )  # fmt: skip
    apply_layout(figure, theme, height=HEIGHT_PX, key="run")
    for row, title in enumerate(TITLES, start=1):
        figure.update_yaxes(axis(title, theme, rangemode="tozero"), row=row, col=1)
        figure.update_xaxes({"gridcolor": GRID[theme], "range": [0.0, duration_s]}, row=row, col=1)
    figure.update_xaxes(axis("seconds", theme, range=[0.0, duration_s]), row=3, col=1)
    return figure

"""Predicted figures of LLM serving beside measured ones: a point a row, on the diagonal where both are equal."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.charts.sweep import ACCENT
from app.charts.theme import AMBER, INK, apply_layout, dotted, log_axis, theme_name, with_opacity


@dataclass(frozen=True, slots=True)
class ServingPoint:
    """One row: what was measured, the prediction and its 90 % interval, ms; `calibrated`: beside known rows."""

    label: str
    measured_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float
    calibrated: bool


def measured_serving(points: Sequence[ServingPoint], title: str, *, dark: bool) -> go.Figure:
    """The points with their intervals; those beside known rows are filled."""
    theme = theme_name(dark)
    figure = go.Figure()
    ends = [value for point in points for value in (point.measured_ms, point.low_ms, point.high_ms)]
    least, most = 0.9 * min(ends), 1.1 * max(ends)
    figure.add_scatter(
        x=[least, most], y=[least, most], mode="lines", line=dotted(theme), hoverinfo="skip", showlegend=False
    )
    for calibrated, name in ((True, "beside known rows"), (False, "from sizes alone")):
        group = [point for point in points if point.calibrated == calibrated]
        if not group:
            continue
        colour = ACCENT[theme] if calibrated else AMBER[theme]
        figure.add_scatter(
            x=[point.measured_ms for point in group],
            y=[point.predicted_ms for point in group],
            mode="markers",
            name=name,
            customdata=[[html.escape(point.label), point.low_ms, point.high_ms] for point in group],
            error_y={
                "type": "data", "symmetric": False, "color": with_opacity(colour, 0.6), "thickness": 1.5, "width": 4,
                "array": [point.high_ms - point.predicted_ms for point in group],
                "arrayminus": [point.predicted_ms - point.low_ms for point in group],
            },
            marker={
                "symbol": "circle" if calibrated else "circle-open", "size": 10, "color": colour,
                "line": {"width": 2, "color": colour if not calibrated else INK[theme]},
            },
            hovertemplate="%{customdata[0]}<br>measured %{x:.4g} ms<br>predicted %{y:.4g} ms "
            "(%{customdata[1]:.4g} to %{customdata[2]:.4g})<extra></extra>",
        )  # fmt: skip
    apply_layout(figure, theme, height=290, key=f"measured {title}")
    figure.update_layout(
        xaxis=log_axis("measured, ms", theme, [least, most]),
        yaxis=log_axis("predicted, ms", theme, [least, most]),
    )
    return figure

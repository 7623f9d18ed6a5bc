"""Pictures of trainings: where a step's time goes, what memory holds, time against memory, nodes, how wrong it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.charts.theme import AMBER, GRID, INK, RED, apply_layout, axis, log_axis, theme_name

TIME_PARTS = {
    "compute": "#3f66cc",
    "tensor_communication": "#e2a11c",
    "pipeline_bubble": "#7f8790",
    "pipeline_communication": "#8c547a",
    "data_communication": "#d9532f",
    "optimizer": "#37a06a",
}
MEMORY_PARTS = {
    "weights": "#3f66cc",
    "gradients": "#93b0c9",
    "optimizer": "#37a06a",
    "activations": "#e2a11c",
    "communication": "#d9532f",
    "reserve": "#7f8790",
}
"""Colours of the parts, the first one next to the axis."""
ROW_PX = 34


def stacked_bars(
    names: Sequence[str],
    parts: Sequence[dict[str, float]],
    colours: dict[str, str],
    x_title: str,
    unit: str,
    *,
    dark: bool,
    limit: tuple[str, float] | None = None,
) -> go.Figure:
    """A bar a row in its parts, the first row on top; a dotted line at what there is, where that is near."""
    theme = theme_name(dark)
    figure = go.Figure()
    for part, colour in colours.items():
        values = [row.get(part, 0.0) for row in parts]
        if any(values):
            title = part.replace("_", " ")
            figure.add_trace(
                go.Bar(
                    y=list(names),
                    x=values,
                    name=title,
                    orientation="h",
                    marker={"color": colour},
                    hovertemplate=f"%{{y}}<br>{title} %{{x:.4g}} {unit}<extra></extra>",
                )
            )
    if limit is not None:
        figure.add_vline(
            x=limit[1],
            line={"color": INK[theme], "width": 1.5, "dash": "dot"},
            annotation={"text": limit[0], "font": {"size": 12}, "yanchor": "bottom", "y": 1.0},
            annotation_position="top left",
        )
    apply_layout(figure, theme, height=70 + ROW_PX * len(names), key="stacked")
    figure.update_layout(
        barmode="stack",
        legend={"traceorder": "normal"},
        margin={"t": 30 if limit is not None else 10},
        xaxis=axis(x_title, theme, rangemode="tozero"),
        yaxis=axis("", theme, autorange="reversed", showgrid=False),
    )
    return figure


@dataclass(frozen=True, slots=True)
class LabelledPoint:
    """A point with what is said of it, and whether it is the one that is shown."""

    x: float
    y: float
    words: str
    chosen: bool = False


def line_chart(
    dots: Sequence[LabelledPoint],
    x_title: str,
    y_title: str,
    *,
    dark: bool,
    shape: str = "linear",
    limit: float | None = None,
) -> go.Figure:
    """Points joined by a line; a dotted vertical line at `limit`."""
    theme = theme_name(dark)
    figure = go.Figure(
        go.Scatter(
            x=[dot.x for dot in dots],
            y=[dot.y for dot in dots],
            mode="lines+markers",
            line={"color": GRID[theme], "width": 2, "shape": shape},
            marker={
                "color": [AMBER[theme] if dot.chosen else "#3f66cc" for dot in dots],
                "size": [13 if dot.chosen else 9 for dot in dots],
                "line": {"color": INK[theme], "width": 1},
            },
            text=[dot.words for dot in dots],
            hovertemplate="%{text}<extra></extra>",
        )
    )
    if limit is not None:
        figure.add_vline(x=limit, line={"color": INK[theme], "width": 1, "dash": "dot"})
    apply_layout(figure, theme, height=300, key=f"points {x_title}")
    figure.update_layout(
        xaxis=axis(x_title, theme, rangemode="tozero"), yaxis=axis(y_title, theme, rangemode="tozero")
    )
    return figure


@dataclass(frozen=True, slots=True)
class StepAccuracy:
    """A published step: its family, its seconds measured and reckoned without that family, its interval."""

    family: str
    words: str
    measured: float
    estimated: float
    low: float
    high: float


def measured_against_estimated(rows: Sequence[StepAccuracy], *, dark: bool) -> go.Figure:
    """Reckoned over measured seconds, both logarithmic, a colour a family; equal on the line, dotted 20 % off."""
    theme = theme_name(dark)
    ends = [min(row.measured for row in rows) / 1.5, max(row.measured for row in rows) * 1.5]
    figure = go.Figure()
    for factor, dash in ((1.0, "solid"), (1.2, "dot"), (1 / 1.2, "dot")):
        figure.add_trace(
            go.Scatter(
                x=ends,
                y=[factor * end for end in ends],
                mode="lines",
                line={"color": RED[theme] if dash == "dot" else INK[theme], "width": 1, "dash": dash},
                hoverinfo="skip",
                showlegend=False,
            )
        )
    colours = (
        "#3f66cc", "#e2a11c", "#d9532f", "#37a06a", "#93b0c9", "#8c547a", "#c5b367", "#6d4be0", "#dc7de3", "#416c52",
    )  # fmt: skip
    symbols = (
        "circle",
        "square",
        "diamond",
        "cross",
        "triangle-up",
        "x",
        "star",
        "triangle-down",
        "hexagon",
        "bowtie",
    )
    for place, family in enumerate(dict.fromkeys(row.family for row in rows)):
        family_rows = [row for row in rows if row.family == family]
        figure.add_trace(
            go.Scatter(
                x=[row.measured for row in family_rows],
                y=[row.estimated for row in family_rows],
                mode="markers",
                name=family,
                marker={
                    "color": colours[place % len(colours)],
                    "symbol": symbols[place % len(symbols)],
                    "size": 8,
                    "opacity": 0.8,
                },
                text=[row.words for row in family_rows],
                hovertemplate="%{text}<br>measured %{x:.4g} s, estimated %{y:.4g} s<extra></extra>",
            )
        )
    apply_layout(figure, theme, height=420, key="judged")
    figure.update_layout(
        xaxis=log_axis("measured, s a step", theme, ends),
        yaxis=log_axis("estimated, s a step", theme, [row.estimated for row in rows]),
    )
    return figure

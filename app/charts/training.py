"""Charts of trainings: the parts of a step's time and memory, time against memory, scaling, accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.charts.theme import AMBER, GRID, INK, RED, apply_layout, axis, dotted, log_axis, note, theme_name

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
    """A bar for each row in its parts, the first row on top; `limit` is a dotted line and its label."""
    theme = theme_name(dark)
    figure = go.Figure()
    for part, colour in colours.items():
        values = [row.get(part, 0.0) for row in parts]
        if any(values):
            title = part.replace("_", " ")
            figure.add_bar(
                y=list(names),
                x=values,
                name=title,
                orientation="h",
                marker={"color": colour},
                hovertemplate=f"%{{y}}<br>{title} %{{x:.4g}} {unit}<extra></extra>",
            )
    if limit is not None:
        text = note(limit[0]) | {"yanchor": "bottom", "y": 1.0}
        figure.add_vline(
            limit[1], line=dotted(theme) | {"width": 1.5}, annotation=text, annotation_position="top left"
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
    """A point with its hover text, and whether it is the chosen one."""

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
        figure.add_vline(limit, line=dotted(theme))
    apply_layout(figure, theme, height=300, key=f"points {x_title}")
    figure.update_layout(
        xaxis=axis(x_title, theme, rangemode="tozero"), yaxis=axis(y_title, theme, rangemode="tozero")
    )
    return figure


@dataclass(frozen=True, slots=True)
class StepAccuracy:
    """A published step in seconds: measured, estimated without its family, and the interval of the estimate."""

    family: str
    words: str
    measured: float
    estimated: float
    low: float
    high: float


def measured_against_estimated(rows: Sequence[StepAccuracy], *, dark: bool) -> go.Figure:
    """Estimated over measured seconds, both logarithmic, a colour for each family.

    Both are equal on the line; the dotted lines are 20 % off.
    """
    theme = theme_name(dark)
    ends = [min(row.measured for row in rows) / 1.5, max(row.measured for row in rows) * 1.5]
    figure = go.Figure()
    for factor, dash in ((1.0, "solid"), (1.2, "dot"), (1 / 1.2, "dot")):
        figure.add_scatter(
            x=ends,
            y=[factor * end for end in ends],
            mode="lines",
            line={"color": RED[theme] if dash == "dot" else INK[theme], "width": 1, "dash": dash},
            hoverinfo="skip",
            showlegend=False,
        )
    colours = (
        "#3f66cc", "#e2a11c", "#d9532f", "#37a06a", "#93b0c9", "#8c547a", "#c5b367", "#6d4be0", "#dc7de3", "#416c52",
    )  # fmt: skip
    symbols = (
        "circle", "square", "diamond", "cross", "triangle-up", "x", "star", "triangle-down", "hexagon", "bowtie",
    )  # fmt: skip
    for place, family in enumerate(dict.fromkeys(row.family for row in rows)):
        family_rows = [row for row in rows if row.family == family]
        figure.add_scatter(
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
    apply_layout(figure, theme, height=420, key="judged")
    figure.update_layout(
        xaxis=log_axis("measured, s/step", theme, ends),
        yaxis=log_axis("estimated, s/step", theme, [*ends, *(row.estimated for row in rows)]),
    )
    return figure

"""What models get while GPUs change: throughput over the seconds of the change, against the demand."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.charts.theme import apply_layout, axis, dotted, note, theme_name


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """A model's throughput ÷ demand from each of these seconds on; the last one is the end of the change."""

    label: str
    colour: str
    seconds: tuple[float, ...]
    shares: tuple[float, ...]


def change_chart(lines: Sequence[ChangeLine], *, dark: bool) -> go.Figure:
    """A stepped line for each model; the dotted line is the demand."""
    theme = theme_name(dark)
    figure = go.Figure()
    for line in lines:
        named = html.escape(line.label)
        figure.add_scatter(
            x=line.seconds, y=line.shares, mode="lines", name=named, showlegend=True,
            line={"color": line.colour, "width": 2.5, "shape": "hv"},
            hovertemplate=f"{named}: %{{y:.4g}} × its demand from %{{x:.4g}} s on<extra></extra>",
        )  # fmt: skip
    figure.add_hline(1.0, line=dotted(theme), annotation=note("demand"), annotation_position="top left")
    apply_layout(figure, theme, height=230, key="change")
    most = max((share for line in lines for share in line.shares), default=1.0)
    figure.update_layout(
        xaxis=axis("seconds since the first step, estimated", theme, rangemode="tozero"),
        yaxis=axis("× demand", theme, range=[-0.04 * max(most, 1.0), 1.12 * max(most, 1.0)]),
    )
    return figure

"""Seconds of a micro-batch in the blocks of a pipeline, a bar a rank."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from app.charts.theme import apply_layout, axis, theme_name
from app.charts.training import ROW_PX

SHADES = ("#3f66cc", "#93b0c9")
"""Of neighbouring blocks, so that each is seen to end."""


def block_bars(names: Sequence[str], blocks_s: Sequence[Mapping[str, float]], *, dark: bool) -> go.Figure:
    """A bar a row, its blocks beside each other in their order, the first row on top."""
    theme, figure = theme_name(dark), go.Figure()
    for place in range(max(map(len, blocks_s), default=0)):
        rows = [
            (name, *list(spent.items())[place])
            for name, spent in zip(names, blocks_s, strict=True)
            if place < len(spent)
        ]
        figure.add_trace(
            go.Bar(
                y=[name for name, _, _ in rows], x=[seconds for _, _, seconds in rows], orientation="h",
                showlegend=False, marker={"color": SHADES[place % len(SHADES)]},
                text=[html.escape(block) for _, block, _ in rows], textposition="none",
                hovertemplate="%{y}<br>%{text} %{x:.4g} s<extra></extra>",
            )
        )  # fmt: skip
    apply_layout(figure, theme, height=70 + ROW_PX * len(names), key="blocks")
    figure.update_layout(
        barmode="stack",
        xaxis=axis("s a micro-batch", theme, rangemode="tozero"),
        yaxis=axis("", theme, autorange="reversed", showgrid=False),
    )
    return figure

"""Figures of runs over their steps, several runs in one picture."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.charts.theme import axis, lay_out, themed

COLOURS = ("#3f66cc", "#e2a11c", "#d9532f", "#37a06a", "#8c547a", "#93b0c9", "#c5b367", "#6d4be0")
MOST_POINTS = 500
"""Of a line: more steps are drawn as means of equal blocks of steps."""
RATE_POINTS = 100
"""Of a line of rates: those of single steps jump."""
HEIGHT_PX = 260


@dataclass(frozen=True, slots=True)
class Curve:
    """A run: its name, steps, and a figure at each."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]


def curves(of: Sequence[Curve], up: str, unit: str, *, dark: bool) -> go.Figure:
    """A line a run over the steps."""
    theme = themed(dark)
    figure = go.Figure()
    for place, one in enumerate(of):
        label, tail = html.escape(one.label), f" {unit}" if unit else ""
        figure.add_trace(
            go.Scatter(
                x=list(one.steps), y=list(one.values), mode="lines+markers" if len(one.steps) < 60 else "lines",
                name=label, line={"color": COLOURS[place % len(COLOURS)], "width": 2}, marker={"size": 4},
                hovertemplate=f"{label}: %{{y:.5g}}{tail} at step %{{x:.0f}}<extra></extra>",
            )
        )  # fmt: skip
    lay_out(figure, theme, height=HEIGHT_PX, key=f"runs {up}")
    figure.update_layout(xaxis=axis("step", theme), yaxis=axis(up, theme, rangemode="tozero"))
    return figure


def thinned(values: Sequence[float], most: int = MOST_POINTS) -> list[float]:
    """Means of equal blocks, at most so many; the values themselves where they are few."""
    block = -(-len(values) // most)
    if block <= 1:
        return list(values)
    return [
        sum(values[start : start + block]) / len(values[start : start + block])
        for start in range(0, len(values), block)
    ]


def rates(amounts: Sequence[float], seconds: Sequence[float], most: int = MOST_POINTS) -> list[float]:
    """Amounts by second over the same blocks: of sums, since a mean of rates is not the rate of all."""
    block = max(1, -(-len(amounts) // most))
    return [
        sum(amounts[start : start + block]) / max(sum(seconds[start : start + block]), 1e-9)
        for start in range(0, len(amounts), block)
    ]

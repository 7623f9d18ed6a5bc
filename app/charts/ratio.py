"""Throughput of one profile over that of another, point by point, with what the intervals allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.charts.theme import apply_layout, dotted, log_axis, theme_name


@dataclass(frozen=True, slots=True)
class RatioLine:
    """The common points of one place: batch sizes, ratios, and their lowest and highest where intervals are known."""

    label: str
    colour: str
    batch_sizes: tuple[int, ...]
    ratios: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    within_noise: tuple[bool, ...]


REACH = 3.0
"""The axis ends at most this factor beyond the points: an endless whisker must not flatten them."""


def ratio(lines: Sequence[RatioLine], title: str, *, dark: bool) -> go.Figure:
    """A line for each place over batch size; hollow where the difference is within noise; a dotted line at 1.

    The axis is logarithmic: twice and half are equally far from 1.
    """
    theme = theme_name(dark)
    figure = go.Figure()
    for line in lines:
        figure.add_scatter(
            x=line.batch_sizes,
            y=line.ratios,
            name=line.label,
            mode="lines+markers",
            line={"color": line.colour, "width": 2},
            marker={
                "size": 9,
                "color": line.colour,
                "symbol": ["circle-open" if flag else "circle" for flag in line.within_noise],
                "line": {"width": 2, "color": line.colour},
            },
            error_y={
                "type": "data",
                "array": [high - value for value, high in zip(line.ratios, line.highs, strict=True)],
                "arrayminus": [value - low for value, low in zip(line.ratios, line.lows, strict=True)],
                "thickness": 1,
                "width": 3,
                "color": line.colour,
            },
            hovertemplate="%{fullData.name}<br>batch %{x}: × %{y:.4g}<extra></extra>",
        )
    figure.add_hline(1.0, line=dotted(theme))
    apply_layout(figure, theme, height=340, key="ratio")
    reach = _axis_range(lines)
    batches = sorted({batch for line in lines for batch in line.batch_sizes})
    figure.update_layout(
        xaxis=log_axis("batch size", theme, batches, at=batches),
        yaxis=log_axis(title, theme, [10**end for end in reach], range=reach),
    )
    return figure


def _axis_range(lines: Sequence[RatioLine]) -> tuple[float, float]:
    """The ends of the axis as powers of ten: they hold 1, every point, and the whiskers up to REACH."""
    ratios = [1.0, *(value for line in lines for value in line.ratios if value > 0)]
    lowest, highest = min(ratios), max(ratios)
    low = min([lowest, *(value for line in lines for value in line.lows if value > 0)])
    high = max([highest, *(value for line in lines for value in line.highs)])
    return math.log10(max(low, lowest / REACH) / 1.1), math.log10(min(high, highest * REACH) * 1.1)

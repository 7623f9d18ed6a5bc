"""What the charts over batch sizes share: ink, grid, amber for what is estimated, axes and margins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import plotly.graph_objects as go

from torchsplit_core.pictures.numbers import THIN

Theme = Literal["light", "dark"]
AMBER = {"light": "#b45309", "dark": "#fbbf24"}
INK = {"light": "#1b1f24", "dark": "#e6eaee"}
GRID = {"light": "#dcdedb", "dark": "#2b343d"}
RED = {"light": "#a3241b", "dark": "#ffa198"}
CONFIG = {"displaylogo": False, "displayModeBar": False}
"""How Streamlit is told to show a figure: without Plotly's own buttons; a double click shows all again."""
LEGEND_ROW_PX = 22
AXIS_PX = 48
"""Room of an axis: its labels and its title."""


def theme_name(dark: bool) -> Theme:
    """The name of the theme."""
    return "dark" if dark else "light"


def axis(title: str, theme: Theme, **more: Any) -> dict[str, Any]:
    """One axis of a chart."""
    return {
        "title": {"text": title, "font": {"size": 13}},
        "gridcolor": GRID[theme],
        "linecolor": GRID[theme],
        "zeroline": False,
        "automargin": True,
    } | more


def log_axis(
    title: str, theme: Theme, values: Iterable[float], *, at: Sequence[float] = (), **more: Any
) -> dict[str, Any]:
    """A logarithmic axis over these values: labels at powers of ten, below two decades at 2 and 5 too, as whole
    numbers, and a short tick at each digit between. `at`: labels at these values instead.

    How many labels there are is set, not where: so a zoom has labels of its own.
    """
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    decades = math.log10(max(positive) / min(positive)) if positive else 0.0
    ticks: dict[str, Any] = {"tickvals": list(at)} if at else {"nticks": _labels(decades)}
    minor = {"ticks": "outside", "ticklen": 3, "tickcolor": INK[theme], "dtick": "D1", "tick0": 0}
    if not at:
        ticks |= {
            "tickformat": ",.4~r",
            "ticks": "outside",
            "ticklen": 6,
            "tickcolor": INK[theme],
            "minor": minor,
        }
    return axis(title, theme, type="log", **(ticks | more))


def _labels(decades: float) -> int:
    """So many that plotly.js, which labels powers of ten from 0.7 decades a label on, and 1, 2 and 5 from 0.3 on,
    labels what it should; the axis ends a little beyond the values."""
    whole = decades * 1.1
    if decades >= 2:
        return max(2, int(whole / 0.75))
    # Within one power of ten it labels whole steps, and takes fewer of them than it is asked for.
    return 4 if whole < 0.9 else max(3, math.ceil(whole / 0.55))


def apply_layout(figure: go.Figure, theme: Theme, *, height: int, key: str) -> None:
    """Paper, font, a legend below the picture, and a zoom that stays when the figures change."""
    # A legend grows downward; about three names fit beside each other.
    named = sum(trace.showlegend is not False for trace in figure.data)
    below = LEGEND_ROW_PX * (1 + named // 3) + AXIS_PX if named > 1 else 0
    figure.update_layout(
        height=height + below,
        # The legend stands on the picture's lower edge: the axis and its title have the room between.
        margin={"l": 10, "r": 10, "t": 10, "b": 10 + below},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": INK[theme], "size": 13, "family": "Source Sans, system-ui, sans-serif"},
        legend={
            "orientation": "h",
            "itemwidth": 44,
            "x": 0,
            "xanchor": "left",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
        },
        showlegend=named > 1,
        separators=f".{THIN}",
        uirevision=key,
    )


def with_opacity(colour: str, opacity: float) -> str:
    """A colour #rrggbb as rgba."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def legend_mark(name: str, marker: dict[str, Any]) -> go.Scatter:
    """An entry of the legend in a marker's full colour: of points with opacities of their own it shows the mean."""
    return go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=marker, hoverinfo="skip")

"""What the charts over batch sizes share: ink, grid, amber for what is estimated, axes and margins."""

from __future__ import annotations

from typing import Any, Literal

import plotly.graph_objects as go

from app.format.numbers import THIN

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


def themed(dark: bool) -> Theme:
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


def lay_out(figure: go.Figure, theme: Theme, *, height: int, key: str) -> None:
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


def faint(colour: str, opacity: float) -> str:
    """A colour #rrggbb as rgba."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def legend_mark(name: str, marker: dict[str, Any]) -> go.Scatter:
    """An entry of the legend in a marker's full colour: of points with opacities of their own it shows the mean."""
    return go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=marker, hoverinfo="skip")

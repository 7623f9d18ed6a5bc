"""What the charts share: colours, axes, margins, dotted limits."""

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
"""Plotly's configuration: without its buttons. A double click resets the zoom."""
STEADY: dict[str, Any] = {name: {"marker": {"opacity": 1.0}} for name in ("selected", "unselected")}
"""Selecting a point rings it. Plotly would fade the others, as charts here do with dominated points."""
LEGEND_ROW_PX = 22
AXIS_PX = 48
"""Height of an axis: its labels and its title."""


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

    The number of labels is set, not their places, so that Plotly labels a zoomed axis anew.
    """
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    decades = math.log10(max(positive) / min(positive)) if positive else 0.0
    ticks: dict[str, Any] = {"tickvals": list(at)} if at else {"nticks": _labels(decades)}
    minor = {"ticks": "outside", "ticklen": 3, "tickcolor": INK[theme], "dtick": "D1", "tick0": 0}
    if not at:
        ticks |= {"tickformat": ",.4~r", "ticks": "outside", "ticklen": 6, "tickcolor": INK[theme]}
        ticks["minor"] = minor
    return axis(title, theme, type="log", **(ticks | more))


def _labels(decades: float) -> int:
    """The `nticks` with which plotly.js labels what `log_axis` promises: it labels powers of ten from 0.7 decades a
    label on, and 1, 2 and 5 from 0.3 on. The axis ends a little beyond the values."""
    whole = decades * 1.1
    if decades >= 2:
        return max(2, int(whole / 0.75))
    # Within one decade plotly.js labels whole steps, fewer than it is asked for.
    return 4 if whole < 0.9 else max(3, math.ceil(whole / 0.55))


def apply_layout(figure: go.Figure, theme: Theme, *, height: int, key: str) -> None:
    """Set paper, font, the legend below the plot, and a zoom that survives new data while `key` stays the same."""
    # A legend grows downward; about three names fit beside each other.
    named = sum(trace.showlegend is not False for trace in figure.data)
    below = LEGEND_ROW_PX * (1 + named // 3) + AXIS_PX if named > 1 else 0
    corner = {"x": 0, "xanchor": "left", "y": 0, "yanchor": "bottom", "yref": "container"}
    figure.update_layout(
        height=height + below,
        # The legend stands on the picture's lower edge: the axis and its title have the room between.
        margin={"l": 10, "r": 10, "t": 10, "b": 10 + below},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": INK[theme], "size": 13, "family": "Source Sans, system-ui, sans-serif"},
        legend={"orientation": "h", "itemwidth": 44, **corner},
        showlegend=named > 1,
        separators=f".{THIN}",
        uirevision=key,
    )


def with_opacity(colour: str, opacity: float) -> str:
    """A colour #rrggbb as rgba."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def dotted(theme: Theme) -> dict[str, Any]:
    """The line of a limit or a bound."""
    return {"color": INK[theme], "width": 1, "dash": "dot"}


def note(text: str) -> dict[str, Any]:
    """The words beside such a line."""
    return {"text": text, "font": {"size": 12}}


def joining_line(
    figure: go.Figure, theme: Theme, points: Sequence[tuple[float, float | None]], shape: str = "linear"
) -> None:
    """Add a pale line through points (x, y), of Plotly's line `shape`."""
    figure.add_scatter(
        x=[x for x, _ in points], y=[y for _, y in points], mode="lines", hoverinfo="skip", showlegend=False,
        line={"shape": shape, "color": GRID[theme], "width": 2},
    )  # fmt: skip


def legend_mark(name: str, marker: dict[str, Any]) -> go.Scatter:
    """A legend entry in the marker's full colour: Plotly would show the mean opacity of the points."""
    return go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=marker, hoverinfo="skip")

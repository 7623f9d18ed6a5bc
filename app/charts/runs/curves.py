"""Figures of runs over their steps or their time, several runs in one chart, with their events."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import plotly.graph_objects as go

from app.charts.theme import INK, Theme, apply_layout, axis, legend_mark, log_axis, theme_name, with_opacity
from torchsplit_core.pictures.colours import PALETTE

HEIGHT_PX = 260
DASHES = ("solid", "dash", "dot", "dashdot")
"""For lines of equal colour: the palette has twelve."""
FEW_STEPS = 60
"""A line with fewer points has a marker at each."""
PALE = 0.3
SYMBOLS: Mapping[str, tuple[str, int]] = {"checkpoint": ("circle-open", 8), "rank lost": ("x", 10)}
"""Kind of event at a point of a line: its symbol and size in pixels."""
RESTART = "restart"
"""The kind of event that is a vertical line over the whole height."""
HOVER_POINTS = 25
"""Of a vertical line, so that its words show wherever the pointer is on it."""


@dataclass(frozen=True, slots=True)
class CurveEvent:
    """An event of a kind in SYMBOLS, or RESTART, where it is on the line, in lines of words."""

    kind: str
    at: float
    value: float
    words: str


@dataclass(frozen=True, slots=True)
class RunCurve:
    """A run: its name, its steps or seconds, and a figure at each.

    `smoothed`, if given, is drawn in full and the values pale behind it. `place` is the place among all runs, which
    decides colour and dashes.
    """

    label: str
    at: Sequence[float]
    values: Sequence[float]
    place: int = 0
    smoothed: Sequence[float] | None = None
    events: tuple[CurveEvent, ...] = ()


def colour_of(place: int) -> str:
    """The colour of the run at that place."""
    return PALETTE[place % len(PALETTE)]


def curves(
    run_curves: Sequence[RunCurve],
    y_title: str,
    unit: str,
    *,
    dark: bool,
    along: str = "step",
    logarithmic: bool = False,
    height_px: int = HEIGHT_PX,
) -> go.Figure:
    """A line for each run; `along` is the title of the x axis, "step" or a time in seconds."""
    theme = theme_name(dark)
    figure = go.Figure()
    for curve in run_curves:
        _line(figure, curve, unit, along)
    _restart_lines(figure, run_curves, theme, logarithmic=logarithmic)
    _event_marks(figure, run_curves, theme)
    apply_layout(figure, theme, height=height_px, key=f"runs {y_title} {along} {logarithmic}")
    if logarithmic:
        upright = log_axis(y_title, theme, [value for curve in run_curves for value in curve.values])
    else:
        upright = axis(y_title, theme, rangemode="tozero")
    figure.update_layout(xaxis=axis(along, theme, rangemode="tozero"), yaxis=upright)
    return figure


def _line(figure: go.Figure, curve: RunCurve, unit: str, along: str) -> None:
    label, tail = html.escape(curve.label), f" {unit}" if unit else ""
    colour, dash = colour_of(curve.place), DASHES[curve.place // len(PALETTE) % len(DASHES)]
    where = "at step %{x:.0f}" if along == "step" else "after %{x:.4g} s"
    mode = "lines+markers" if len(curve.at) < FEW_STEPS else "lines"
    if curve.smoothed is not None:
        figure.add_scatter(
            x=list(curve.at), y=list(curve.values), mode="lines", showlegend=False, legendgroup=label,
            line={"color": with_opacity(colour, PALE), "width": 1.5, "dash": dash},
            hovertemplate=f"{label}, not smoothed: %{{y:.5g}}{tail} {where}<extra></extra>",
        )  # fmt: skip
    figure.add_scatter(
        x=list(curve.at), y=list(curve.values if curve.smoothed is None else curve.smoothed), name=label, mode=mode,
        legendgroup=label, line={"color": colour, "width": 2, "dash": dash}, marker={"size": 4},
        hovertemplate=(
            f"{label}{', smoothed' if curve.smoothed is not None else ''}: %{{y:.5g}}{tail} {where}<extra></extra>"
        ),
    )  # fmt: skip


def _restart_lines(
    figure: go.Figure, run_curves: Sequence[RunCurve], theme: Theme, *, logarithmic: bool
) -> None:
    """A dotted vertical line at each restart: of several runs in the run's colour, of one in the ink of the text."""
    values = [value for curve in run_curves for value in curve.values if isfinite(value)]
    if logarithmic:
        values = [value for value in values if value > 0]
    if not values or not any(event.kind == RESTART for curve in run_curves for event in curve.events):
        return
    # As far as the axis goes: where it is not logarithmic it begins at zero.
    low, high = (min(values) if logarithmic else min(0.0, *values)), max(values)
    shares = [place / (HOVER_POINTS - 1) for place in range(HOVER_POINTS)]
    heights = [low * (high / low) ** share if logarithmic else low + (high - low) * share for share in shares]
    alone = INK[theme] if len(run_curves) == 1 else None
    for curve in run_curves:
        restarts = [event for event in curve.events if event.kind == RESTART]
        if not restarts:
            continue
        words = [
            "<br>".join(html.escape(text) for text in (f"{curve.label}: restart", *event.words.split("\n")))
            for event in restarts
        ]
        figure.add_trace(
            go.Scatter(
                # A gap ends each line.
                x=[at for event in restarts for at in (*[event.at] * HOVER_POINTS, None)],
                y=[height for _ in restarts for height in (*heights, None)],
                text=[line for text in words for line in (*[text] * HOVER_POINTS, None)],
                mode="lines", showlegend=False, legendgroup=html.escape(curve.label),
                line={"color": alone or colour_of(curve.place), "width": 1.5, "dash": "dot"},
                hovertemplate="%{text}<extra></extra>",
            )
        )  # fmt: skip
    figure.add_trace(legend_mark(RESTART, {"symbol": "line-ns-open", "size": 12, "color": INK[theme]}))


def _event_marks(figure: go.Figure, run_curves: Sequence[RunCurve], theme: Theme) -> None:
    """Add the events as symbols on the lines, each kind once in the legend."""
    for what, (symbol, size) in SYMBOLS.items():
        line = {"color": INK[theme], "width": 1.5 if symbol.endswith("open") else 1}
        drawn = [(curve, [entry for entry in curve.events if entry.kind == what]) for curve in run_curves]
        drawn = [(curve, events) for curve, events in drawn if events]
        for curve, events in drawn:
            figure.add_scatter(
                x=[entry.at for entry in events], y=[entry.value for entry in events], mode="markers", showlegend=False,
                legendgroup=html.escape(curve.label), hovertemplate="%{text}<extra></extra>",
                text=[html.escape(f"{curve.label}: {entry.words}") for entry in events],
                marker={"symbol": symbol, "size": size, "color": colour_of(curve.place), "line": line},
            )  # fmt: skip
        if drawn:
            figure.add_trace(legend_mark(what, {"symbol": symbol, "size": size, "color": INK[theme]}))

"""Figures of runs over their steps or their time, several runs in one picture, with what happened to them."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.charts.theme import INK, Theme, apply_layout, axis, legend_mark, log_axis, theme_name, with_opacity
from torchsplit_core.pictures.colours import PALETTE

HEIGHT_PX = 260
DASHES = ("solid", "dash", "dot", "dashdot")
"""Of lines that have their colour in common: a palette has twelve."""
FEW_STEPS = 60
"""Up to which each point of a line is marked."""
PALE = 0.3
SYMBOLS: Mapping[str, tuple[str, int]] = {
    "checkpoint": ("circle-open", 8), "restart": ("triangle-up", 11), "rank lost": ("x", 10),
}  # fmt: skip
"""What happened, with its symbol and size in pixels."""


@dataclass(frozen=True, slots=True)
class CurveEvent:
    """What (a key of SYMBOLS) happened where on the line, in words."""

    kind: str
    at: float
    value: float
    words: str


@dataclass(frozen=True, slots=True)
class RunCurve:
    """A run: its name, where it was (steps, or seconds), and a figure at each.

    `smoothed`, where it is given, is drawn in full and the values pale behind it. `place` is its place among all
    runs, which says its colour and dashes.
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
    """A line a run; `along` is what the axis below says, "step" or a time in seconds."""
    theme = theme_name(dark)
    figure = go.Figure()
    for curve in run_curves:
        _line(figure, curve, unit, along)
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
        figure.add_trace(
            go.Scatter(
                x=list(curve.at), y=list(curve.values), mode="lines", showlegend=False, legendgroup=label,
                line={"color": with_opacity(colour, PALE), "width": 1.5, "dash": dash},
                hovertemplate=f"{label}, not smoothed: %{{y:.5g}}{tail} {where}<extra></extra>",
            )
        )  # fmt: skip
    figure.add_trace(
        go.Scatter(
            x=list(curve.at), y=list(curve.values if curve.smoothed is None else curve.smoothed), name=label, mode=mode,
            legendgroup=label, line={"color": colour, "width": 2, "dash": dash}, marker={"size": 4},
            hovertemplate=(
                f"{label}{', smoothed' if curve.smoothed is not None else ''}: %{{y:.5g}}{tail} {where}<extra></extra>"
            ),
        )
    )  # fmt: skip


def _event_marks(figure: go.Figure, run_curves: Sequence[RunCurve], theme: Theme) -> None:
    """Symbols on the lines, each kind once in the legend."""
    for what, (symbol, size) in SYMBOLS.items():
        seen = False
        for curve in run_curves:
            matching = [happened for happened in curve.events if happened.kind == what]
            if not matching:
                continue
            seen = True
            figure.add_trace(
                go.Scatter(
                    x=[happened.at for happened in matching], y=[happened.value for happened in matching],
                    mode="markers",
                    showlegend=False, legendgroup=html.escape(curve.label),
                    marker={
                        "symbol": symbol, "size": size, "color": colour_of(curve.place),
                        "line": {"color": INK[theme], "width": 1.5 if symbol.endswith("open") else 1},
                    },
                    text=[html.escape(f"{curve.label}: {happened.words}") for happened in matching],
                    hovertemplate="%{text}<extra></extra>",
                )
            )  # fmt: skip
        if seen:
            figure.add_trace(legend_mark(what, {"symbol": symbol, "size": size, "color": INK[theme]}))

"""A sweep: what plans reach over one parameter, and GPUs used against the worst-served model.

A dot is filled where no plan can be better; where that is not proven it is hollow, with a line to the bound. A cross on
the axis means that no plan is possible. Points carry their number as customdata[0].
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import plotly.graph_objects as go

from app.charts.theme import (
    INK,
    RED,
    STEADY,
    Theme,
    apply_layout,
    axis,
    dotted,
    joining_line,
    note,
    theme_name,
    with_opacity,
)  # fmt: skip

ACCENT = {"light": "#0f766e", "dark": "#2dd4bf"}
"""The theme's accent, lighter on the dark ground because a dot is small."""
OPEN, DOT_PX, CHOSEN_PX = "circle-open", 11, 16
FAINT = 0.35
"""Opacity of a dominated plan."""


@dataclass(frozen=True, slots=True)
class SweepMark:
    """One value of the parameter: its number in the sweep, what its plan reaches, and the bound.

    `y` is None without a plan: `state` says how that is known and `text` why. `bound` is None where this figure has
    none.
    """

    number: int
    x: float
    y: float | None
    bound: float | None
    state: Literal["proven", "open", "infeasible", "timeout"]
    text: str = ""
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class PlanDot:
    """A plan by the GPUs it uses and its worst-served model; `dominated`: another plan is no worse in both."""

    number: int
    gpus: int
    worst_served: float
    label: str
    dominated: bool
    chosen: bool = False


def curve(
    marks: Sequence[SweepMark],
    x_title: str,
    y_title: str,
    level: float | None,
    *,
    dark: bool,
    level_text: str = "its demand",
) -> go.Figure:
    """One figure of the plans over the parameter; `level` is where the dotted line is, None for no line."""
    theme = theme_name(dark)
    figure = go.Figure()
    plans = [mark for mark in marks if mark.y is not None]
    if len(plans) > 1:
        joining_line(figure, theme, [(mark.x, mark.y) for mark in plans])
    for name, state, symbol in (
        ("proven", "proven", "circle"),
        ("not proven: line to the bound", "open", OPEN),
    ):
        group = [mark for mark in plans if mark.state == state]
        if group:
            figure.add_trace(_plans(group, name, symbol, theme))
    for name, state, symbol, colour in (
        ("impossible, proven", "infeasible", "x", RED[theme]),
        ("no plan found in time", "timeout", "x-thin-open", INK[theme]),
    ):
        group = [mark for mark in marks if mark.state == state]
        if group:
            figure.add_trace(_marks_without_plan(group, name, symbol, colour))
    if level is not None and plans:
        figure.add_hline(
            level, line=dotted(theme), annotation=note(level_text), annotation_position="top left"
        )
    apply_layout(figure, theme, height=330, key=f"sweep {y_title}")
    top = max((value for mark in plans for value in (mark.y, mark.bound) if value is not None), default=1.0)
    figure.update_layout(
        xaxis=axis(x_title, theme, range=_axis_range([mark.x for mark in marks])),
        # Crosses are on the axis, which would cut off half of each.
        yaxis=axis(y_title, theme, range=[-0.05 * (top or 1.0), 1.1 * (max(top, level or 0.0) or 1.0)]),
        clickmode="event+select",
    )
    return figure


def pareto_front(spots: Sequence[PlanDot], *, dark: bool) -> go.Figure:
    """GPUs used against the worst-served model; the stepped line joins the plans that no other dominates."""
    theme = theme_name(dark)
    figure = go.Figure()
    best = sorted((spot for spot in spots if not spot.dominated), key=lambda spot: spot.gpus)
    if len(best) > 1:
        joining_line(figure, theme, [(spot.gpus, spot.worst_served) for spot in best], "hv")
    for name, dominated in (("no other is better in both", False), ("beaten", True)):
        group = [spot for spot in spots if spot.dominated is dominated]
        if not group:
            continue
        figure.add_scatter(
            x=[spot.gpus for spot in group], y=[spot.worst_served for spot in group], mode="markers", name=name,
            customdata=[[spot.number, _hover_text(spot.label)] for spot in group],
            marker=_marker(group, ACCENT[theme], "circle", theme, FAINT if dominated else 1.0),
            **STEADY,
            hovertemplate="%{customdata[1]}<br>%{x} GPUs used<br>worst served %{y:.4g} ×<extra></extra>",
        )  # fmt: skip
    apply_layout(figure, theme, height=330, key="sweep front")
    most = max((spot.gpus for spot in spots), default=1)
    figure.update_layout(
        xaxis=axis(
            "GPUs used",
            theme,
            range=[-0.05 * most, 1.06 * most],
            tickformat="d",
            dtick=1 if most <= 12 else None,
        ),
        yaxis=axis("worst-served model, × its demand", theme, rangemode="tozero"),
        clickmode="event+select",
    )
    return figure


def _plans(marks: Sequence[SweepMark], name: str, symbol: str, theme: Theme) -> go.Scatter:
    gaps = [(mark.bound if mark.bound is not None else mark.y or 0.0) - (mark.y or 0.0) for mark in marks]
    return go.Scatter(
        x=[mark.x for mark in marks],
        y=[mark.y for mark in marks],
        customdata=[[mark.number, _hover_text(mark.text)] for mark in marks],
        mode="markers",
        name=name,
        marker=_marker(marks, ACCENT[theme], symbol, theme),
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [max(room, 0.0) for room in gaps],
            "arrayminus": [max(-room, 0.0) for room in gaps],
            "color": with_opacity(ACCENT[theme], 0.55),
            "thickness": 2,
            "visible": any(gaps),
        },
        **STEADY,
        hovertemplate="%{x:.6g}: %{y:.4g}<br>%{customdata[1]}<extra></extra>",
    )


def _marks_without_plan(marks: Sequence[SweepMark], name: str, symbol: str, colour: str) -> go.Scatter:
    return go.Scatter(
        x=[mark.x for mark in marks],
        y=[0.0] * len(marks),
        customdata=[[mark.number, _hover_text(mark.text)] for mark in marks],
        mode="markers",
        name=name,
        cliponaxis=False,
        marker={
            "symbol": symbol,
            "color": colour,
            "size": [CHOSEN_PX if mark.chosen else DOT_PX for mark in marks],
            "opacity": 1.0,
            "line": {"width": 2, "color": colour},
        },
        **STEADY,
        hovertemplate="%{x:.6g}: no plan<br>%{customdata[1]}<extra></extra>",
    )


def _marker(
    points: Sequence[SweepMark] | Sequence[PlanDot],
    colour: str,
    symbol: str,
    theme: Theme,
    opacity: float = 1.0,
) -> dict[str, Any]:
    """The outline of a hollow marker is its ring, so that only its size marks a choice."""
    ink, thin = (colour, 2) if symbol == OPEN else (INK[theme], 0)
    return {
        "color": colour,
        "symbol": symbol,
        "size": [CHOSEN_PX if point.chosen else DOT_PX for point in points],
        "opacity": [1.0 if point.chosen else opacity for point in points],
        "line": {"width": [3 if point.chosen else thin for point in points], "color": ink},
    }


def _axis_range(values: Sequence[float]) -> list[float]:
    """A range that keeps the first and last point off the edge, where they could not be clicked."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    space = 0.05 * (high - low) or 0.5
    return [low - space, high + space]


def _hover_text(text: str) -> str:
    """A text with a user's names in it, as lines that Plotly does not interpret."""
    return "<br>".join(html.escape(line) for line in textwrap.wrap(text, 64)[:8])

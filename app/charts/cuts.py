"""Cuts of a model: the cost of each against the bytes across it, and the load of each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.charts.theme import (
    AMBER,
    INK,
    STEADY,
    Theme,
    apply_layout,
    axis,
    dotted,
    joining_line,
    legend_mark,
    note,
    theme_name,
)  # fmt: skip
from torchsplit_core.pictures.colours import PALETTE
from torchsplit_core.pictures.numbers import memory_size, short, size
from torchsplit_core.values.units import GB, MB

UNITS = ((GB, "GB"), (MB, "MB"), (1000, "kB"), (1, "B"))
FAINT = 0.35
"""Opacity of a dominated cut."""


@dataclass(frozen=True, slots=True)
class CutDot:
    """A cut: its key, how many stages, bytes across all cuts, ms by the objective, peak bytes of its largest stage."""

    key: str
    stages: int
    cut_bytes: int
    value_ms: float
    peak_bytes: int
    dominated: bool = False
    chosen: bool = False
    by_user: bool = False


@dataclass(frozen=True, slots=True)
class StageBar:
    """One stage of a cut: where it stands, its time, its transfers."""

    label: str
    stage: int
    compute_ms: float
    transfer_ms: float


def pareto_front(dots: Sequence[CutDot], bound_ms: float | None, what: str, *, dark: bool) -> go.Figure:
    """Every cut as a dot; the chosen cut has a ring, the user's own is a star, the bound a dotted line.

    The stepped line joins the cuts that no other beats in both figures. Points carry their key as customdata[0].
    """
    theme = theme_name(dark)
    widest = max((dot.cut_bytes for dot in dots), default=0) or 1
    scale, unit = _unit(widest)
    figure = go.Figure()
    line = _steps([dot for dot in dots if not dot.by_user])
    if len(line) > 1:
        joining_line(figure, theme, [(dot.cut_bytes / scale, dot.value_ms) for dot in line], "hv")
    for stages in sorted({dot.stages for dot in dots if not dot.by_user}):
        group = [dot for dot in dots if dot.stages == stages and not dot.by_user]
        name = "whole" if stages == 1 else f"{stages} stages"
        colour = PALETTE[(stages - 1) % len(PALETTE)]
        figure.add_trace(_dots(group, name, colour, "circle", scale, theme))
        figure.add_trace(legend_mark(name, {"color": colour, "symbol": "circle", "size": 10}))
    user_cuts = [dot for dot in dots if dot.by_user]
    if user_cuts:
        figure.add_trace(_dots(user_cuts, "your cut", INK[theme], "star", scale, theme))
        figure.add_trace(legend_mark("your cut", {"color": INK[theme], "symbol": "star", "size": 12}))
    if bound_ms is not None:
        text = f"none can be below {short(bound_ms, 'ms')}"
        figure.add_hline(
            bound_ms, line=dotted(theme), annotation=note(text), annotation_position="bottom right"
        )
    apply_layout(figure, theme, height=320, key="front")
    top = max((dot.value_ms for dot in dots), default=1.0)
    figure.update_layout(
        showlegend=True,
        # The whole model is at 0, and a dot on the edge could not be clicked.
        xaxis=axis(f"crosses the cuts, {unit}", theme, range=[-0.05 * widest / scale, 1.05 * widest / scale]),
        yaxis=axis(f"{what}, ms", theme, range=[0, 1.12 * top]),
        clickmode="event+select",
    )
    return figure


def bars(
    groups: Sequence[tuple[str, Sequence[StageBar]]], bound_ms: float | None, *, dark: bool
) -> go.Figure:
    """The load of each stage of the named cuts: time solid, transfers hatched; the bound as a dotted line."""
    theme = theme_name(dark)
    figure = go.Figure()
    rows = [(name, bar) for name, group in groups for bar in group]
    for kind in ("time", "transfers"):
        figure.add_bar(
            y=[[name for name, _ in rows], [bar.label for _, bar in rows]],
            x=[bar.compute_ms if kind == "time" else bar.transfer_ms for _, bar in rows],
            orientation="h",
            name=kind,
            marker={
                "color": [PALETTE[bar.stage % len(PALETTE)] for _, bar in rows],
                "opacity": 1.0 if kind == "time" else 0.6,
                "pattern": {"shape": "" if kind == "time" else "/", "solidity": 0.4},
                "line": {"width": 1, "color": AMBER[theme]},
            },
            text=[short(bar.compute_ms, "ms") for _, bar in rows] if kind == "time" else None,
            textposition="inside",
            insidetextanchor="start",
            hovertemplate=f"%{{y}}<br>{kind} %{{x:.4g}} ms, estimated<extra></extra>",
        )
    if bound_ms is not None:
        figure.add_vline(bound_ms, line=dotted(theme))
    apply_layout(figure, theme, height=110 + 42 * len(rows), key="bars")
    figure.update_layout(
        barmode="stack",
        bargap=0.3,
        showlegend=False,
        xaxis=axis("stage load, ms", theme, rangemode="tozero"),
        yaxis=axis("", theme, autorange="reversed", tickson="boundaries", showdividers=False),
    )
    figure.update_traces(showlegend=False)
    return figure


def _dots(
    dots: Sequence[CutDot], name: str, colour: str, symbol: str, scale: float, theme: Theme
) -> go.Scatter:
    return go.Scatter(
        x=[dot.cut_bytes / scale for dot in dots],
        y=[dot.value_ms for dot in dots],
        customdata=[[dot.key, size(dot.cut_bytes), memory_size(dot.peak_bytes)] for dot in dots],
        mode="markers",
        name=name,
        showlegend=False,
        marker={
            "color": colour,
            "symbol": symbol,
            "size": [15 if dot.chosen or dot.by_user else 10 for dot in dots],
            "opacity": [FAINT if dot.dominated and not dot.chosen else 1.0 for dot in dots],
            "line": {
                "width": [3 if dot.chosen else 1 for dot in dots],
                "color": [INK[theme] if dot.chosen else AMBER[theme] for dot in dots],
            },
        },
        **STEADY,
        hovertemplate=(
            f"{name}<br>%{{y:.4g}} ms, estimated<br>%{{customdata[1]}} across the cuts"
            "<br>%{customdata[2]} in the largest stage<extra></extra>"
        ),
    )


def _steps(dots: Sequence[CutDot]) -> list[CutDot]:
    """The dots that are lower than every dot with fewer bytes, by bytes."""
    steps: list[CutDot] = []
    for dot in sorted(dots, key=lambda dot: (dot.cut_bytes, dot.value_ms)):
        if not steps or dot.value_ms < steps[-1].value_ms:
            steps.append(dot)
    return steps


def _unit(most: float) -> tuple[float, str]:
    return next(((factor, name) for factor, name in UNITS if most >= factor), UNITS[-1])

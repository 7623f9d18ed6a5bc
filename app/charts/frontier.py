"""Throughput against latency: pipelines that no other beats in both.

A dot is filled where no pipeline of at least this throughput is quicker; where that is not proven it is hollow, with a
line down to the bound. Points carry their number as customdata[0].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.charts.sweep import ACCENT, CHOSEN_PX, DOT_PX, OPEN
from app.charts.theme import INK, STEADY, Theme, apply_layout, axis, joining_line, theme_name, with_opacity
from torchsplit_core.pictures.numbers import exact


@dataclass(frozen=True, slots=True)
class FrontierDot:
    """One pipeline: its throughput, ms of a pass, and the lower bound in ms at this throughput."""

    number: int
    throughput: float
    latency_ms: float
    bound_ms: float
    proven: bool
    gpus: int
    chosen: bool = False


def frontier(steps: Sequence[FrontierDot], y_title: str, x_title: str, unit: str, *, dark: bool) -> go.Figure:
    """The steps over throughput, joined by the line that no known pipeline is below; the chosen step has a ring."""
    theme = theme_name(dark)
    figure = go.Figure()
    joining_line(figure, theme, [(step.throughput, step.latency_ms) for step in steps], "vh")
    for proven, name in ((True, "proven"), (False, "a quicker one is not ruled out")):
        group = [step for step in steps if step.proven == proven]
        if group:
            figure.add_trace(_marks(group, name, unit, theme, proven=proven))
    apply_layout(figure, theme, height=300, key="frontier")
    figure.update_layout(
        xaxis=axis(x_title, theme),
        yaxis=axis(y_title, theme, rangemode="tozero"),
        clickmode="event+select",
        showlegend=any(not step.proven for step in steps),
    )
    return figure


def _marks(group: Sequence[FrontierDot], name: str, unit: str, theme: Theme, *, proven: bool) -> go.Scatter:
    """The steps as dots, with a line down to the bound where a quicker one is not ruled out."""
    to_bound = {
        "type": "data",
        "symmetric": False,
        "color": with_opacity(ACCENT[theme], 0.6),
        "thickness": 1.5,
    }
    to_bound["array"] = [0.0] * len(group)
    to_bound["arrayminus"] = [step.latency_ms - step.bound_ms for step in group]
    return go.Scatter(
        x=[step.throughput for step in group],
        y=[step.latency_ms for step in group],
        mode="markers",
        name=name,
        customdata=[
            [step.number, exact(step.throughput, unit), exact(step.latency_ms, "ms"), step.gpus]
            for step in group
        ],
        marker={
            "symbol": "circle" if proven else OPEN,
            "color": ACCENT[theme],
            "size": [CHOSEN_PX if step.chosen else DOT_PX for step in group],
            "line": {
                "width": [3 if step.chosen else 1 for step in group],
                "color": [INK[theme] if step.chosen else ACCENT[theme] for step in group],
            },
        },
        error_y=None if proven else to_bound,
        **STEADY,
        hovertemplate="%{customdata[1]}<br>%{customdata[2]}<br>%{customdata[3]} GPUs<extra></extra>",
    )

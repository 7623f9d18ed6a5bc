"""The events of a run on a time axis."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import plotly.graph_objects as go

from app.charts.theme import AMBER, INK, RED, apply_layout, axis, theme_name

ROW_PX = 26
GOOD, PLAIN = "#37a06a", "#3f66cc"
SYMBOLS = {"bad": "x", "change": "diamond", "good": "star", "plain": "circle"}


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """An event: its time, its row (the run or a rank), its severity (a key of SYMBOLS), its words."""

    time: datetime
    row: str
    severity: str
    words: str


def timeline(marks: Sequence[TimelineEvent], *, dark: bool) -> go.Figure:
    """A row for the run and one for each rank, the run on top."""
    theme = theme_name(dark)
    colours = {"bad": RED[theme], "change": AMBER[theme], "good": GOOD, "plain": PLAIN}
    rows = list(dict.fromkeys(sorted((mark.row for mark in marks), key=lambda row: (row != "run", row))))
    figure = go.Figure()
    for meant, symbol in SYMBOLS.items():
        group = [mark for mark in marks if mark.severity == meant]
        figure.add_scatter(
            x=[mark.time for mark in group], y=[mark.row for mark in group], mode="markers", showlegend=False,
            marker={
                "symbol": symbol, "size": 11, "color": colours[meant],
                "line": {"color": INK[theme], "width": 1},
            },
            text=[html.escape(mark.words) for mark in group],
            hovertemplate="%{x|%H:%M:%S}<br>%{text}<extra></extra>",
        )  # fmt: skip
    apply_layout(figure, theme, height=70 + ROW_PX * len(rows), key="time line")
    figure.update_layout(
        xaxis=axis("time (UTC)", theme),
        yaxis=axis("", theme, categoryorder="array", categoryarray=rows[::-1]),
    )
    return figure

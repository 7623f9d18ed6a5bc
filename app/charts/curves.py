"""Throughput or latency over batch size: measured points filled, estimated ones amber rings with their band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from app.numbers import THIN
from torchsplit_core.values import ProfileRow

AMBER = {"light": "#b45309", "dark": "#fbbf24"}
INK = {"light": "#1b1f24", "dark": "#e6eaee"}
GRID = {"light": "#dcdedb", "dark": "#2b343d"}
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def curves(
    rows: Sequence[tuple[str, ProfileRow]], colours: Mapping[str, str], quantity: str, *, dark: bool
) -> go.Figure:
    """One line a model, slice and process count; the colour is the model's, the dash the slice's."""
    theme = "dark" if dark else "light"
    throughput = quantity == "throughput"
    slices = sorted({row.profile or "whole" for _, row in rows})
    series: dict[tuple[str, str, str, int], list[ProfileRow]] = {}
    for name, row in rows:
        series.setdefault((name, row.stage, row.profile or "whole", row.processes), []).append(row)
    several = len({key[3] for key in series}) > 1
    figure = go.Figure()
    for (name, stage, size, processes), found in sorted(series.items()):
        points = sorted(_best(found), key=lambda row: row.batch_size)
        label = (
            f"{name} · {size}"
            + (f" · {processes} proc." if several else "")
            + (f" · {stage}" if stage != "whole" else "")
        )
        colour = colours.get(name, INK[theme])
        if throughput:
            _band(figure, points, label)
        figure.add_trace(
            _line(points, label, colour, DASHES[slices.index(size) % len(DASHES)], throughput, theme)
        )
    unit = "requests per second" if throughput else "p95 of one batch, ms"
    axis: dict[str, Any] = {"gridcolor": GRID[theme], "zeroline": False, "linecolor": GRID[theme]}
    figure.update_layout(
        height=420,
        margin={"l": 10, "r": 10, "t": 10, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": INK[theme], "size": 13, "family": "Source Sans, system-ui, sans-serif"},
        legend={"orientation": "v", "x": 1.01, "y": 1, "xanchor": "left"},
        xaxis=axis
        | {
            "title": {"text": "batch size", "font": {"size": 13}},
            "type": "log",
            "tickvals": sorted({row.batch_size for _, row in rows}),
        },
        yaxis=axis
        | {"title": {"text": unit, "font": {"size": 13}}, "rangemode": "tozero", "automargin": True},
        separators=f".{THIN}",
        uirevision="curves",
    )
    return figure


def _best(rows: Sequence[ProfileRow]) -> list[ProfileRow]:
    """One row a batch size: a measurement hides the estimate of the same point."""
    order = {"measured": 0, "emulated": 1, "estimated": 2}
    best: dict[int, ProfileRow] = {}
    for row in sorted(rows, key=lambda item: order[item.basis]):
        best.setdefault(row.batch_size, row)
    return list(best.values())


def _line(
    points: Sequence[ProfileRow], label: str, colour: str, dash: str, throughput: bool, theme: str
) -> go.Scatter:
    estimated = [row.basis != "measured" for row in points]
    return go.Scatter(
        x=[row.batch_size for row in points],
        y=[row.throughput_rps if throughput else row.latency_ms for row in points],
        name=label,
        mode="lines+markers",
        line={"color": colour, "dash": dash, "width": 2},
        marker={
            "size": 9,
            "color": colour,
            "symbol": ["circle-open" if flag else "circle" for flag in estimated],
            "line": {"width": 2, "color": [AMBER[theme] if flag else colour for flag in estimated]},
        },
        customdata=[(row.basis, row.throughput_rps, row.latency_ms, _interval(row)) for row in points],
        hovertemplate=(
            "%{fullData.name}<br>batch %{x}<br>%{customdata[1]:.6g} req/s, %{customdata[2]:.6g} ms"
            "<br>%{customdata[0]}%{customdata[3]}<extra></extra>"
        ),
    )


def _interval(row: ProfileRow) -> str:
    if row.low_rps is None or row.high_rps is None:
        return ""
    return f", 90 % within {row.low_rps:.4g} to {row.high_rps:.4g} req/s"


def _band(figure: go.Figure, points: Sequence[ProfileRow], label: str) -> None:
    known = [
        row
        for row in points
        if row.low_rps is not None and row.high_rps is not None and row.basis != "measured"
    ]
    if len(known) < 2:
        return
    batches = [row.batch_size for row in known]
    figure.add_trace(
        go.Scatter(
            x=[*batches, *reversed(batches)],
            y=[row.high_rps for row in known] + [row.low_rps for row in reversed(known)],
            mode="lines",  # without it Plotly marks the band's corners as if they were points
            fill="toself",
            fillcolor="rgba(217, 119, 6, 0.10)",
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
            name=f"{label} interval",
        )
    )

"""A day: GPUs in use by the hour, one plan for each window beside one plan for all of it, and responses by the hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.charts.sweep import ACCENT
from app.charts.theme import (
    AMBER,
    INK,
    apply_layout,
    axis,
    dotted,
    log_axis,
    theme_name,
    with_opacity,
)

SPREAD = 20.0
"""Times the least figure: beyond it the axis is logarithmic, since an overload hides all other hours."""


def saved_against_lost(points: Sequence[tuple[str, float | None, float | None]], *, dark: bool) -> go.Figure:
    """GPU-hours saved over requests lost; each point is (its limit in words, lost, saved), None left out."""
    theme = theme_name(dark)
    known = [(words, lost, saved) for words, lost, saved in points if lost is not None and saved is not None]
    figure = go.Figure()
    figure.add_scatter(
        x=[lost for _, lost, _ in known], y=[saved for *_, saved in known], text=[words for words, *_ in known],
        mode="lines+markers", line={"color": with_opacity(ACCENT[theme], 0.45), "width": 2},
        marker={"size": 11, "color": ACCENT[theme]}, showlegend=False,
        hovertemplate="%{text}: %{y:.4g} GPU-hours saved, %{x:.4g} requests lost<extra></extra>",
    )  # fmt: skip
    figure.update_xaxes(**axis("requests lost by changes, a day (estimated)", theme, rangemode="tozero"))
    figure.update_yaxes(**axis("GPU-hours saved a day", theme, rangemode="tozero"))
    apply_layout(figure, theme, height=280, key="curve")
    return figure


def shares_held(points: Sequence[tuple[int, float, float]], *, dark: bool) -> go.Figure:
    """The part of the samples held over GPUs in use; each point is (GPUs, of those planned for, of those held out)."""
    theme = theme_name(dark)
    figure = go.Figure()
    for number, (name, colour, dash) in enumerate(
        (("samples planned for", INK[theme], "dash"), ("samples held out", ACCENT[theme], "solid")), 1
    ):
        figure.add_scatter(
            x=[point[0] for point in points], y=[100 * point[number] for point in points], mode="lines+markers",
            name=name, line={"color": with_opacity(colour, 0.6), "width": 2, "dash": dash},
            marker={"size": 9, "color": colour},
            hovertemplate=f"%{{x}} GPUs hold %{{y:.4g}} % of the {name}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(
        **axis("GPUs in use", theme, dtick=1 if max((p[0] for p in points), default=1) < 16 else None)
    )
    figure.update_yaxes(**axis("samples held, %", theme))
    apply_layout(figure, theme, height=300, key="bottom")
    return figure


@dataclass(frozen=True, slots=True)
class DayStretch:
    """Hours from midnight UTC of a window (two where it passes midnight), its GPUs in use (None: no plan), its demand
    as a share of the day's largest, and its number among the windows."""

    number: int
    name: str
    begin_h: float
    end_h: float
    gpus: int | None
    demand_share: float
    worst: float | None


def gpus_over_day(stretches: Sequence[DayStretch], static_gpus: int | None, *, dark: bool) -> go.Figure:
    """GPUs in use over 24 hours; the demand behind, scaled to the highest. A click on a window gives its number."""
    theme = theme_name(dark)
    figure = go.Figure()
    top = max([stretch.gpus or 0 for stretch in stretches] + [static_gpus or 0, 1])
    for index, stretch in enumerate(sorted(stretches, key=lambda item: item.begin_h)):
        figure.add_scatter(
            x=[stretch.begin_h, stretch.begin_h, stretch.end_h, stretch.end_h],
            y=[0, top * stretch.demand_share, top * stretch.demand_share, 0],
            fill="tozeroy", mode="lines", line={"width": 0}, fillcolor=with_opacity(INK[theme], 0.1),
            name="demand, scaled", showlegend=index == 0, hoverinfo="skip",
        )  # fmt: skip
    for index, stretch in enumerate(sorted(stretches, key=lambda item: item.begin_h)):
        if stretch.gpus is None:
            continue
        worst = "n/a" if stretch.worst is None else f"{stretch.worst:.3g}"
        middle = (stretch.begin_h + stretch.end_h) / 2
        figure.add_scatter(
            x=[stretch.begin_h, middle, stretch.end_h], y=[stretch.gpus] * 3, mode="lines+markers",
            line={"color": ACCENT[theme], "width": 4}, marker={"size": [0, 11, 0], "color": ACCENT[theme]},
            name="a plan for each window", showlegend=index == 0, customdata=[[stretch.number]] * 3,
            hovertemplate=f"{stretch.name}: %{{y}} GPUs, worst served × {worst}<extra></extra>",
        )  # fmt: skip
    if static_gpus is not None:
        figure.add_scatter(
            x=[0, 24], y=[static_gpus] * 2, mode="lines", name="one plan all day",
            line={"color": INK[theme], "width": 2, "dash": "dash"},
            hovertemplate="one plan all day: %{y} GPUs<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(**axis("hour of the day, UTC", theme, range=[0, 24], tickvals=list(range(0, 25, 3))))
    figure.update_yaxes(**axis("GPUs in use", theme, range=[0, top * 1.15], dtick=-(-top // 8)))
    apply_layout(figure, theme, height=320, key="bottom")
    return figure


@dataclass(frozen=True, slots=True)
class ResponseLine:
    """A side's name; by hour of the day its p95 in ms (None: not known), and whether more arrives than it carries."""

    name: str
    p95_ms: tuple[float | None, ...]
    overloaded: tuple[bool, ...]


def p95_by_hour(lines: Sequence[ResponseLine], limit_ms: float | None, *, dark: bool) -> go.Figure:
    """The lines; hours that are not stable have a cross."""
    theme = theme_name(dark)
    colours = (ACCENT[theme], INK[theme], AMBER[theme])
    figure = go.Figure()
    for line, colour, dash, symbol in zip(
        lines, colours, ("solid", "dash", "dot"), ("circle", "square", "diamond"), strict=False
    ):
        marks = ["x" if over else symbol for over in line.overloaded]
        words = [", not stable" if over else "" for over in line.overloaded]
        figure.add_scatter(
            x=[hour + 0.5 for hour in range(24)], y=line.p95_ms, mode="lines+markers", name=line.name,
            line={"color": colour, "width": 2, "dash": dash}, marker={"size": 7, "color": colour, "symbol": marks},
            customdata=[[f"{hour:02}:00", word] for hour, word in enumerate(words)],
            hovertemplate=f"{line.name}, %{{customdata[0]}} UTC: p95 %{{y:.4g}} ms%{{customdata[1]}}<extra></extra>",
        )  # fmt: skip
    known = [value for line in lines for value in line.p95_ms if value is not None]
    if limit_ms is not None:
        figure.add_scatter(
            x=[0, 24], y=[limit_ms] * 2, mode="lines", name="limit", line=dotted(theme),
            hovertemplate="limit: %{y:.4g} ms<extra></extra>",
        )  # fmt: skip
        known.append(limit_ms)
    least, most = min(known, default=1.0), max(known, default=1.0)
    if least > 0 and most > SPREAD * least:
        figure.update_yaxes(**log_axis("p95 response, ms (simulated)", theme, known))
    else:
        figure.update_yaxes(**axis("p95 response, ms (simulated)", theme, range=[0, 1.1 * most]))
    figure.update_xaxes(**axis("hour of the day, UTC", theme, range=[0, 24], tickvals=list(range(0, 25, 3))))
    apply_layout(figure, theme, height=320, key="hours")
    return figure

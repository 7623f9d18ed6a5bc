"""Response times of models under load: their distribution, and percentiles against limits."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.charts.theme import INK, RED, apply_layout, axis, legend_mark, log_axis, theme_name
from torchsplit_core.pictures.colours import UNKNOWN

PERCENTS = (0.0, 50.0, 90.0, 95.0, 99.0, 99.9)
"""Where the axis of shares has its marks."""
PERCENTILE_SYMBOLS = (("p50", "circle"), ("p95", "diamond"), ("p99", "square"))
ROW_PX = 46
LEAST_MS = 1e-3
"""Where a logarithmic axis shows a time of zero."""


@dataclass(frozen=True, slots=True)
class DistributionLine:
    """Response times of one model: for each percentage of its requests the longest time, ms; its limit, ms."""

    label: str
    colour: str
    percents: tuple[float, ...]
    times_ms: tuple[float, ...]
    limit_ms: float | None = None


@dataclass(frozen=True, slots=True)
class PercentileRow:
    """p50, p95 and p99 of one model, ms, with the half-widths of their 95 % intervals (None: one run); its limit.

    `percentiles` is None for a model whose queue is not stable. `hollow`: the row is of the plan that is compared.
    """

    label: str
    colour: str
    percentiles: tuple[float, float, float] | None
    half_widths: tuple[float | None, ...] = (None, None, None)
    limit_ms: float | None = None
    hollow: bool = False


def distribution_chart(lines: Sequence[DistributionLine], *, dark: bool) -> go.Figure:
    """A line for each model: the time within which a share of its requests is answered; its limit is dotted.

    The axis of shares is logarithmic in the rest, so that the last per cent, which clients feel, has room.
    """
    theme = theme_name(dark)
    figure = go.Figure()
    far = max(
        (axis_position(line.percents[-1]) for line in lines if line.percents), default=axis_position(99)
    )
    for line in lines:
        named = html.escape(line.label)
        figure.add_scatter(
            x=[axis_position(percent) for percent in line.percents],
            y=[max(time, LEAST_MS) for time in line.times_ms],
            customdata=line.percents,
            mode="lines",
            name=named,
            line={"color": line.colour, "width": 2.5},
            hovertemplate=f"{named}: %{{customdata:.4g}} % within %{{y:.4g}} ms<extra></extra>",
        )
        if line.limit_ms is not None:
            figure.add_scatter(
                x=[0.0, far],
                y=[line.limit_ms] * 2,
                mode="lines",
                line={"color": line.colour, "width": 1.5, "dash": "dot"},
                showlegend=False,
                hovertemplate=f"{named}: limit %{{y:.6g}} ms<extra></extra>",
            )
    apply_layout(figure, theme, height=340, key="load spreads")
    marks = [percent for percent in PERCENTS if axis_position(percent) <= far + 1e-9]
    ticks = {"tickvals": list(map(axis_position, marks)), "ticktext": [f"{percent:g}" for percent in marks]}
    limits = [line.limit_ms for line in lines if line.limit_ms]
    times = [max(time, LEAST_MS) for line in lines for time in line.times_ms]
    figure.update_layout(
        xaxis=axis("% of the requests", theme, range=[0, far], **ticks),
        yaxis=log_axis("answered within, ms", theme, [*times, *limits]),
    )
    return figure


def axis_position(percent: float) -> float:
    """Where a percentage lies on the axis: minus the decimal logarithm of the remaining share."""
    return -math.log10(1 - percent / 100)


def percentile_chart(rungs: Sequence[PercentileRow], *, dark: bool) -> go.Figure:
    """A row for each model: p50, p95 and p99 with their 95 % intervals, and its limit as a red bar."""
    theme = theme_name(dark)
    figure = go.Figure()
    heights = [float(-number) for number in range(len(rungs))]
    placed = list(zip(rungs, heights, strict=True))
    drawn = [(rung, height, rung.percentiles) for rung, height in placed if rung.percentiles is not None]
    for rung, height, times in drawn:
        figure.add_scatter(
            x=[max(times[0], LEAST_MS), max(times[2], LEAST_MS)],
            y=[height] * 2,
            mode="lines",
            line={"color": rung.colour, "width": 3, "dash": "dot" if rung.hollow else "solid"},
            hoverinfo="skip",
            showlegend=False,
        )
    for number, (name, symbol) in enumerate(PERCENTILE_SYMBOLS):
        figure.add_scatter(
            x=[max(times[number], LEAST_MS) for _, _, times in drawn],
            y=[height for _, height, _ in drawn],
            customdata=[
                [html.escape(rung.label), _format_half_width(rung.half_widths[number])]
                for rung, _, _ in drawn
            ],
            mode="markers",
            showlegend=False,
            error_x={
                "type": "data",
                "array": [rung.half_widths[number] or 0.0 for rung, _, _ in drawn],
                "color": INK[theme],
                "thickness": 1.5,
                "width": 5,
            },
            marker={
                "symbol": [f"{symbol}-open" if rung.hollow else symbol for rung, _, _ in drawn],
                "size": 9,
                "color": [rung.colour for rung, _, _ in drawn],
                "line": {"width": 2, "color": [rung.colour for rung, _, _ in drawn]},
            },
            hovertemplate=f"%{{customdata[0]}}: {name} %{{x:.4g}} ms%{{customdata[1]}}<extra></extra>",
        )
    for name, symbol in PERCENTILE_SYMBOLS:
        figure.add_trace(legend_mark(name, {"symbol": symbol, "size": 11, "color": UNKNOWN}))
    ends = [max(time, LEAST_MS) for _, _, times in drawn for time in times]
    labels = [html.escape(rung.label) for rung in rungs]
    limited = [(rung, height) for rung, height in placed if rung.limit_ms]
    if limited:
        figure.add_scatter(
            x=[rung.limit_ms for rung, _ in limited],
            y=[height for _, height in limited],
            mode="markers",
            name="limit",
            customdata=[html.escape(rung.label) for rung, _ in limited],
            marker={"symbol": "line-ns", "size": 24, "line": {"width": 3, "color": RED[theme]}},
            hovertemplate="%{customdata}: limit %{x:.6g} ms<extra></extra>",
        )
    apply_layout(figure, theme, height=70 + ROW_PX * len(rungs), key="load ladder")
    for rung, height in placed:
        if rung.percentiles is None:
            figure.add_annotation(
                x=0, xref="paper", xanchor="left", y=height, showarrow=False, text="not stable: n/a",
                font={"color": RED[theme], "size": 13},
            )  # fmt: skip
    figure.update_layout(
        xaxis=log_axis("response time, ms", theme, [*ends, *(rung.limit_ms or 0.0 for rung, _ in limited)]),
        yaxis=axis("", theme, tickvals=heights, ticktext=labels, range=[-len(rungs) + 0.4, 0.6]),
        legend={"itemsizing": "constant"},
    )
    return figure


def _format_half_width(half: float | None) -> str:
    return "" if half is None else f" ± {half:.2g}"

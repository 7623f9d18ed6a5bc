"""Throughput and service time of models on slices.

Measured points are filled, emulated ones are diamonds, estimated ones hollow amber circles. Colour tells the model,
dash the slice. A curve fitted through measured points is drawn with its 90 % band; outliers have a ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import plotly.graph_objects as go

from app.charts.theme import AMBER, INK, Theme, apply_layout, axis, log_axis, theme_name, with_opacity
from torchsplit_core.values import ProfileRow

View = Literal["throughput over service time", "throughput over batch size", "service time over batch size"]
VIEWS: tuple[View, ...] = get_args(View)
FLAT = 60.0
"""Points whose heights differ by more than this factor cannot all be seen on an axis from zero."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SYMBOLS = {"measured": "circle", "emulated": "diamond-open-dot", "estimated": "circle-open"}
_BAND, _AMBER_BAND = 0.13, "rgba(217, 119, 6, 0.10)"


@dataclass(frozen=True, slots=True)
class Curve:
    """A fitted line over batch sizes: throughput with its 90 % band in requests/s, time of one batch in ms."""

    batch_sizes: tuple[int, ...]
    rps: tuple[float, ...]
    low_rps: tuple[float, ...]
    high_rps: tuple[float, ...]
    latency_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One series: its rows by batch size, the fitted curve if there is one, the batch sizes of outliers."""

    label: str
    colour: str
    place: str
    rows: tuple[ProfileRow, ...]
    curve: Curve | None = None
    outliers: frozenset[int] = frozenset()


def curves(lines: Sequence[Line], view: View, *, dark: bool) -> go.Figure:
    """The chart of these lines; `view` names the axes."""
    theme = theme_name(dark)
    places = sorted({line.place for line in lines})
    figure = go.Figure()
    for line in lines:
        dash = DASHES[places.index(line.place) % len(DASHES)]
        figure.add_trace(_legend_entry(line, dash, theme))
        _bands(figure, line, view)
        if line.curve is not None:
            figure.add_trace(_curve_trace(line, line.curve, view, dash))
        figure.add_trace(_points(line, view, dash, theme))
    _outlier_rings(figure, lines, view, theme)
    apply_layout(figure, theme, height=420, key=f"curves {view}")
    batches = sorted({row.batch_size for line in lines for row in line.rows})
    times = log_axis("p95 of one batch, ms", theme, [row.latency_ms for line in lines for row in line.rows])
    figure.update_layout(
        xaxis=times if view == VIEWS[0] else log_axis("batch size", theme, batches, at=batches),
        yaxis=times if view == VIEWS[2] else _throughput_axis(lines, theme),
    )
    return figure


def _throughput_axis(lines: Sequence[Line], theme: Theme) -> dict[str, Any]:
    """An axis from zero, or logarithmic where the lowest points would lie flat."""
    rates = [row.throughput_rps for line in lines for row in line.rows if row.throughput_rps > 0]
    if rates and max(rates) > FLAT * min(rates):
        return log_axis("requests per second, logarithmic", theme, rates)
    return axis("requests per second", theme, rangemode="tozero")


def x_of(row: ProfileRow, view: View) -> float:
    """The x value of a row."""
    return row.latency_ms if view == VIEWS[0] else row.batch_size


def y_of(row: ProfileRow, view: View) -> float:
    """The y value of a row."""
    return row.latency_ms if view == VIEWS[2] else row.throughput_rps


def interval(row: ProfileRow, view: View) -> tuple[float, float] | None:
    """The 90 % interval of the y value; None where none is known."""
    if view != VIEWS[2]:
        return None if row.low_rps is None or row.high_rps is None else (row.low_rps, row.high_rps)
    if row.percentiles_ms is not None:
        p95 = row.percentiles_ms.p95
        return None if p95.low is None or p95.high is None else (p95.low, p95.high)
    if row.basis == "estimated" and row.low_rps and row.high_rps:
        scale = row.latency_ms * row.throughput_rps
        return scale / row.high_rps, scale / row.low_rps
    return None


def _legend_entry(line: Line, dash: str, theme: Theme) -> go.Scatter:
    """One legend entry for a curve and its points."""
    surest = min((row.basis for row in line.rows), key=list(_SYMBOLS).index)
    colour = AMBER[theme] if surest == "estimated" else line.colour
    marker = {"size": 8, "symbol": _SYMBOLS[surest], "color": colour, "line": {"width": 2, "color": colour}}
    stroke = {"color": line.colour, "dash": dash, "width": 2}
    named = {"name": line.label, "legendgroup": line.label}
    return go.Scatter(x=[None], y=[None], **named, mode="lines+markers", line=stroke, marker=marker)


def _points(line: Line, view: View, dash: str, theme: Theme) -> go.Scatter:
    """The rows as points, joined where no curve was fitted."""
    ends = [interval(row, view) for row in line.rows]
    above = [end[1] - y_of(row, view) if end else 0.0 for row, end in zip(line.rows, ends, strict=True)]
    below = [y_of(row, view) - end[0] if end else 0.0 for row, end in zip(line.rows, ends, strict=True)]
    colours = [AMBER[theme] if row.basis == "estimated" else line.colour for row in line.rows]
    return go.Scatter(
        x=[x_of(row, view) for row in line.rows],
        y=[y_of(row, view) for row in line.rows],
        error_y={
            "type": "data",
            "array": [max(0.0, value) for value in above],
            "arrayminus": [max(0.0, value) for value in below],
            "color": line.colour,
            "thickness": 1,
            "width": 3,
            "visible": any(end is not None for end in ends),
        },
        name=line.label,
        legendgroup=line.label,
        showlegend=False,
        mode="markers" if line.curve is not None else "lines+markers",
        line={"color": line.colour, "dash": dash, "width": 2},
        marker={
            "opacity": 1.0,  # Plotly's default for markers of several sizes is translucent
            "size": [10 if row.basis == "emulated" else 8 for row in line.rows],
            "color": colours,
            "symbol": [_SYMBOLS[row.basis] for row in line.rows],
            "line": {"width": 2, "color": colours},
        },
        customdata=[
            (row.basis, row.throughput_rps, row.latency_ms, row.batch_size, _hover_text(row))
            for row in line.rows
        ],
        hovertemplate=(
            "%{fullData.name}<br>batch %{customdata[3]}<br>%{customdata[1]:.6g} req/s, p95 %{customdata[2]:.6g} ms"
            "<br>%{customdata[0]}%{customdata[4]}<extra></extra>"
        ),
    )


def _hover_text(row: ProfileRow) -> str:
    if row.low_rps is None or row.high_rps is None:
        return ", no interval known"
    return f", 90 % within {row.low_rps:.4g} to {row.high_rps:.4g} req/s"


def _curve_trace(line: Line, curve: Curve, view: View, dash: str) -> go.Scatter:
    return go.Scatter(
        x=curve.latency_ms if view == VIEWS[0] else curve.batch_sizes,
        y=curve.latency_ms if view == VIEWS[2] else curve.rps,
        name=line.label,
        legendgroup=line.label,
        showlegend=False,
        mode="lines",
        line={"color": line.colour, "dash": dash, "width": 2},
        customdata=list(zip(curve.batch_sizes, curve.rps, curve.low_rps, curve.high_rps, strict=True)),
        hovertemplate=(
            "%{fullData.name}, fitted<br>batch %{customdata[0]}: %{customdata[1]:.4g} req/s<br>"
            "90 % within %{customdata[2]:.4g} to %{customdata[3]:.4g}<extra></extra>"
        ),
    )


def _bands(figure: go.Figure, line: Line, view: View) -> None:
    """Over batch sizes, add the band of the fitted curve in the model's colour and that of the estimates in amber."""
    if view == VIEWS[0]:
        return
    if line.curve is not None:
        curve = line.curve
        if view == VIEWS[2]:
            # Time is inverse to throughput: low and high change places.
            scale = [rps * ms for rps, ms in zip(curve.rps, curve.latency_ms, strict=True)]
            ends = (_over(scale, curve.high_rps), _over(scale, curve.low_rps))
        else:
            ends = (curve.low_rps, curve.high_rps)
        figure.add_trace(_band(curve.batch_sizes, ends, with_opacity(line.colour, _BAND), line.label))
    estimated = [(row, interval(row, view)) for row in line.rows if row.basis == "estimated"]
    bounded = [(row.batch_size, *bounds) for row, bounds in estimated if bounds is not None]
    if len(bounded) > 1:
        batches, low, high = zip(*bounded, strict=True)
        figure.add_trace(_band(batches, (low, high), _AMBER_BAND, line.label))


def _over(scale: Sequence[float], rates: Sequence[float]) -> tuple[float, ...]:
    return tuple(numerator / rate for numerator, rate in zip(scale, rates, strict=True))


def _band(
    batches: Sequence[int], ends: tuple[Sequence[float], Sequence[float]], colour: str, label: str
) -> go.Scatter:
    low, high = ends
    return go.Scatter(
        x=[*batches, *reversed(batches)],
        y=[*high, *reversed(low)],
        mode="lines",  # else Plotly marks the band's corners as points
        fill="toself",
        fillcolor=colour,
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        legendgroup=label,
        name=f"{label} interval",
    )


def _outlier_rings(figure: go.Figure, lines: Sequence[Line], view: View, theme: Theme) -> None:
    measured = [(line, row) for line in lines for row in line.rows if row.basis != "estimated"]
    far = [row for line, row in measured if row.batch_size in line.outliers]
    if far:
        figure.add_scatter(
            x=[x_of(row, view) for row in far],
            y=[y_of(row, view) for row in far],
            name="far from the others",
            mode="markers",
            hoverinfo="skip",
            marker={"size": 17, "symbol": "circle-open", "color": INK[theme], "line": {"width": 2}},
        )

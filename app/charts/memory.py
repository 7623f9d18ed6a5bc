"""Peak memory over batch size in its parts, against the memory of the slices it could run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.charts.theme import AMBER, GRID, RED, Theme, apply_layout, axis, dotted, note, theme_name

PARTS = ("weights", "activations", "transient", "context")
"""From the bottom up."""
_COLOURS = {
    "weights": "#3f66cc",
    "activations": "#e2a11c",
    "transient": "#37a06a",
    "context": "#93b0c9",
    "peak": "#7f8790",
}
HEAD_ROOM = 1.08
FLAT = 8.0
"""A limit above this many times the highest bar is not drawn: the bars would be flat."""
SMALL_GIB = 0.25
"""Below this the axis is in MiB."""


@dataclass(frozen=True, slots=True)
class MemoryBar:
    """The peak of one batch size in GiB: its parts, or `peak` alone where the parts are unknown."""

    batch_size: int
    parts: tuple[tuple[str, float], ...]
    estimated: bool

    @property
    def total(self) -> float:
        """The whole peak."""
        return sum(value for _, value in self.parts)


@dataclass(frozen=True, slots=True)
class Limit:
    """The memory of one slice, or of several with equal memory."""

    name: str
    gib: float


def memory(
    bars: Sequence[MemoryBar], limits: Sequence[Limit], failed: Sequence[int], *, dark: bool
) -> go.Figure:
    """Stacked bars by batch size, a line for each limit that is near, a red cross where memory did not suffice."""
    theme = theme_name(dark)
    top = max([bar.total for bar in bars], default=0.0)
    shown = visible_limits(limits, top)
    height = HEAD_ROOM * max([top, *(limit.gib for limit in shown)], default=1.0) or 1.0
    unit, scale = unit_of(height)
    figure = go.Figure()
    for part in (*PARTS, "peak"):
        values = {
            bar.batch_size: (value * scale, bar) for bar in bars for name, value in bar.parts if name == part
        }
        if values:
            figure.add_trace(_part(part, values, theme))
    for limit in shown:
        at, text = limit.gib * scale, note(limit.name)
        figure.add_hline(at, line=dotted(theme), annotation=text, annotation_position="top left")
    if failed:
        figure.add_scatter(
            x=[str(batch) for batch in failed],
            y=[height * scale * 0.03] * len(failed),
            mode="markers",
            name="out of memory",
            marker={"symbol": "x", "size": 11, "color": RED[theme]},
            hovertemplate="batch %{x}: out of memory<extra></extra>",
        )
    apply_layout(figure, theme, height=380, key="memory")
    batches = [str(batch) for batch in sorted({bar.batch_size for bar in bars} | set(failed))]
    figure.update_layout(
        barmode="stack",
        bargap=0.35,
        xaxis=axis("batch size", theme, type="category", categoryorder="array", categoryarray=batches),
        yaxis=axis(f"peak memory, {unit}", theme, range=[0, height * scale]),
    )
    return figure


def unit_of(gib: float) -> tuple[str, float]:
    """The unit for figures up to this many GiB, and how many of that unit make one GiB."""
    return ("GiB", 1.0) if gib >= SMALL_GIB else ("MiB", 1024.0)


def visible_limits(limits: Sequence[Limit], top: float) -> tuple[Limit, ...]:
    """The limits below the highest bar and the first above it, unless that would flatten the bars."""
    by_size: dict[float, list[str]] = {}
    for limit in limits:
        by_size.setdefault(limit.gib, []).append(limit.name)
    merged = [Limit(", ".join(names), gib) for gib, names in sorted(by_size.items())]
    above = next((index for index, limit in enumerate(merged) if limit.gib >= top), len(merged))
    shown = merged[: above + 1]
    return tuple(shown[:-1] if shown and shown[-1].gib > FLAT * top else shown)


def _part(part: str, values: dict[int, tuple[float, MemoryBar]], theme: Theme) -> go.Bar:
    bars = [bar for _, bar in values.values()]
    return go.Bar(
        x=[str(batch) for batch in values],
        y=[value for value, _ in values.values()],
        name=part,
        customdata=[
            ["estimated" if bar.estimated else "measured", bar.total, dict(bar.parts)[part]] for bar in bars
        ],
        marker={
            "color": _COLOURS[part],
            "line": {
                "width": [1.5 if bar.estimated else 0 for bar in bars],
                "color": [AMBER[theme] if bar.estimated else GRID[theme] for bar in bars],
            },
            "pattern": {"shape": ["/" if bar.estimated else "" for bar in bars], "solidity": 0.25},
        },
        hovertemplate=(
            f"batch %{{x}}<br>{part} %{{customdata[2]:.4g}} GiB of %{{customdata[1]:.4g}} GiB"
            "<br>%{customdata[0]}<extra></extra>"
        ),
    )

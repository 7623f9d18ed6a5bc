"""Bar charts of an evaluation, as SVG that is readable on light and dark backgrounds and in print."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.evaluation.grid import REPORTED, RULES, SHARINGS, WEIGHTS
from torchsplit_core.evaluation.report.formatting import (
    PLANNERS,
    REGIMES,
    SHARING_WORDS,
    UNKNOWN,
    figure,
    gap_words,
)
from torchsplit_core.values.evaluation.outcome import CaseFigures, CaseKey, EvaluatedCase, EvaluationOutcome
from torchsplit_core.values.units import MB

COLOURS = ("#0f766e", "#d97706", "#7c5cbf", "#3b82c4", "#b4536b")
"""Of the bars of a group, with a contrast of at least 3 to 1 to white and to the dark background."""

WIDTH, RIGHT = 560, 170
ROW, GAP, HEAD, LABEL = 15, 10, 62, 16


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar's value, None for n/a, and the ends of its estimate; `gap` of its search."""

    value: float | None
    low: float | None = None
    high: float | None = None
    gap: float | None = None

    @property
    def open_words(self) -> str:
        """Notes that the search ended before a proof; "" if the plan is proven, or a baseline's."""
        return f", {gap_words(self.gap)}" if self.gap else ""


@dataclass(frozen=True, slots=True)
class BarChart:
    """`groups` are (label, one bar a series)."""

    name: str
    title: str
    unit: str
    series: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Bar, ...]], ...]


def bar_charts(outcome: EvaluationOutcome) -> tuple[BarChart, ...]:
    """All charts; leaves out one without bars, and a series without cases."""
    every = (
        _bar_chart(outcome, "common_load", "planner", ("planner", *RULES), PLANNERS, _common_load),
        _bar_chart(outcome, "utilisation", "sharing", SHARINGS, SHARING_WORDS, _utilisation),
        _bar_chart(outcome, "crossing", "colocation", REPORTED, _TIED, _crossing),
        _bar_chart(outcome, "fairness", "weights", WEIGHTS, _WEIGHED, lambda figures: Bar(figures.jain)),
    )
    return tuple(
        chart for chart in every if any(bar.value is not None for _, bars in chart.groups for bar in bars)
    )


_TIED = {"off": "co-location off", "routed": "routed", "soft": "soft", "hard": "hard"}
_WEIGHED = {"equal": "equal weights", "favoured": "first model's weight 2", "throughput": "greatest sum"}
_TITLES = {
    "common_load": ("What each plan can carry of all demands together", "common load, × the demands"),
    "utilisation": ("Compute slices at work, at 0.9 of the plan's common load", "% of the fleet's"),
    "crossing": ("Tied tensors that leave their GPU", "MB/s"),
    "fairness": ("Fairness: Jain's index of throughput / demand", "1 where all fare alike"),
}
"""The title of each chart, and what its bars count."""
_GAP = " · gap: the search ended early, and a better plan is not ruled out"


def _bar_chart(
    outcome: EvaluationOutcome,
    name: str,
    varied: str,
    values: Sequence[str],
    words: Mapping[str, str],
    reading: Callable[[CaseFigures], Bar],
) -> BarChart:
    """A bar for each value of the `varied` dimension, by mix and regime; other dimensions as in the plain case."""
    plain = {"sharing": "exclusive", "colocation": "off", "weights": "equal", "planner": "planner"}
    known = {case.key: case for case in outcome.cases}

    def key(place: tuple[str, str], value: str) -> CaseKey:
        return CaseKey(*place, **(plain | {varied: value}))  # type: ignore[arg-type]

    bases = {case.key.mix: case.basis for case in outcome.cases if case.basis}
    places = list(dict.fromkeys((case.key.mix, case.key.regime) for case in outcome.cases))
    shown = [value for value in values if any(key(place, value) in known for place in places)]
    groups = tuple(
        (
            f"{place[0]}, {REGIMES[place[1]]} ({bases.get(place[0], UNKNOWN)})",
            tuple(_bar(known.get(key(place, value)), reading) for value in shown),
        )
        for place in places
    )
    return BarChart(name, *_TITLES[name], tuple(words[value] for value in shown), groups)


def _bar(case: EvaluatedCase | None, reading: Callable[[CaseFigures], Bar]) -> Bar:
    return Bar(None) if case is None or case.figures is None else replace(reading(case.figures), gap=case.gap)


def _common_load(figures: CaseFigures) -> Bar:
    low, high = figures.at_low, figures.at_high
    if low is None or high is None or high.common_load == 0:
        return Bar(figures.common_load)
    return Bar(figures.common_load, low.common_load, high.common_load)


def _utilisation(figures: CaseFigures) -> Bar:
    return Bar(None if figures.utilisation_full is None else 100 * figures.utilisation_full)


def _crossing(figures: CaseFigures) -> Bar:
    return Bar(None if figures.cross_gpu_bytes_per_s is None else figures.cross_gpu_bytes_per_s / MB)


def chart_svg(picture: BarChart, *, standalone: bool = False) -> str:
    """The chart as SVG; `standalone`: as a file, with its background by the reader's theme."""
    most = max(
        (
            end
            for _, bars in picture.groups
            for bar in bars
            for end in (bar.value, bar.high)
            if end is not None
        ),
        default=0.0,
    )
    room = WIDTH - RIGHT
    scale = room / most if most else 0.0
    legend = _legend(picture.series)
    top = HEAD + 16 * (1 + (len(picture.series) - 1) // 3)
    parts, y = [legend], float(top)
    for label, bars in picture.groups:
        parts.append(_text(0, y + 11, label))
        y += LABEL
        for number, bar in enumerate(bars):
            parts.append(_draw_bar(bar, y + ROW * number, COLOURS[number % len(COLOURS)], scale))
        y += ROW * len(bars) + GAP
    words = html.escape(f"{picture.title}. {_describe_chart(picture)}")
    style = (
        "<style>svg{color:#1b1f24;background:#fbfcfa}@media(prefers-color-scheme:dark){svg{color:#e6eaee;"
        "background:#0e1418}}</style>"
        if standalone
        else ""
    )
    open_search = any(bar.gap for _, bars in picture.groups for bar in bars)
    unit = f"{picture.unit}{_GAP if open_search else ''}"
    heading = _text(0, 18, picture.title, size=14, bold=True) + _text(0, 34, unit)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" width="100%" '
        f'style="min-width:29rem;max-width:48rem" role="img" '
        f'aria-label="{words}" font-family="system-ui, sans-serif" fill="currentColor">{style}'
        f"{heading}{''.join(parts)}</svg>"
    )


def _legend(series: Sequence[str]) -> str:
    elements = []
    for number, name in enumerate(series):
        x, y = 185 * (number % 3), 46 + 16 * (number // 3)
        elements.append(
            f'<rect x="{x}" y="{y}" width="10" height="10" fill="{COLOURS[number % len(COLOURS)]}"/>'
        )
        elements.append(_text(x + 15, y + 9, name))
    return "".join(elements)


def _draw_bar(bar: Bar, y: float, colour: str, scale: float) -> str:
    if bar.value is None:
        return _text(5, y + 10.5, UNKNOWN, size=10)
    width = bar.value * scale
    parts = [f'<rect x="0" y="{y:.1f}" width="{width:.1f}" height="{ROW - 3}" fill="{colour}"/>']
    end, words = width, figure(bar.value)
    if bar.low is not None and bar.high is not None:
        middle = y + (ROW - 3) / 2
        left, right = bar.low * scale, bar.high * scale
        parts.append(
            f'<path d="M{left:.1f} {middle:.1f}H{right:.1f}M{left:.1f} {middle - 3:.1f}v6M{right:.1f} '
            f'{middle - 3:.1f}v6" stroke="currentColor" stroke-width="1.2"/>'
        )
        end = max(end, bar.high * scale)
        words += f" ({figure(bar.low)} to {figure(bar.high)})"
    parts.append(_text(end + 5, y + 10.5, words + bar.open_words, size=10))
    return "".join(parts)


def _describe_chart(picture: BarChart) -> str:
    """The chart in words, for readers who cannot see it."""
    return "; ".join(
        f"{label}: "
        + ", ".join(
            f"{name} {figure(bar.value)}{bar.open_words}"
            for name, bar in zip(picture.series, bars, strict=True)
        )
        for label, bars in picture.groups
    )


def _text(x: float, y: float, text: str, *, size: int = 11, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{weight}>{html.escape(text)}</text>'

"""An evaluation as pictures: bars side by side, as SVG that is read on light and dark grounds and printed."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchsplit_core.evaluation.grid import COLOCATIONS, RULES, SHARINGS, WEIGHTS
from torchsplit_core.evaluation.report.words import (
    PLANNERS,
    REGIMES,
    SHARING_WORDS,
    TYINGS,
    UNKNOWN,
    WEIGHTINGS,
    figure,
)
from torchsplit_core.values.evaluation.outcome import CaseFigures, CaseKey, EvaluatedCase, EvaluationOutcome
from torchsplit_core.values.units import MB

COLOURS = ("#0f766e", "#d97706", "#7c5cbf", "#3b82c4", "#b4536b")
"""Of the bars of a group, each at least 3 to 1 against white and against the dark ground."""

WIDTH, LABEL, RIGHT = 760, 190, 150
ROW, GAP, HEAD = 15, 12, 46


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar's value, None for n/a, and the ends that its estimates leave open."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """`groups` are (label, a bar a series)."""

    name: str
    title: str
    unit: str
    series: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Bar, ...]], ...]


def pictures(outcome: EvaluationOutcome) -> tuple[Picture, ...]:
    """All of them; one without a bar is left out."""
    known = {case.key: case for case in outcome.cases}
    places = list(dict.fromkeys((case.key.mix, case.key.regime) for case in outcome.cases))

    def groups(
        varied: str, values: Sequence[str], reading: Callable[[CaseFigures], Bar]
    ) -> tuple[tuple[str, tuple[Bar, ...]], ...]:
        found = []
        for mix, regime in places:
            key = {"sharing": "exclusive", "colocation": "off", "weights": "equal", "planner": "planner"}
            bars = []
            for value in values:
                case = known.get(CaseKey(mix, regime, **(key | {varied: value})))  # type: ignore[arg-type]
                bars.append(_bar(case, reading))
            found.append((f"{mix}, {REGIMES[regime]}", tuple(bars)))
        return tuple(found)

    every = (
        Picture(
            "common_load",
            "What each plan can carry of all demands together",
            "common load, × the demands",
            tuple(PLANNERS[name] for name in ("planner", *RULES)),
            groups("planner", ("planner", *RULES), _common_load),
        ),
        Picture(
            "utilisation",
            "Compute slices at work, at 0.9 of the plan's own common load",
            "% of the fleet's",
            tuple(SHARING_WORDS[name] for name in SHARINGS),
            groups("sharing", SHARINGS, _utilisation),
        ),
        Picture(
            "crossing",
            "Tied tensors that leave their GPU",
            "MB/s",
            tuple(f"co-location {TYINGS[name]}" for name in COLOCATIONS),
            groups("colocation", COLOCATIONS, _crossing),
        ),
        Picture(
            "fairness",
            "Fairness: Jain's index of throughput / demand",
            "1 where all fare alike",
            tuple(WEIGHTINGS[name] for name in WEIGHTS),
            groups("weights", WEIGHTS, lambda figures: Bar(figures.jain)),
        ),
    )
    return tuple(one for one in every if any(bar.value is not None for _, bars in one.groups for bar in bars))


def _bar(case: EvaluatedCase | None, reading: Callable[[CaseFigures], Bar]) -> Bar:
    return Bar(None) if case is None or case.figures is None else reading(case.figures)


def _common_load(figures: CaseFigures) -> Bar:
    low, high = figures.at_low, figures.at_high
    return Bar(
        figures.common_load,
        None if low is None else low.common_load,
        None if high is None else high.common_load,
    )


def _utilisation(figures: CaseFigures) -> Bar:
    return Bar(None if figures.utilisation_full is None else 100 * figures.utilisation_full)


def _crossing(figures: CaseFigures) -> Bar:
    return Bar(None if figures.cross_gpu_bytes_per_s is None else figures.cross_gpu_bytes_per_s / MB)


def picture_svg(picture: Picture, *, alone: bool = False) -> str:
    """The picture as SVG; `alone`: as a file of its own, with its ground by the reader's theme."""
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
    room = WIDTH - LABEL - RIGHT
    scale = room / most if most else 0.0
    legend = _legend(picture.series)
    top = HEAD + 16 * (1 + (len(picture.series) - 1) // 3)
    parts, y = [legend], float(top)
    for label, bars in picture.groups:
        height = ROW * len(bars)
        parts.append(_text(LABEL - 8, y + height / 2 + 4, label, anchor="end"))
        for number, bar in enumerate(bars):
            parts.append(_drawn(bar, y + ROW * number, COLOURS[number % len(COLOURS)], scale))
        y += height + GAP
    parts.append(f'<path d="M{LABEL} {top - 4}V{y - GAP + 4}" stroke="currentColor" stroke-width="1"/>')
    words = html.escape(f"{picture.title}. {_told(picture)}")
    style = (
        "<style>svg{color:#1b1f24;background:#fbfcfa}@media(prefers-color-scheme:dark){svg{color:#e6eaee;"
        "background:#0e1418}}</style>"
        if alone
        else ""
    )
    heading = _text(0, 18, picture.title, size=14, bold=True) + _text(WIDTH, 18, picture.unit, anchor="end")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" width="100%" role="img" '
        f'aria-label="{words}" font-family="system-ui, sans-serif" fill="currentColor">{style}'
        f"{heading}{''.join(parts)}</svg>"
    )


def _legend(series: Sequence[str]) -> str:
    found = []
    for number, name in enumerate(series):
        x, y = 250 * (number % 3), 30 + 16 * (number // 3)
        found.append(
            f'<rect x="{x}" y="{y}" width="10" height="10" fill="{COLOURS[number % len(COLOURS)]}"/>'
        )
        found.append(_text(x + 15, y + 9, name))
    return "".join(found)


def _drawn(bar: Bar, y: float, colour: str, scale: float) -> str:
    if bar.value is None:
        return _text(LABEL + 5, y + 10.5, UNKNOWN, size=10)
    width = bar.value * scale
    parts = [f'<rect x="{LABEL}" y="{y:.1f}" width="{width:.1f}" height="{ROW - 3}" fill="{colour}"/>']
    end, words = width, figure(bar.value)
    if bar.low is not None and bar.high is not None:
        middle = y + (ROW - 3) / 2
        left, right = LABEL + bar.low * scale, LABEL + bar.high * scale
        parts.append(
            f'<path d="M{left:.1f} {middle:.1f}H{right:.1f}M{left:.1f} {middle - 3:.1f}v6M{right:.1f} '
            f'{middle - 3:.1f}v6" stroke="currentColor" stroke-width="1.2"/>'
        )
        end = max(end, bar.high * scale)
        words += f" ({figure(bar.low)} to {figure(bar.high)})"
    parts.append(_text(LABEL + end + 5, y + 10.5, words, size=10))
    return "".join(parts)


def _told(picture: Picture) -> str:
    """The picture in words, for those who do not see it."""
    return "; ".join(
        f"{label}: "
        + ", ".join(f"{name} {figure(bar.value)}" for name, bar in zip(picture.series, bars, strict=True))
        for label, bars in picture.groups
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 11, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{weight}>{html.escape(text)}</text>'

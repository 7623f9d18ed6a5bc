"""Two runs side by side: how they were divided, how far they came, how fast, and where they differ."""

from __future__ import annotations

import html
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median

import pandas as pd

from app.format.html import table_html
from app.runs.communication import exchange_words, exposed_s
from app.runs.restarts import restarts_of
from app.runs.status_tables import RECENT_STEPS, STATES, recent_speed, source_of
from torchsplit_core.pictures.numbers import UNKNOWN, exact, memory_size, short
from torchsplit_core.strategy.search.descriptions import describe_choices
from torchsplit_core.training.monitor import RunView, Steps

SAME, OTHER = "", "differs"
ROW = ' style="border-bottom-color: color-mix(in srgb, currentColor 10%, transparent)"'
"""A row's head, under which the line is that of its cells."""


@dataclass(frozen=True, slots=True)
class RunFigure:
    """A figure of two runs as texts, and how the second differs from the first; "" where both are equal."""

    name: str
    first: str
    second: str
    difference: str


def compare(first: RunView, second: RunView) -> list[RunFigure]:
    """What two runs have in common and apart; what is not known is n/a, and so is the difference to it."""
    return [
        *_settings(first, second),
        *_loss(first, second),
        *_held_out(first, second),
        *_costs(first, second),
        *_communication(first, second),
    ]


def _settings(first: RunView, second: RunView) -> list[RunFigure]:
    strategies = [view.launch and view.launch.strategy for view in (first, second)]
    return [
        _words("state", [STATES[view.state][0] for view in (first, second)]),
        _words("model", [source_of(view) for view in (first, second)]),
        _words("strategy", [describe_choices(plan.choices) if plan else UNKNOWN for plan in strategies]),
        _words("precision", [plan.job.precision if plan else UNKNOWN for plan in strategies]),
        _figure("global batch size", [plan.job.global_batch if plan else None for plan in strategies]),
        _figure("steps done", [view.last_step for view in (first, second)]),
    ]


def _loss(first: RunView, second: RunView) -> list[RunFigure]:
    """The loss at the last step that both have done."""
    step = min(first.last_step, second.last_step)
    if not step:
        return [_figure("loss at the last common step", [None, None])]
    losses = [_loss_at(view.steps, step) for view in (first, second)]
    return [_figure(f"loss at step {exact(step)}", losses)]


def _loss_at(steps: Steps, step: int) -> float | None:
    place = bisect_left(steps.step, step)
    return steps.loss[place] if place < len(steps) and steps.step[place] == step else None


def _held_out(first: RunView, second: RunView) -> list[RunFigure]:
    """A row a figure that either was measured by on held-out samples."""
    measured = [view.validation.metrics if view.validation else {} for view in (first, second)]
    names = dict.fromkeys(name for metrics in measured for name in metrics)
    rows = [_figure(f"held-out {name}", [metrics.get(name) for metrics in measured]) for name in names]
    return rows or [_figure("held-out figures", [None, None])]


def _costs(first: RunView, second: RunView) -> list[RunFigure]:
    speeds = [recent_speed(view) for view in (first, second)]
    peaks = [max((rank.peak_bytes for rank in view.ranks), default=None) for view in (first, second)]
    return [
        _figure("samples/s", [rate for rate, _ in speeds]),
        _figure("s/step, median of the last steps", [_median_step_s(view) for view in (first, second)]),
        _figure("peak memory of a rank", peaks, [memory_size(peak) for peak in peaks]),
        _figure(
            "restarts",
            [len(restarts_of(view.events)) if view.events else None for view in (first, second)],
        ),
    ]


def _communication(first: RunView, second: RunView) -> list[RunFigure]:
    """How gradients are reduced, where either run knows it."""
    words = [exchange_words(view) for view in (first, second)]
    exposed = [exposed_s(view) for view in (first, second)]
    rows = []
    if any(words):
        rows.append(_words("gradient reduction", [text or UNKNOWN for text in words]))
    if any(seconds is not None for seconds in exposed):
        rows.append(_figure("s/step waiting for the gradient reduction", exposed))
    return rows


def _median_step_s(view: RunView) -> float | None:
    recent = view.steps.step_s[-RECENT_STEPS:]
    return median(recent) if recent else None


def comparison_html(names: Sequence[str], colours: Sequence[str], rows: Sequence[RunFigure]) -> str:
    """The figures as a table, the two runs with the colours of their lines; a row that differs is bold."""
    heads = "".join(
        f'<th scope="col"><i class="swatch" style="background: {colour}"></i>{html.escape(name)}</th>'
        for name, colour in zip(names, colours, strict=True)
    )
    lines = []
    for row in rows:
        name, marked = row.name, row.difference not in (SAME, UNKNOWN)
        cells = [
            f"<strong>{html.escape(text)}</strong>" if marked and text else html.escape(text)
            for text in (row.first, row.second, row.difference)
        ]
        lines.append(
            f'<tr><th scope="row"{ROW}>{html.escape(name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        )
    return table_html(f'<th scope="col">figure</th>{heads}<th scope="col">difference</th>', lines)


def comparison_frame(names: Sequence[str], rows: Sequence[RunFigure]) -> pd.DataFrame:
    """The same as it leaves the page."""
    return pd.DataFrame(
        [(row.name, row.first, row.second, row.difference) for row in rows],
        columns=["figure", *names, "difference"],
    )


def _words(name: str, texts: Sequence[str]) -> RunFigure:
    first, second = texts
    difference = UNKNOWN if UNKNOWN in texts else SAME if first == second else OTHER
    return RunFigure(name, first, second, difference)


def _figure(name: str, values: Sequence[float | None], texts: Sequence[str] | None = None) -> RunFigure:
    first, second = texts or [short(value) for value in values]
    return RunFigure(name, first, second, _difference(*values))


def _difference(first: float | None, second: float | None) -> str:
    """How the second value differs from the first: as a share of it, from 0 on in absolute terms."""
    if first is None or second is None or not (isfinite(first) and isfinite(second)):
        return UNKNOWN
    if first == second:
        return SAME
    sign = "+" if second > first else "−"
    change = abs(second - first)
    return f"{sign}{short(100 * change / abs(first), '%') if first else short(change)}"

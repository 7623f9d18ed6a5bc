"""A run's figures as curves: the figure, its axis, its smoothing, and the events on it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import streamlit as st

from app.charts.runs.curves import RESTART, CurveEvent, RunCurve
from app.charts.runs.series import (
    HEAVIEST,
    MOST_POINTS,
    RATE_POINTS,
    block_means,
    block_rates,
    cumulative_sum,
    exponential_average,
)
from app.runs.restarts import restarts_of, step_in_words
from app.runs.status_tables import format_bytes
from torchsplit_core.pictures.numbers import counted, exact
from torchsplit_core.training.monitor import Event, RunView

LOSS, SAMPLES, STEPS, STEP_S = "loss", "samples/s", "steps/s", "s/step"
UNITS: Mapping[str, str] = {LOSS: "", SAMPLES: "samples/s", STEPS: "steps/s", STEP_S: "s"}
"""The figures to draw, with their units."""
STEP, TIME = "step", "training time, s"
"""The axes: the time adds up the steps alone, without starts and pauses."""
EVENT_LABELS: Mapping[str, str] = {
    "checkpoint": "checkpoint", "rank_lost": "rank lost", "others_lost": "rank lost",
}  # fmt: skip
"""The kinds of events that curves mark beside restarts, with their names in the legend."""
MOST_MARKS = 50
"""How many marks of a kind a line has at most."""


@dataclass(frozen=True, slots=True)
class CurveSettings:
    """What to draw: a figure of UNITS along STEP or TIME, smoothed with a weight from 0 on."""

    figure: str = LOSS
    along: str = STEP
    weight: float = 0.0
    logarithmic: bool = False


def render_controls(key: str, *, figures: Sequence[str] = (LOSS,)) -> CurveSettings:
    """Draw the controls of a picture in a row, with the choice of the figure where there are several."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium", key=f"{key}-controls"):
        figure = figures[0]
        if len(figures) > 1:
            figure = st.selectbox("Figure", figures, key=f"{key}-figure", width=150, persist_state="session")
        along = st.selectbox(
            "Along", (STEP, TIME), key=f"{key}-along", width=180, persist_state="session",
            help="The time of the steps alone, without starts and pauses.",
        )  # fmt: skip
        weight = st.slider(
            "Smoothing", 0.0, HEAVIEST, 0.0, 0.01, key=f"{key}-smoothing", width=220, persist_state="session",
            help="Exponential moving average: so much of it is what came before. The pale line is not smoothed.",
        )  # fmt: skip
        logarithmic = st.toggle("Log scale", key=f"{key}-log", persist_state="session")
    return CurveSettings(figure, along, weight, logarithmic)


def curve(name: str, place: int, view: RunView, settings: CurveSettings) -> RunCurve:
    """The curve of a run that has steps; `place` among all runs gives its colour."""
    steps = view.steps
    # Another session may append to the columns now; `world_size` is the last one that it fills.
    count = len(steps.world_size)
    taken = steps.step_s[:count]
    most = MOST_POINTS if settings.figure == LOSS else RATE_POINTS
    where = steps.step[:count] if settings.along == STEP else cumulative_sum(taken)
    # Smooth before thinning: the weight is per step.
    average = None
    if settings.figure == LOSS:
        values = block_means(steps.loss[:count], most)
        if settings.weight:
            average = block_means(exponential_average(steps.loss[:count], settings.weight), most)
    else:
        amounts = {SAMPLES: steps.samples[:count], STEPS: [1] * count}.get(settings.figure)
        values = block_means(taken, most) if amounts is None else block_rates(amounts, taken, most)
        average = exponential_average(values, settings.weight) if settings.weight else None
    at = block_means(where, most)
    marks = tuple(
        CurveEvent(
            what,
            (spot := float(where[min(bisect_left(steps.step, step, hi=count), count - 1)])),
            float(np.interp(spot, at, values if average is None else average)),
            format_bytes(words),
        )
        for what, step, words in _drawn_events(view.events)
    )
    return RunCurve(name, at, values, place, average, marks)


def held_out_curves(view: RunView, place: int, settings: CurveSettings) -> dict[str, RunCurve]:
    """The curve of each metric on held-out samples, by name, at the steps at which it was measured."""
    steps = view.steps
    count = len(steps.world_size)
    seconds = cumulative_sum(steps.step_s[:count]) if settings.along == TIME else []
    points: dict[str, tuple[list[float], list[float]]] = {}
    for step, figures in list(steps.validations):
        row = bisect_left(steps.step, step, hi=count)
        if row == count:
            continue
        for name, value in figures.items():
            at, values = points.setdefault(name, ([], []))
            at.append(float(seconds[row] if settings.along == TIME else step))
            values.append(value)
    return {
        name: RunCurve("held out" if name == LOSS else name, at, values, place)
        for name, (at, values) in points.items()
    }


def _drawn_events(events: Sequence[Event]) -> list[tuple[str, int, str]]:
    """What is marked, at which step, with its words: of many of a kind every so manieth, the last among them."""
    marked = [
        (EVENT_LABELS[event.kind], step, event.words)
        for event in events
        if event.kind in EVENT_LABELS and (step := step_in_words(event)) is not None
    ]
    marked += [(RESTART, restart.step, "\n".join(restart.words)) for restart in restarts_of(events)]
    chosen = []
    for what in dict.fromkeys(what for what, _, _ in marked):
        same_kind = [mark for mark in marked if mark[0] == what]
        chosen += same_kind[::-1][:: _stride(len(same_kind))]
    return chosen


def _stride(count: int) -> int:
    return max(1, -(-count // MOST_MARKS))


def notes(views: Mapping[str, RunView], settings: CurveSettings) -> str:
    """Sentences that say what the picture leaves out; "" where it leaves out nothing."""
    sentences = []
    points = RATE_POINTS if settings.figure != LOSS else MOST_POINTS
    longest = max((len(view.steps) for view in views.values()), default=0)
    if longest > points:
        sentences.append(f"{exact(longest)} steps; each point is the mean of several.")
    if settings.weight:
        sentences.append(
            f"Smoothed exponentially, weight {settings.weight:.2f}; the pale line is as measured."
        )
    for name, view in views.items():
        taken = sum(event.kind == "checkpoint" for event in view.events)
        if (stride := _stride(taken)) > 1:
            sentences.append(f"{name}: of {counted(taken, 'checkpoint')} one in {stride} is marked.")
    if settings.logarithmic and settings.figure == LOSS:
        missing = sum(sum(loss <= 0 for loss in view.steps.loss) for view in views.values())
        if missing:
            sentences.append(
                f"{counted(missing, 'step')} with a loss of 0 or less can not stand on a log scale."
            )
    return " ".join(sentences)

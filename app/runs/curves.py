"""A run's figures as curves: which figure, along what, how smooth, and what happened where on them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import streamlit as st

from app.charts.runs.curves import Curve, Happening
from app.charts.runs.series import HEAVIEST, MOST_POINTS, RATE_POINTS, rates, running_sum, smoothed, thinned
from app.runs.words import with_sizes
from torchsplit_core.pictures.numbers import counted, exact
from torchsplit_core.training.monitor import Event, RunView

LOSS, SAMPLES, STEPS, STEP_S = "loss", "samples/s", "steps/s", "s a step"
UNITS: Mapping[str, str] = {LOSS: "", SAMPLES: "samples/s", STEPS: "steps/s", STEP_S: "s"}
"""The figures that are drawn, with their units."""
STEP, TIME = "step", "training time, s"
"""What they are drawn along: the time is that of the steps alone, without starts and pauses."""
HAPPENED: Mapping[str, str] = {
    "checkpoint": "checkpoint", "resumed": "restart", "rank_lost": "rank lost", "others_lost": "rank lost",
}  # fmt: skip
"""Kinds of events that are marked, by what the legend calls them."""
MOST_MARKS = 50
"""Marks of a kind on a line."""
_STEP = re.compile(r"\bstep (\d+)")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is drawn: a figure of UNITS along STEP or TIME, smoothed with a weight from 0 on."""

    figure: str = LOSS
    along: str = STEP
    weight: float = 0.0
    logarithmic: bool = False


def asked(key: str, *, figures: Sequence[str] = (LOSS,)) -> Asked:
    """The controls of a picture in a row; which figure, where there are several."""
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
    return Asked(figure, along, weight, logarithmic)


def curve(name: str, place: int, view: RunView, of: Asked) -> Curve:
    """The curve of a run that has steps; `place` among all runs gives its colour."""
    steps = view.steps
    # A look of another session may add to the columns meanwhile: this one is filled last.
    count = len(steps.world_size)
    taken = steps.step_s[:count]
    most = MOST_POINTS if of.figure == LOSS else RATE_POINTS
    where = steps.step[:count] if of.along == STEP else running_sum(taken)
    # Smoothed before it is thinned: the weight is that of a step.
    average = None
    if of.figure == LOSS:
        values = thinned(steps.loss[:count], most)
        if of.weight:
            average = thinned(smoothed(steps.loss[:count], of.weight), most)
    else:
        amounts = {SAMPLES: steps.samples[:count], STEPS: [1] * count}.get(of.figure)
        values = thinned(taken, most) if amounts is None else rates(amounts, taken, most)
        average = smoothed(values, of.weight) if of.weight else None
    at = thinned(where, most)
    marks = tuple(
        Happening(
            HAPPENED[event.kind],
            (spot := float(where[min(bisect_left(steps.step, step, hi=count), count - 1)])),
            float(np.interp(spot, at, values if average is None else average)),
            with_sizes(event.words),
        )
        for event, step in _marked(view.events)
    )
    return Curve(name, at, values, place, average, marks)


def _marked(events: Sequence[Event]) -> list[tuple[Event, int]]:
    """The events that are marked, with their steps: of many of a kind every so manieth, the last among them."""
    chosen = []
    for what in dict.fromkeys(HAPPENED.values()):
        own = [
            (event, int(match[1]))
            for event in events
            if HAPPENED.get(event.kind) == what and (match := _STEP.search(event.words))
        ]
        chosen += own[::-1][:: _stride(len(own))]
    return chosen


def _stride(count: int) -> int:
    return max(1, -(-count // MOST_MARKS))


def notes(views: Mapping[str, RunView], of: Asked) -> str:
    """What is left out of the picture, in sentences; "" where nothing is."""
    sentences = []
    points = RATE_POINTS if of.figure != LOSS else MOST_POINTS
    longest = max((len(view.steps) for view in views.values()), default=0)
    if longest > points:
        sentences.append(f"{exact(longest)} steps; each point is the mean of several.")
    if of.weight:
        sentences.append(f"Smoothed exponentially, weight {of.weight:.2f}; the pale line is as measured.")
    for name, view in views.items():
        taken = sum(event.kind == "checkpoint" for event in view.events)
        if (stride := _stride(taken)) > 1:
            sentences.append(f"{name}: of {counted(taken, 'checkpoint')} one in {stride} is marked.")
    if of.logarithmic and of.figure == LOSS:
        missing = sum(sum(loss <= 0 for loss in view.steps.loss) for view in views.values())
        if missing:
            sentences.append(
                f"{counted(missing, 'step')} with a loss of 0 or less can not stand on a log scale."
            )
    return " ".join(sentences)

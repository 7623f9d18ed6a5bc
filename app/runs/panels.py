"""The charts and tables of one run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pandas as pd
import streamlit as st

from app.charts.runs.curves import curves
from app.charts.runs.stages import block_bars
from app.charts.runs.timeline import TimelineEvent, timeline
from app.charts.training import stacked_bars
from app.components import saving
from app.format.gpus import NOTE
from app.runs import communication
from app.runs.curves import LOSS, SAMPLES, TIME, UNITS, curve, held_out_curves, notes, render_controls
from app.runs.slowness import (
    WAITING,
    block_seconds,
    busy_seconds,
    describe_busy,
    describe_slowest,
    describe_window,
    name_rank,
    slowest,
)
from app.runs.status_tables import (
    ENDED,
    EVENT_SEVERITY,
    RECENT_STEPS,
    checkpoint_rows,
    describe_time_left,
    describe_validation,
    event_rows,
    events_html,
    format_bytes,
    gpu_rows,
    rank_rows,
    recent_speed,
    stage_rows,
)
from app.shell import widgets
from torchsplit_core.pictures.numbers import counted, escape_markdown, exact, short
from torchsplit_core.training.monitor import RunView

PARTS = {
    "data": ("data", "#93b0c9"),
    "forward": ("forward", "#3f66cc"),
    "backward": ("backward", "#37a06a"),
    WAITING: (WAITING, "#7f8790"),
    "agreement": communication.LOSS_GATHER,
    "optimizer": ("optimizer", "#e2a11c"),
    "checkpoint": ("checkpoint", "#8c547a"),
    "validation": ("validation", "#2f8f9d"),
}
"""The parts of a step by their names in the files: their names on the page and their colours."""
MOST_EVENTS = 200
FEW, TABLE_PX = 10, 360
"""Beyond FEW events their table scrolls within TABLE_PX."""


def render(name: str, view: RunView, place: int) -> None:
    """Draw them all; `place` gives the run its colour."""
    _cards(view)
    _curves(name, view, place)
    _ranks(name, view)
    _stages(name, view)
    _gpus(name, view)
    _parts(name, view)
    communication.render(name, view)
    _events(name, view)
    _checkpoints(name, view)


def _cards(view: RunView) -> None:
    rate, step_s = recent_speed(view)
    predicted = view.launch.strategy.predicted if view.launch else None
    target = f"of {exact(view.target_steps)}" if view.target_steps else ""
    first = f"{short(view.steps.loss[0])} at first" if len(view.steps) else ""
    held_out = describe_validation(view)
    reckoned = (
        "no strategy predicted it"
        if predicted is None
        else f"{short(predicted.seconds_per_step, 's')} predicted"
    )
    recent = f"mean of the last {counted(min(RECENT_STEPS, len(view.steps)), 'step')}"
    cards = (
        ("Step", exact(view.last_step), target),
        (
            "Loss",
            short(view.steps.loss[-1] if len(view.steps) else None),
            "; ".join(filter(None, (held_out, first))),
        ),
        ("Samples/s", short(rate), f"{recent}, all ranks"),
        ("Step time", short(step_s, "s"), f"{recent}, checkpoints and validation not counted; {reckoned}"),
        ("Time left", *describe_time_left(view)),
    )
    for column, (title, figure, note) in zip(st.columns(len(cards)), cards, strict=True):
        with column.container(border=True, height="stretch", gap="xxsmall"):
            st.metric(title, figure)
            st.caption(escape_markdown(note))


def _curves(name: str, view: RunView, place: int) -> None:
    if not len(view.steps):
        st.caption("No step is done yet: the processes load torch and the model.")
        return
    settings = render_controls("run")
    held_out = held_out_curves(view, place + 1, settings)
    figures = (LOSS, *(metric for metric in held_out if metric != LOSS), SAMPLES)
    columns = [column for _ in range(0, len(figures), 2) for column in st.columns(2)]
    # The loss stands beside the first metric, the speed last.
    for column, figure in zip(columns, figures, strict=False):
        if figure in (LOSS, SAMPLES):
            drawn = curve(name, place, view, replace(settings, figure=figure))
            # Only the loss marks what happened.
            lines = [drawn if figure == LOSS else replace(drawn, events=())]
            lines += [held_out[LOSS]] if figure == LOSS and LOSS in held_out else []
            title = figure
        else:
            lines, title = [held_out[figure]], f"{figure}, held out"
        picture = curves(
            lines, title, UNITS.get(figure, ""), dark=widgets.is_dark(), along=settings.along,
            logarithmic=settings.logarithmic and figure == LOSS,
        )  # fmt: skip
        stem = figure.replace("/", "-") if figure in UNITS else f"metric-{figure}"
        alt = f"{title} of the run along its {'time' if settings.along == TIME else 'steps'}"
        with column:
            widgets.chart(picture, escape_markdown(title), f"{name}.{stem}", key=f"run-{stem}", alt=alt)
    if left_out := notes({name: view}, settings):
        st.caption(escape_markdown(left_out))


def _ranks(name: str, view: RunView) -> None:
    st.header("Ranks", anchor=False)
    if not view.ranks:
        st.caption("No rank has said anything yet.")
        return
    saving.table(rank_rows(view), f"{name}.ranks", key="run-ranks", alt="Ranks with state and memory")
    on_cpu = any(rank.device == "cpu" for rank in view.ranks)
    capacity_note = (
        "A CPU rank's memory is its whole process, libraries included." if on_cpu else "untested on hardware"
    )
    # Without seconds of its own the share is DDP's, which samples its steps.
    over = (
        "over the same steps as in the charts below"
        if any(rank.communication_s for rank in view.ranks)
        else "by DDP's own timings, the mean of its first ten steps, then of every hundredth"
    )
    st.caption(
        f"{capacity_note} Communication: the share of the forward and backward passes in which the rank waits for the "
        f"gradient reduction, {over}; n/a without DDP. A rank reports at most once a second, so a run that was stopped "
        "may have done a few steps more than its ranks reported."
    )


def _stages(name: str, view: RunView) -> None:
    rows = stage_rows(view)
    if not rows and not (view.launch and view.launch.strategy.choices.pipeline > 1):
        return
    st.header("Stages", anchor=False)
    seconds = block_seconds(view.ranks)
    if not seconds:
        st.caption(
            "The last start ended before a rank measured its blocks."
            if view.state in ENDED
            else "No rank has measured its blocks yet. After its first step a bar a rank stands here, with the seconds "
            "of a micro-batch in each of its blocks."
        )
    else:
        known = [rank for rank in view.ranks if rank.rank in seconds]
        slow = slowest(seconds)
        bars = block_bars(
            [name_rank(view, rank.rank, slow=rank.rank == slow) for rank in known],
            [{block: spent for block, spent in rank.blocks_s.items() if spent is not None} for rank in known],
            dark=widgets.is_dark(),
        )
        alt = "Seconds of a micro-batch in blocks, by rank"
        widgets.chart(bars, "Time in blocks", f"{name}.blocks", key="run-blocks", alt=alt)
        if words := describe_slowest(seconds, "a micro-batch"):
            st.markdown(words)
    if rows:
        saving.table(
            rows, f"{name}.stages", key="run-stages", alt="Blocks of each rank's stages with their time"
        )
    st.caption(
        "Measured in the last step that the rank told of: forward and backward pass of a micro-batch, without what it "
        "waited. With --balance blocks leave a slow stage at a checkpoint; what happened says which and what it took."
    )


def _gpus(name: str, view: RunView) -> None:
    if not view.gpus:
        return
    st.header("GPUs", anchor=False)
    rows = gpu_rows(view, datetime.now(UTC))
    saving.table(rows, f"{name}.gpus", key="run-gpus", alt="GPUs of the run's nodes")
    st.caption(NOTE)


def _parts(name: str, view: RunView) -> None:
    st.header("Where a step's time goes", anchor=False)
    known = [rank for rank in view.ranks if rank.parts_s]
    if not known:
        st.caption(
            "n/a: on a GPU work is handed over before it is done."
            if any(rank.device != "cpu" for rank in view.ranks)
            else "The last start ended before a rank reported where the time of its steps went: it does so about a "
            "second after its first step."
            if view.state in ENDED
            else "No rank has reported a step yet. About a second after its first step a bar a rank stands here: its "
            f"seconds by what they were for ({', '.join(name for name, _ in PARTS.values())})."
        )
        return
    seconds = busy_seconds(known)
    slow = slowest(seconds)
    bars = stacked_bars(
        [name_rank(view, rank.rank, slow=rank.rank == slow) for rank in known],
        [{PARTS[part][0]: spent for part, spent in (rank.parts_s or {}).items() if part in PARTS} for rank in known],
        dict(PARTS.values()), "s/step", "s", dark=widgets.is_dark(),
    )  # fmt: skip
    alt = "Seconds of a step in parts, by rank"
    widgets.chart(bars, "Time in parts", f"{name}.parts", key="run-parts", alt=alt)
    if words := describe_slowest(seconds, f"per step in {describe_busy(known[0])}"):
        st.markdown(words)
    silent = ", ".join(f"rank {rank.rank}" for rank in view.ranks if not rank.parts_s)
    st.caption(
        f"{describe_window(known)} Checkpoints and validation count here. Backward includes the gradient reduction; in "
        "the loss all-gather ranks tell each other their losses: a fast rank waits there for a slow one."
        + (f" No step reported yet: {silent}." if silent else "")
    )


def _events(name: str, view: RunView) -> None:
    st.header("What happened", anchor=False)
    if not view.events:
        st.caption("Nothing yet.")
        return
    shown = view.events[-MOST_EVENTS:]
    marks = [
        TimelineEvent(
            event.time,
            "run" if event.rank is None else f"rank {event.rank}",
            EVENT_SEVERITY.get(event.kind, "plain"),
            format_bytes(event.words),
        )
        for event in shown
    ]
    alt = "Events of the run on a line of time; the table has their words"
    picture = timeline(marks, dark=widgets.is_dark())
    widgets.chart(picture, "Time line", f"{name}.events", key="run-events", alt=alt)
    show_all = st.toggle("Every checkpoint", key="run-every-checkpoint")
    rows = event_rows([event for event in view.events if show_all or event.kind != "checkpoint"])
    with st.container(height=TABLE_PX if len(rows) > FEW else "content", border=False, key="run-event-rows"):
        if rows:
            st.html(events_html(rows[:MOST_EVENTS]))
    if len(rows) > MOST_EVENTS:
        st.caption(f"The last {MOST_EVENTS} of {exact(len(rows))}; the file has all.")
    saving.csv_button(
        pd.DataFrame(event_rows(view.events)), f"{name}.events", key="run-events", alt="Events, newest first"
    )


def _checkpoints(name: str, view: RunView) -> None:
    st.header("Checkpoints", anchor=False)
    if not view.checkpoints:
        st.caption("None is complete yet.")
        return
    rows = checkpoint_rows(view, datetime.now(UTC))
    saving.table(rows, f"{name}.checkpoints", key="run-checkpoints", alt="Complete checkpoints, newest first")
    st.caption(escape_markdown("Complete: on disk with the size and SHA-256 of every file."))

"""A training: how is a model divided over a fleet, how long does a step take, and how sure is that?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import streamlit as st

from app.charts.training import MEMORY_PARTS, TIME_PARTS, stacked_bars
from app.components import saving
from app.session import runs
from app.session.result_kind import TRAINING
from app.session.trainings import StoredTraining
from app.shell import frame, navigation, widgets
from app.trainings import cluster_files, form, sensitivity
from app.trainings.list_page import LIST
from app.trainings.strategy_tables import (
    describe_bottleneck,
    describe_choice,
    describe_request,
    has_gpus,
    label,
    proof,
    ranking_rows,
    refusal_rows,
    share_rows,
    stage_rows,
    where_trained,
)
from torchsplit_core import jobs, workflow
from torchsplit_core.files import write_text
from torchsplit_core.hardware import peaks
from torchsplit_core.jobs.job_kinds import STRATEGY
from torchsplit_core.pictures.numbers import escape_markdown, exact, percent, short
from torchsplit_core.strategy.cost_model.estimate import USABLE
from torchsplit_core.training import communication_of, run_strategy_of
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.outcome import StrategyCandidate, StrategyOutcome
from torchsplit_core.values.strategy.request import SourceSizes
from torchsplit_core.values.strategy.run import RunOptions
from torchsplit_core.workspace.store import Workspace

NEAR = 6.0
"""The chart draws the capacity where it is at most that many times the fullest bar."""


def render(workspace: Workspace, name: str | None, known: Sequence[str]) -> None:
    """Draw the page of a training below its heading; `known` are the names it can switch to."""
    if name is None:
        LIST.render_empty(workspace)
        return
    LIST.render_header(workspace, name, known)
    training: StoredTraining = TRAINING.load(workspace, name)
    st.caption(escape_markdown(describe_request(training.request)))
    with frame.picture_beside("training"):
        left, right = st.columns([31, 69], gap="medium")
    with left:
        form.render(workspace, training)
    with right:
        _render_outcome(workspace, training)


def _render_outcome(workspace: Workspace, training: StoredTraining) -> None:
    """Draw the stored strategy; while a search runs, draw no old one in its place."""
    outcome = training.outcome
    if outcome is None or not training.is_current:
        if jobs.running(workspace, (STRATEGY,), training.name):
            st.info("The search runs.")
        else:
            st.info(
                "Press Find a strategy: you will see the ranking, where the time goes, and what memory holds."
            )
        return
    words, colour = proof(outcome)
    with st.container(horizontal=True, vertical_alignment="center"):
        widgets.badge(words, colour)  # type: ignore[arg-type]
        widgets.badge("estimated", "yellow")
        if has_gpus(training.request):
            st.caption("untested on hardware")
    st.write(escape_markdown(outcome.message))
    if outcome.candidates:
        _best(training, outcome)
        _bars(training, outcome)
        _ranking(training, outcome)
        sensitivity.render(workspace, training, outcome)
    _refused(training, outcome)
    _files(workspace, training, outcome)


def _best(training: StoredTraining, outcome: StrategyOutcome) -> None:
    """Draw four figures of the best candidate, and its bottleneck."""
    best, gpus = outcome.candidates[0], has_gpus(training.request)
    cards = (
        (
            "Step time",
            short(best.seconds_per_step, "s"),
            f"90 %: {short(best.low_s)} to {short(best.high_s)} s",
        ),
        ("Tokens a second", short(best.tokens_per_s), f"{short(best.samples_per_s)} sequences a second"),
        (
            "Of the peak",
            percent(best.mfu),
            f"the model's own operations over the {'GPUs' if gpus else 'cores'}' peak",
        ),
        ("Memory", short(best.memory_gib.total, "GiB"), "on the fullest device"),
    )
    widgets.metric_cards(cards)
    st.markdown(f"**Bottleneck.** {escape_markdown(describe_bottleneck(best, gpus=gpus))}")


def _bars(training: StoredTraining, outcome: StrategyOutcome) -> None:
    dark = widgets.is_dark()
    names = [label(place, candidate) for place, candidate in enumerate(outcome.candidates)]
    st.header("Where the time goes", anchor=False)
    times = [asdict(candidate.parts_s) for candidate in outcome.candidates]
    bars = stacked_bars(names, times, TIME_PARTS, "s/step", "s", dark=dark)
    alt = "Seconds of each candidate in parts"
    widgets.chart(bars, "Time in parts", f"{training.name}.time", key="training-time", alt=alt)
    st.caption("d data, t tensor, p pipeline, c context, e experts, b sequences of a micro-batch.")
    st.header("What memory holds", anchor=False)
    memory = [asdict(candidate.memory_gib) for candidate in outcome.candidates]
    unit, limit = "GiB on the fullest device", _capacity(training, outcome)
    bars = stacked_bars(names, memory, MEMORY_PARTS, unit, "GiB", dark=dark, limit=limit)
    alt = "Memory of each candidate in parts"
    widgets.chart(bars, "Memory in parts", f"{training.name}.memory", key="training-memory", alt=alt)


def _capacity(training: StoredTraining, outcome: StrategyOutcome) -> tuple[str, float] | None:
    """The usable memory of the smallest GPU of the fleet; None where the bars stay far below it."""
    known = [
        peaks(entry.type).memory_gib for entry in training.request.fleet if not entry.type.startswith("CPU-")
    ]
    sizes = [size for size in known if size]
    most = max(entry.memory_gib.total for entry in outcome.candidates)
    if not sizes or USABLE * min(sizes) > NEAR * most:
        return None
    return f"usable of {short(min(sizes), 'GiB')}", USABLE * min(sizes)


def _ranking(training: StoredTraining, outcome: StrategyOutcome) -> None:
    st.header("Ranking", anchor=False)
    saving.table(
        ranking_rows(outcome),
        f"{training.name}.ranking",
        key="training-ranking",
        alt="Strategies, best first",
    )
    st.caption("Steps closer to each other than their intervals are a tie.")
    best = outcome.candidates[0]
    if best.across:
        st.header("A pipeline across unlike nodes", anchor=False)
        saving.table(
            stage_rows(best),
            f"{training.name}.stages",
            key="training-stages",
            alt="Every stage, the first of the model first",
        )
        st.caption(
            f"{best.micro_batches} micro-batches pass every stage; the slowest sets the pace, the others wait for it."
        )
    elif best.stages:
        st.header("Groups of unlike nodes" if best.beside else "Shares of unlike nodes", anchor=False)
        rows = share_rows(best)
        saving.table(
            rows, f"{training.name}.shares", key="training-shares", alt="What each kind of nodes does"
        )
        if best.beside:
            st.caption(
                "The nodes of a group are one pipeline, or copies; each group has its part of the batch."
            )


def _refused(training: StoredTraining, outcome: StrategyOutcome) -> None:
    if not outcome.refused:
        return
    count = sum(refusal.count for refusal in outcome.refused)
    with st.expander(
        f"{exact(count)} of {exact(outcome.considered)} choices refused", expanded=not outcome.candidates
    ):
        saving.table(
            refusal_rows(outcome),
            f"{training.name}.refused",
            key="training-refused",
            alt="Choices refused, and why",
        )


def _train_here(
    workspace: Workspace, training: StoredTraining, place: int, candidate: StrategyCandidate
) -> None:
    """Start a run of a sample at one press; of other models the form of a new run, which then has this strategy, asks
    for the file."""
    model, precision = training.request.model, training.request.training.precision
    source = model.source if isinstance(model, SourceSizes) else ""
    if st.button("Train by it on this machine", key="training-run", icon=":material/play_arrow:"):
        if not source.startswith("sample:"):
            runs.wish_strategy(training.name, place + 1, candidate.devices, precision)
            navigation.go("Runs")
        else:
            with frame.fault_boundary():
                strategy = run_strategy_of(candidate, precision=precision)
                options = RunOptions(communication=communication_of(training.request, None))
                navigation.go("Run", runs.start(workspace, source, strategy, options, None))


def _files(workspace: Workspace, training: StoredTraining, outcome: StrategyOutcome) -> None:
    stem = saving.file_name(training.name)
    st.header("Apply", anchor=False)
    if outcome.candidates:
        first = next(
            (n for n, candidate in enumerate(outcome.candidates) if candidate.not_exportable is None), 0
        )
        place = st.selectbox(
            "Strategy", range(len(outcome.candidates)), first,
            key=f"training-apply {training.sha256[:12]}",
            format_func=lambda number: f"{number + 1}: {describe_choice(outcome.candidates[number])}",
        )  # fmt: skip
        _file(training, outcome.candidates[place], f"{stem}.{place + 1}.py")
        cluster_files.render(training, outcome, place)
        on_this_machine, words = where_trained(training.request, outcome.candidates[place])
        st.caption(escape_markdown(words))
        if on_this_machine:
            _train_here(workspace, training, place, outcome.candidates[place])
    with st.container(horizontal=True):
        st.download_button(
            "Request (JSON)", lambda: write_text(training.request), f"{stem}.strategy_request.json", "application/json",
            on_click="ignore",
        )  # fmt: skip
        st.download_button(
            "Strategies (JSON)", lambda: write_text(outcome), f"{stem}.strategy.json", "application/json",
            on_click="ignore",
        )  # fmt: skip


def _file(training: StoredTraining, candidate: StrategyCandidate, file: str) -> None:
    """Offer the strategy as a plain PyTorch file, or say why there is none."""
    if isinstance(training.request.model, SourceSizes):
        st.caption(
            "As a plain PyTorch file: torchsplit strategy REQUEST --export FILE.py, where the model's file is."
        )
        return
    try:
        text = workflow.strategy_script(training.request, candidate)
    except InputFault as fault:
        st.caption(
            escape_markdown(f"No file is written for this one: {candidate.not_exportable or fault.problem}.")
        )
        return
    st.download_button(
        "Plain PyTorch file", text, file, "text/x-python", on_click="ignore", icon=":material/code:",
        help="DeviceMesh, fully_shard, parallelize_module, schedules, checkpoint wrappers: run it by torchrun.",
    )  # fmt: skip
    with st.expander("The file"):
        st.code(text, language="python", height=420)

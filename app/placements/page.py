"""The page of a placement: which layers of an LLM go on which GPUs, and how far from the best that can be."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.charts.pipeline import pipeline_html, topology_html
from app.components import saving
from app.components.picture import picture
from app.placements import comparison, curve, form
from app.placements import outcome_tables as tables
from app.placements.list_page import LIST
from app.placements.outcome_tables import headline, proof, single_pipeline, unit_of
from app.session.placements import StoredPlacement
from app.session.result_kind import PLACEMENT
from app.shell import frame, widgets
from torchsplit_core import jobs
from torchsplit_core.deployment.launch_commands import launch_commands
from torchsplit_core.jobs.job_kinds import PLACE
from torchsplit_core.pictures.numbers import counted, escape_markdown, exact, percent, short
from torchsplit_core.values import PlacementOutcome, PlacementRequest
from torchsplit_core.workspace.store import Workspace

QUESTION = "Which layers of an LLM go on which particular GPUs, and how far from the best can that be?"


def render(workspace: Workspace, name: str | None, known: Sequence[str]) -> None:
    """The whole page below its heading, of this one among the known ones."""
    if name is None:
        LIST.render_empty(workspace)
        return
    st.write(QUESTION)
    LIST.render_header(workspace, name, known)
    placement: StoredPlacement = PLACEMENT.load(workspace, name)
    with frame.picture_beside("place"):
        left, right = st.columns([24, 76], gap="medium")
    with left:
        trial = form.render(workspace, placement)
    with right:
        if trial is not None:
            _banner(workspace, placement, trial)
            if trial.outcome is not None:
                shown = _render_outcome(placement, trial.request, trial.outcome)
                _details(placement, trial.request, trial.outcome, shown)
                return
        _render_stored(workspace, placement)


def _banner(workspace: Workspace, placement: StoredPlacement, trial: form.TrialPlacement) -> None:
    """What is tried and not stored, and the button that discards it."""
    with st.container(border=True, horizontal=True, vertical_alignment="center", key="place-banner"):
        text = f"Tried, not kept: {'; '.join(trial.changes)}."
        before = placement.outcome.throughput if placement.outcome and placement.is_current else None
        after = trial.outcome.throughput if trial.outcome is not None else None
        if before and after and trial.request.units == placement.request.units:
            more = after / before - 1
            change = f"{percent(abs(more))} {'more' if more > 0 else 'less'}"
            text += f" {change}." if abs(more) > 1e-9 else " No change."
        st.markdown(escape_markdown(text), width="stretch")
        if st.button("Back", key="place-back"):
            form.discard_edits(workspace)
    if trial.fault:
        st.warning(escape_markdown(trial.fault))


def _render_stored(workspace: Workspace, placement: StoredPlacement) -> None:
    """The stored outcome; while a search runs the session's last one, dimmed and marked as old."""
    last = f"placement last shown {workspace.id} {placement.name}"
    if placement.outcome is not None and placement.is_current:
        st.session_state[last] = (placement.request, placement.outcome)
        shown = _render_outcome(placement, placement.request, placement.outcome)
        curve.render(workspace, placement)
        comparison.render(workspace, placement)
        _details(placement, placement.request, placement.outcome, shown)
        return
    if jobs.running(workspace, (PLACE,), placement.name):
        st.info("Searching: above are the best so far and the bound that no placement passes.")
    else:
        st.info("Press Place: you will see the pipeline over the fleet, what bounds it, and the proof.")
    if last in st.session_state:
        st.caption("Below is the answer to the request before this change.")
        st.html("<style>.st-key-place-old { opacity: .6; }</style>")
        with st.container(key="place-old"):
            request, outcome = st.session_state[last]
            _details(placement, request, outcome, _render_outcome(placement, request, outcome))


def _render_outcome(
    placement: StoredPlacement, request: PlacementRequest, outcome: PlacementOutcome
) -> PlacementOutcome:
    """Figures and pictures; the pipeline that they show."""
    words, colour = proof(outcome)
    with st.container(horizontal=True, vertical_alignment="center"):
        widgets.badge(words, colour)
        widgets.badge(f"speeds {outcome.basis}", "green" if outcome.basis == "measured" else "yellow")
        st.caption("untested on hardware")
    if not outcome.segments:
        st.warning(escape_markdown(outcome.message or "No placement was found."))
        if outcome.bound is not None:
            st.caption(f"No placement exceeds {short(outcome.bound, unit_of(outcome))}.")
        return outcome
    _cards(request, outcome)
    if len(outcome.replicas) > 1:
        st.header("Pipelines", anchor=False)
        rows = tables.replicas_table(outcome)
        saving.table(rows, f"{placement.name}.pipelines", key="place-replicas", alt="All pipelines")
    else:
        st.header("The pipeline", anchor=False)
    shown = _pipeline_of(placement, outcome)
    with saving.exportable("Pipeline", f"{placement.name}.pipeline", key="place-pipeline"):
        picture(pipeline_html(shown, request), key="place-pipeline")
    st.caption(
        "A thick frame or arrow marks the bottleneck. The table has the exact figures of links and segments."
    )
    st.header("Over the fleet", anchor=False)
    with saving.exportable("Fleet", f"{placement.name}.fleet", key="place-topology"):
        picture(topology_html(outcome, request), key="place-topology")
    whose = "pipeline" if len(outcome.replicas) > 1 else "type"
    st.caption(
        f"A cell is a GPU with the number of its segment in the colour of its {whose}; hatched is unused."
    )
    return shown


def _details(
    placement: StoredPlacement, request: PlacementRequest, outcome: PlacementOutcome, shown: PlacementOutcome
) -> None:
    """The exact figures of the shown pipeline, files and launch arguments."""
    if not outcome.segments:
        _downloads(placement, request, outcome)
        return
    st.header("Segments", anchor=False)
    rows = tables.segments_table(shown, request)
    saving.table(rows, f"{placement.name}.segments", key="place-segments", alt="Segments of the pipeline")
    if shown.links:
        st.header("Links", anchor=False)
        rows = tables.links_table(shown, request)
        saving.table(rows, f"{placement.name}.links", key="place-links", alt="Links of the pipeline")
    _downloads(placement, request, outcome)
    _launch(request, shown)


def _pipeline_of(placement: StoredPlacement, outcome: PlacementOutcome) -> PlacementOutcome:
    """The pipeline that pictures and tables show, with a choice among several."""
    count = len(outcome.replicas)
    if count < 2:
        return single_pipeline(outcome, 0)
    labels, key = (
        [f"{number} of {count}" for number in range(1, count + 1)],
        f"place-replica {placement.name} {count}",
    )
    number = st.selectbox("Show pipeline", range(count), key=key, format_func=labels.__getitem__, width=220)
    return single_pipeline(outcome, number)


def _cards(request: PlacementRequest, outcome: PlacementOutcome) -> None:
    """The outcome in four figures."""
    known = outcome.bound is not None
    bound = f"at most {short(outcome.bound, unit_of(outcome))}" if known else "no bound is known"
    if outcome.units == "seed_literal":
        bound += "; links count in batches/s"
    passing, _, meaning = tables.latency_labels(request)
    seconds = outcome.seconds_per_token or outcome.latency_s
    if outcome.sequences_in_flight is not None:
        meaning += f"; {outcome.sequences_in_flight:,} sequences in flight"
    if seconds and outcome.latency_s and seconds > 1.001 * outcome.latency_s:
        meaning += f"; a pass takes {_time(outcome.latency_s)}, the rest waits for the slowest segment"
    several, parts = len(outcome.replicas) > 1, len(outcome.segments)
    if several:
        meaning += "; the slowest pipeline's"
        last = ("Pipelines", str(len(outcome.replicas)), f"at most {request.max_replicas} were asked for")
        used = f"each pipeline has all {request.model.layers} layers"
    else:
        head, sentence = tables.bottleneck(single_pipeline(outcome, 0))
        last = ("Bounded by", head, sentence)
        used = f"{counted(request.model.layers, 'layer')} in {counted(parts, 'segment')}"
    cards = (
        ("Throughput", headline(outcome), bound),
        (passing, _time(seconds), meaning),
        ("GPUs used", f"{exact(tables.gpus_used(outcome))} of {exact(len(request.gpus))}", used),
        last,
    )
    widgets.metric_cards(cards)


def _time(seconds: float | None) -> str:
    return short(seconds, "s") if seconds is None or seconds >= 1 else short(1e3 * seconds, "ms")


def _downloads(placement: StoredPlacement, request: PlacementRequest, outcome: PlacementOutcome) -> None:
    stem = saving.file_name(placement.name)
    with st.container(horizontal=True):
        widgets.json_button("Request (JSON)", request, f"{stem}.placement_request.json")
        widgets.json_button("Placement (JSON)", outcome, f"{stem}.placement.json")


def _launch(request: PlacementRequest, outcome: PlacementOutcome) -> None:
    with st.expander("Launch arguments: vLLM, torchrun"):
        widgets.badge("untested on hardware", "yellow")
        for launch in launch_commands(request, outcome):
            st.markdown(f"**{launch.launcher}**")
            if launch.unsupported_reason:
                st.write(escape_markdown(launch.unsupported_reason))
            else:
                st.code(launch.text, language=None, height="content", wrap_lines=True)

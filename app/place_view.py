"""The Place page: which layers of an LLM go on which particular GPUs, and how far from the best can that be?"""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from app import frame, place_ask, place_new, place_store
from app.charts.pipeline import pipeline_html, topology_html
from app.components.picture import picture
from app.numbers import UNKNOWN, percent, plain, short
from app.place_store import Kept
from app.place_words import (
    bottleneck,
    comparison_table,
    headline,
    links_table,
    proof,
    segments_table,
    unit_of,
)
from torchsplit_core.deployment.pipeline_launch import launches
from torchsplit_core.files import write_text
from torchsplit_core.storage import Workspace
from torchsplit_core.values import PlacementOutcome, PlacementRequest

QUESTION = "Which layers of an LLM go on which particular GPUs, and how far from the best can that be?"
# In a narrow window the answer comes before its controls.
STYLE = """<style>@media (max-width: 640px) {
  .st-key-place-body > [data-testid="stHorizontalBlock"],
  .st-key-place-body > * > [data-testid="stHorizontalBlock"] { flex-direction: column-reverse; }
  .st-key-place-body [data-testid="stColumn"] { flex: none; width: 100%; } }</style>"""


def show(workspace: Workspace) -> None:
    """The whole page."""
    st.html(STYLE)
    name = place_store.chosen(workspace)
    if name is None:
        st.write(
            "Here you will see which layers of an LLM go on which GPUs of a fleet so that throughput is highest, "
            "drawn over its nodes, with the proof. Begin with an example."
        )
        place_new.show(workspace, first=True)
        return
    st.write(QUESTION)
    _choice(workspace, name)
    kept = place_store.kept(workspace, name)
    with st.container(key="place-body"):
        left, right = st.columns([24, 76], gap="medium")
    with left:
        trial = place_ask.show(workspace, kept)
    with right:
        if trial is not None:
            _banner(workspace, kept, trial)
            if trial.outcome is not None:
                _answer(workspace, kept, trial.request, trial.outcome)
                return
        _stored(workspace, kept)


def _choice(workspace: Workspace, name: str) -> None:
    """Which placement, a new one, and away with this one."""
    names = list(place_store.known(workspace))
    with st.container(horizontal=True, vertical_alignment="center"):
        chosen = st.selectbox(
            "Placement", names, names.index(name), key=f"place-choice {name} {len(names)}", width=320,
            label_visibility="collapsed",
        )  # fmt: skip
        if chosen != name:
            place_store.choose(workspace, chosen)
            st.rerun()
        if st.button("Remove", key="place-remove", help="Forget this placement and its request."):
            place_store.remove(workspace, name)
            st.rerun()
    with st.expander("New placement"):
        place_new.show(workspace, first=False)


def _banner(workspace: Workspace, kept: Kept, trial: place_ask.Trial) -> None:
    """What is tried and not stored, and two ways out of it."""
    with st.container(border=True, horizontal=True, vertical_alignment="center", key="place-banner"):
        text = f"Tried, not kept: {'; '.join(trial.changes)}."
        before = kept.outcome.throughput if kept.outcome is not None and kept.answers else None
        after = trial.outcome.throughput if trial.outcome is not None else None
        if before and after and trial.request.units == kept.request.units:
            more = after / before - 1
            text += (
                f" {percent(abs(more))} {'more' if more > 0 else 'less'}."
                if abs(more) > 1e-9
                else " No change."
            )
        st.markdown(plain(text), width="stretch")
        if st.button("Back", key="place-back"):
            place_ask.back(workspace)
    if trial.fault:
        st.warning(plain(trial.fault))


def _stored(workspace: Workspace, kept: Kept) -> None:
    """The stored answer; while a search runs the last one of this session, said to be old."""
    last = f"placement last shown {workspace.id} {kept.name}"
    if kept.outcome is not None and kept.answers:
        st.session_state[last] = (kept.request, kept.outcome)
        _answer(workspace, kept, kept.request, kept.outcome)
        return
    running = place_store.work_on(workspace, kept.name)
    if running:
        st.info("The search runs: above stand the best so far and what none can pass.")
    else:
        st.info("Press Place: you will see the pipeline over the fleet, what bounds it, and the proof.")
    if last in st.session_state:
        st.caption("Below: the last answer, to an earlier question.")
        _answer(workspace, kept, *st.session_state[last])


def _answer(workspace: Workspace, kept: Kept, request: PlacementRequest, outcome: PlacementOutcome) -> None:
    words, colour = proof(outcome)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(words, color=colour)  # type: ignore[arg-type]
        st.badge(f"speeds {outcome.basis}", color="green" if outcome.basis == "measured" else "yellow")
        st.caption("untested on hardware")
    if not outcome.segments:
        st.warning(plain(outcome.message or "No placement was found."))
        if outcome.bound is not None:
            st.caption(f"None can be above {short(outcome.bound, unit_of(outcome))}.")
        _downloads(kept, request, outcome)
        return
    _cards(request, outcome)
    st.header("The pipeline", anchor=False)
    picture(pipeline_html(outcome, request), key="place-pipeline")
    st.caption(
        "A thick frame or arrow is what bounds the whole. Figures of links and segments are exact in the table."
    )
    st.header("Over the fleet", anchor=False)
    picture(topology_html(outcome, request), key="place-topology")
    st.caption("A cell is a GPU with the number of its segment; hatched is unused.")
    st.header("Segments", anchor=False)
    st.dataframe(
        segments_table(outcome, request), hide_index=True, placeholder=UNKNOWN, alt="Segments of the pipeline"
    )
    if outcome.links:
        st.header("Links", anchor=False)
        st.dataframe(
            links_table(outcome, request), hide_index=True, placeholder=UNKNOWN, alt="Links of the pipeline"
        )
    _comparison(workspace, kept, request)
    _downloads(kept, request, outcome)
    _launch(outcome)


def _cards(request: PlacementRequest, outcome: PlacementOutcome) -> None:
    head, sentence = bottleneck(outcome)
    used = sum(len(part.gpu_ids) for part in outcome.segments)
    bound = (
        f"at most {short(outcome.bound, unit_of(outcome))}"
        if outcome.bound is not None
        else "no bound is known"
    )
    if outcome.units == "seed_literal":
        bound += "; links count in batches/s"
    cards = (
        ("Throughput", headline(outcome), bound),
        ("Segments", str(len(outcome.segments)), f"of {request.model.layers} layers"),
        ("GPUs used", f"{used} of {len(request.gpus)}", f"at most {request.max_gpus_per_segment} a segment"),
        ("Bounded by", head, sentence),
    )
    for column, (label, figure, note) in zip(st.columns(4), cards, strict=True):
        with column.container(border=True, height="stretch", gap="xxsmall"):
            st.metric(label, figure)
            st.caption(note)


def _comparison(workspace: Workspace, kept: Kept, request: PlacementRequest) -> None:
    st.header("Other ways to divide", anchor=False)
    key = f"place-compare {kept.name}"
    if len(request.gpus) > place_ask.QUICK_GPUS or not st.toggle(
        "Compare one GPU a segment, equal and proportional parts", key=key
    ):
        return
    most = request.max_gpus_per_segment
    ways = [("one GPU", replace(request, max_gpus_per_segment=1))]
    if most > 1:
        ways += [
            (f"up to {most}, equal parts", replace(request, split="equal")),
            (f"up to {most}, in proportion", replace(request, split="proportional")),
        ]
    with frame.telling():
        ground = hash((request.model, request.gpus, request.units, request.same_type_segments, most))
        rows = [
            (label, place_ask.quick(workspace, f"{kept.sha256} {ground} {label}", way)) for label, way in ways
        ]
        st.dataframe(
            comparison_table(rows), hide_index=True, placeholder=UNKNOWN, alt="Ways to divide compared"
        )
        st.caption(f"Each searched for {place_ask.QUICK_S:g} s at most.")


def _downloads(kept: Kept, request: PlacementRequest, outcome: PlacementOutcome) -> None:
    stem = kept.name.replace("/", "-").replace(":", "-")
    with st.container(horizontal=True):
        st.download_button(
            "Request (JSON)", lambda: write_text(request), f"{stem}.placement_request.json", "application/json",
            on_click="ignore",
        )  # fmt: skip
        st.download_button(
            "Placement (JSON)",
            write_text(outcome),
            f"{stem}.placement.json",
            "application/json",
            on_click="ignore",
        )


def _launch(outcome: PlacementOutcome) -> None:
    with st.expander("Launch arguments: vLLM, torchrun"):
        st.badge("untested on hardware", color="yellow")
        for one in launches(outcome):
            st.markdown(f"**{one.launcher}**")
            if one.why_not:
                st.write(plain(one.why_not))
            else:
                st.code(one.text, language=None, height="content", wrap_lines=True)

"""The models of a workspace and ways to add more; for a new user the shortest ways to a plan."""

from __future__ import annotations

import html
import os
from functools import partial
from urllib.parse import urlencode

import streamlit as st

from app.components import saving
from app.format.html import table_html
from app.models import add_llm, upload
from app.session import cuts, runs, scenario, workspace_list
from app.session import trust as session_trust
from app.session.models import ModelEntry, describe_training, list_models
from app.session.result_kind import SCENARIO
from app.session.unsaved import begin
from app.session.uploads import needs_file, refuse_untrusted, upload_of
from app.session.workspace import names, store
from app.shell import frame, navigation, widgets
from sample_models.registry import SAMPLES
from torchsplit_core import jobs
from torchsplit_core.hardware import sliced_types
from torchsplit_core.jobs import job_kinds
from torchsplit_core.jobs.job_kinds import PROFILE, QUICK_START, RUN_HERE, TRACE, UploadedFile
from torchsplit_core.jobs.quick_start import (
    CHAT_AND_VISION,
    DIGITS,
    MEASURED_MIX,
    chat_and_vision,
    measured_mix,
    slice_cores,
)
from torchsplit_core.pictures.numbers import counted, escape_markdown
from torchsplit_core.values import CLIENT_TEMPLATE
from torchsplit_core.workspace.store import Workspace

__all__ = ["ModelEntry", "list_models", "render", "render_welcome", "start_options", "table"]
MOST_WORKSPACES = 8
"""Earlier workspaces in the list without a search."""


def render(workspace: Workspace) -> None:
    """The whole page."""
    upload.import_dropped(workspace)
    entries = list_models(workspace)
    if not entries and not names(workspace, "plan_request"):
        render_welcome(workspace)
        return
    st.write(f"{counted(len(entries), 'model')} in this workspace.")
    table(workspace, entries)
    _actions(workspace, entries)
    with st.expander("Add a model"):
        _render_add_model(workspace)
    with st.expander("Plan something ready"):
        start_options(workspace)


def render_welcome(workspace: Workspace) -> None:
    """An empty workspace: a model of one's own, the ready examples, earlier workspaces."""
    st.write(
        "TorchSplit plans which model gets which slice of your GPUs. Begin with a model of your own, or an example."
    )
    _render_upload_option(workspace)
    start_options(workspace)
    with st.expander("Or trace a sample model"):
        _sample(workspace)
    _render_other_workspaces(workspace)


def _render_upload_option(workspace: Workspace) -> None:
    """The upload of a model file, and what a .py file needs."""
    with st.container(border=True, key="door-own"):
        st.header("A model of your own", anchor=False)
        upload.render(workspace)
        with st.expander("A .py file needs a class like this"):
            st.caption("Copy it beside your model, change the two marked lines, and drop the file above.")
            st.code(CLIENT_TEMPLATE, language="python")


def start_options(workspace: Workspace) -> None:
    """The four ways to a plan in at most three clicks."""
    left, right = st.columns(2, gap="medium")
    sample_column, train_column = st.columns(2, gap="medium")
    with left.container(border=True, height="stretch", key="door-measured"):
        st.header("Measured A100 mix", anchor=False)
        widgets.badge("measured", "green")
        st.write(
            "Eleven models measured on MIG slices of an A100-80GB (ParvaGPU, SC'24). The measurements ship with "
            "TorchSplit: nothing is traced or run."
        )
        st.caption(
            "About ten seconds to a proven plan, and half a minute more to explain it. Nothing is downloaded."
        )
        if st.button("Plan the measured mix", type="primary", key="door-1"):
            with frame.fault_boundary():
                begin(workspace)
                before = workspace.find("plan", MEASURED_MIX)
                name = measured_mix(workspace, begin=partial(scenario.start_plan, workspace))
                scenario.await_plan(workspace, name, before)
                navigation.go("Plan", name)
    with right.container(border=True, height="stretch", key="door-samples"):
        st.header("Sample models, measured here", anchor=False)
        widgets.badge("measured on this CPU, estimated for the GPU", "yellow")
        st.write(
            "CLIP-, BERT-, FastPitch- and OCR-like models at real dimensions: traced and timed on this machine, "
            "estimated for the GPUs you choose, and planned."
        )
        st.caption("One to two minutes, in the background. Nothing is downloaded.")
        kind_column, count_column = st.columns([2, 1])
        kinds = list(sliced_types())
        kind = kind_column.selectbox("GPU type", kinds, kinds.index("A100-80GB"), key="door-2-type")
        count = count_column.number_input("How many", 1, 4096, 2, key="door-2-count")
        if st.button("Trace, measure and plan the samples", type="primary", key="door-2"):
            with frame.fault_boundary():
                name = "Sample models, measured here"
                begin(workspace)
                parameters = job_kinds.QuickStartParameters(((kind, int(count)),), name, _sample_sources())
                SCENARIO.choose(workspace, name)
                scenario.request_explanation(workspace)
                jobs.start(workspace, name, QUICK_START, parameters)
                navigation.go("Plan")
    with sample_column.container(border=True, height="stretch", key="door-here"):
        st.header("This machine, for real", anchor=False)
        widgets.badge("measured on this CPU, nothing estimated", "green")
        st.write(
            f"Small samples on {counted(slice_cores(), 'core')} of this machine as slices: measured, planned, "
            "served under load, and compared with what the plan predicted."
        )
        st.caption("About two minutes, in the background. Nothing is downloaded.")
        if st.button("Measure, plan, serve and load", type="primary", key="door-3"):
            with frame.fault_boundary():
                job_parameters = job_kinds.RunHereParameters(sources=_sample_sources())
                begin(workspace)
                SCENARIO.choose(workspace, job_parameters.request)
                jobs.start(workspace, job_parameters.request, RUN_HERE, job_parameters)
                # That page compares the measured figures with the plan.
                navigation.go("Run it", job_parameters.request)

    with st.container(border=True, key="door-llm"):
        st.header(CHAT_AND_VISION, anchor=False)
        widgets.badge("estimated from sizes and A100 figures", "yellow")
        st.write(
            "Llama-3.1-8B within 500 ms to the first token beside an encoder and three vision models. The plan decides "
            "which GPUs MIG cuts, and which engine stands on a slice, a GPU or a group; all engines are simulated."
        )
        st.caption("About half a minute. Nothing is downloaded.")
        if st.button("Plan chat and vision", type="primary", key="door-5"):
            with frame.fault_boundary():
                begin(workspace)
                before = workspace.find("plan", CHAT_AND_VISION)
                name = chat_and_vision(workspace)
                scenario.start_plan(workspace, name)
                scenario.await_plan(workspace, name, before)
                navigation.go("Plan", name)
    with train_column.container(border=True, height="stretch", key="door-train"):
        st.header("Train, then serve", anchor=False)
        widgets.badge("measured on this CPU, nothing estimated", "green")
        st.write(
            "A reader of hand-written digits: trained on 1,437 real images in two processes, its accuracy measured on "
            "360 others, then profiled, planned on this machine's cores, served and loaded."
        )
        st.caption("About two minutes, in the background. Nothing is downloaded.")
        if st.button("Train, plan, serve and load", type="primary", key="door-4"):
            with frame.fault_boundary():
                begin(workspace)
                run = runs.add_run(workspace, DIGITS)
                training = job_kinds.RunHereParameters("Trained and served here", run=run)
                SCENARIO.choose(workspace, training.request)
                jobs.start(workspace, training.request, RUN_HERE, training)
                navigation.go("Run", run)


def _sample_sources() -> tuple[str, ...] | None:
    """The sources of TORCHSPLIT_DOOR_SAMPLES in place of the defaults, if the server has that variable."""
    setting = os.environ.get("TORCHSPLIT_DOOR_SAMPLES", "")
    return tuple(source.strip() for source in setting.split(",") if source.strip()) or None


def _render_other_workspaces(workspace: Workspace) -> None:
    """Other workspaces on this machine, which an address without a workspace must not lose."""
    others = [summary for summary in workspace_list.list_workspaces(store()) if summary.id != workspace.id]
    if not others:
        return
    st.header("Earlier workspaces", anchor=False)
    if len(others) > MOST_WORKSPACES:
        text = st.text_input("Search the workspaces", key="earlier-search")
        others = [summary for summary in others if text.lower() in f"{summary.name} {summary.counts}".lower()]
    for summary in others[:MOST_WORKSPACES]:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            navigation.link("Overview", escape_markdown(summary.name), workspace=store().open(summary.id))
            st.caption(escape_markdown(summary.description))
    if len(others) > MOST_WORKSPACES:
        st.caption(f"The first {MOST_WORKSPACES} of {len(others)}: search for the others.")


def table(workspace: Workspace, entries: list[ModelEntry]) -> None:
    """What is known of each model, with links to their pages."""
    if not entries:
        st.info("No model is stored here yet.")
        return
    colours = scenario.colours(workspace)
    trained = {entry.source: describe_training(workspace, entry.source) for entry in entries}
    has_trained = any(trained.values())
    rows = [
        f'<tr><td class="name"><i class="swatch" style="background:{colours[scenario.short_name(entry.source)]}"></i>'
        f'<a href="{html.escape(_model_url(entry.source))}">{html.escape(entry.source)}</a></td>'
        f"<td>{'traced' if entry.nodes is not None else 'not traced'}</td>"
        f'<td class="n">{entry.nodes if entry.nodes is not None else "n/a"}</td>'
        f"<td>{entry.basis}</td><td>{html.escape(entry.measured_on)}</td>"
        + (f"<td>{html.escape(trained[entry.source]) or 'n/a'}</td>" if has_trained else "")
        + "</tr>"
        for entry in entries
    ]
    head = (
        '<th>model</th><th>graph</th><th class="n">nodes</th><th>rows of its profile</th><th>measured on</th>'
        + ("<th>trained</th>" if has_trained else "")
    )
    saving.exportable_table(table_html(head, rows), "Models", "models", key="models")


def _model_url(source: str) -> str:
    """The page of a model, from any page of the dashboard."""
    return f"model?{urlencode(navigation.query('Graph', source))}"


def _actions(workspace: Workspace, entries: list[ModelEntry]) -> None:
    if not entries:
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = st.selectbox("Model", [entry.source for entry in entries], width=360, key="action-model")
        entry = next(entry for entry in entries if entry.source == chosen)
        navigation.link("Graph", "Open", chosen, icon=":material/open_in_new:")
        _work(workspace, chosen)
        if st.button("Remove", help="Removes the model's graph, profile and cuts. Plans that use it stay."):
            for kind in ("graph", "profile"):
                workspace.remove(kind, entry.source)
            cuts.forget(workspace, entry.source)
            frame.notify(f"Removed {entry.source}.")
            st.rerun()


def _work(workspace: Workspace, source: str) -> None:
    """Trace and profile buttons for one model; an upload is executed only with the box ticked."""
    file: UploadedFile | None = None
    away, trust = None, False
    if needs_file(workspace, source):
        stored = upload_of(workspace, source)
        if stored is None:
            away = "Its file is not in this workspace."
        else:
            trust = session_trust.trust_box({stored.name: stored.sha256}, f"trust-{source}")
            file = UploadedFile(stored.name, stored.sha256 if trust else None)
    help_text = away or "A .pt2 that is not trusted is estimated, not measured."
    with frame.fault_boundary():
        for verb, job, hint in (("Trace", TRACE, away), ("Profile", PROFILE, help_text)):
            if st.button(verb, disabled=away is not None, help=hint):
                refuse_untrusted(file.upload if file else "", trust)
                jobs.start(workspace, f"{verb} {source}", job, upload.job_parameters(job, source, file))
                st.rerun()


def _render_add_model(workspace: Workspace) -> None:
    files, samples, llm = st.tabs(["A file of yours", "A sample model", "An LLM"])
    with files:
        upload.render(workspace)
    with samples:
        _sample(workspace)
    with llm:
        add_llm.render(workspace)


def _sample(workspace: Workspace) -> None:
    by_name = {sample.name: sample for sample in SAMPLES}
    name = st.selectbox("Sample", list(by_name), format_func=lambda key: by_name[key].title, key="sample")
    sample = by_name[name]
    st.caption(f"{escape_markdown(sample.sentence)} Large: {escape_markdown(sample.large)}.")
    sizes = [size for size in sample.sizes if size in ("small", "large")]
    size = st.radio("Size", sizes, key="sample-size", horizontal=True)
    source = f"sample:{name}" + ("@large" if size == "large" else "")
    with st.container(horizontal=True):
        traced, profiled = st.button("Trace the sample", type="primary"), st.button("Trace and profile it")
    if traced or profiled:
        verb, kind = ("Trace", TRACE) if traced else ("Profile", PROFILE)
        job = jobs.start(workspace, f"{verb} {source}", kind, upload.job_parameters(kind, source))
        upload.follow_job(source, job)
        st.rerun()

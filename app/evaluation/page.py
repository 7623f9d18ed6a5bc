"""The evaluation: verdicts on four claims about plans, the pictures and tables behind them, the job that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import streamlit as st

from app.components import saving
from app.components.picture import picture
from app.evaluation.shipped import load_shipped
from app.session.unsaved import begin
from app.session.workspace import names, read
from app.shell import address
from torchsplit_core import jobs
from torchsplit_core.evaluation.grid import cases, settings_of
from torchsplit_core.evaluation.report.bar_charts import bar_charts, chart_svg
from torchsplit_core.evaluation.report.csv_files import cases_csv, models_csv
from torchsplit_core.evaluation.report.html_report import claim_html, mixes_html, report, table_html
from torchsplit_core.evaluation.report.markdown import document
from torchsplit_core.evaluation.report.result_tables import made_words, settings_words, tables
from torchsplit_core.evaluation.run import plans_to_search
from torchsplit_core.evaluation.search_budget import effort_words
from torchsplit_core.files import write_text
from torchsplit_core.jobs.job_kinds import EVALUATE, EvaluateParameters
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.values.evaluation.outcome import EvaluationOutcome, EvaluationSettings
from torchsplit_core.workspace.named_results import evaluation_name
from torchsplit_core.workspace.store import Workspace

VIEWS = ("Claims", "Pictures", "Tables", "Mixes")
TAB = "evaluation-tab"
WHICH = "evaluation-which"
LABELS = {True: "Evaluate quickly", False: "Evaluate the whole grid"}
"""The buttons, by whether they run the quick evaluation."""
LIMIT = "Seconds a plan"
LONGEST_S = 3600.0
"""The longest search per plan that the page offers."""
SHIPPED = "with TorchSplit"
NOT_SHIPPED = "The evaluation that comes with TorchSplit is not part of this installation."
EMPTY = (
    "This page shows what the planner reaches for CLIP, BERT, FastPitch and OCR and for two published mixes, beside "
    "whole GPUs, uniform layouts, first fit and a published greedy rule: throughput, response times with waiting, "
    "bytes between GPUs and utilisation. It then judges four claims: that sharing slices raises utilisation, that "
    "leximin is fairer, that co-location saves traffic and time, and that plans can be deployed. Nothing is measured "
    "for it: figures of an A100 come from published measurements, all others are estimates and are marked as such."
)


def render(workspace: Workspace) -> None:
    """The whole page."""
    # The newest first.
    known = [name for name in names(workspace, "evaluation") if name in ("whole", "quick")]
    outcomes: dict[str, EvaluationOutcome] = {name: read(workspace, "evaluation", name) for name in known}
    _render_start(workspace, outcomes)
    if not known:
        st.write(EMPTY)
    came = load_shipped()
    if came is not None:
        outcomes[SHIPPED] = came
    if not outcomes:
        st.caption(NOT_SHIPPED)
        return
    name = next(iter(outcomes))
    if len(outcomes) > 1:
        name = st.segmented_control("Which", list(outcomes), default=name, key=WHICH, required=True)
    outcome = outcomes[name]
    if not outcome.complete:
        st.info(_render_progress(workspace, outcome))
    origin = "This one came with TorchSplit. " if name == SHIPPED else ""
    text = f"{origin}{made_words(outcome)} {settings_words(outcome)} Untested on hardware."
    st.caption(escape_markdown(text))
    views = VIEWS if outcome.claims else VIEWS[1:]
    turned = address.selected_tab(address.TAB, views, TAB)
    address.set_address(workspace, {address.TAB: turned})
    for view, tab in zip(views, st.tabs(views, key=TAB, on_change="rerun"), strict=True):
        if tab.open:
            with tab:
                _SHOWN[view](outcome)
    if outcome.complete:
        _downloads(outcome, name)


def _render_progress(workspace: Workspace, outcome: EvaluationOutcome) -> str:
    """How many cases are done, and how the others get done."""
    done = f"{len(outcome.cases)} of {len(cases(outcome.settings.quick))} cases are done"
    if jobs.running(workspace, (EVALUATE,)):
        return f"{done}. The verdicts appear here once all are; this goes on by itself."
    label = LABELS[outcome.settings.quick]
    return f"{done}. Press *{label}* again: it goes on with the others, and the verdicts come with the last."


def _render_start(workspace: Workspace, stored: Mapping[str, EvaluationOutcome]) -> None:
    """The buttons that run it, each with its time limit per plan, its cases and the time that they take."""
    running = bool(jobs.running(workspace, (EVALUATE,)))
    for quick, label in LABELS.items():
        name = evaluation_name(quick=quick)
        before = stored.get(name)
        with st.container(horizontal=True, vertical_alignment="bottom"):
            usual = settings_of(quick).time_limit_s
            if before is not None and not before.complete:
                # With another limit the job would discard these cases.
                usual = before.settings.time_limit_s
            key, words = f"evaluate-{name}", f"{LIMIT} ({name})"
            limit = st.number_input(
                words, 0.1, LONGEST_S, usual, format="%.6g", key=f"{key}-limit {usual:g}", width=150
            )
            look: Literal["primary", "secondary"] = "primary" if quick and not stored else "secondary"
            if st.button(label, type=look, disabled=running, key=key, width=220):
                begin(workspace, "Evaluation")
                jobs.start(workspace, f"Evaluation ({name})", EVALUATE, EvaluateParameters(quick, limit))
                st.rerun()
            st.caption(describe_run(settings_of(quick, limit), before))


def describe_run(settings: EvaluationSettings, before: EvaluationOutcome | None = None) -> str:
    """The cases and searches behind a button, how long they take, and what becomes of the outcome `before`."""
    all_cases = cases(settings.quick)
    mixes = len({case.mix for case in all_cases})
    plans = plans_to_search(settings=settings, known=before)
    text = f"{len(all_cases)} cases of {mixes} mixes. {effort_words(plans, settings.time_limit_s)} "
    text += "It runs in the background and can be cancelled."
    if before is not None and before.settings != settings:
        text += " It begins anew and replaces the stored one, which has other settings."
    return text


def _claims(outcome: EvaluationOutcome) -> None:
    st.html(STYLE + "".join(claim_html(claim, level=2) for claim in outcome.claims))


def _pictures(outcome: EvaluationOutcome) -> None:
    for drawing in bar_charts(outcome):
        key, file = f"evaluation-{drawing.name}", f"evaluation.{drawing.name}"
        with st.container(border=True, key=key), saving.exportable(drawing.title, file, key=key):
            drawn = f'<div style="overflow-x: auto">{chart_svg(drawing)}</div>'
            picture(drawn, key=f"evaluation-picture-{drawing.name}")


def _tables(outcome: EvaluationOutcome) -> None:
    for table in tables(outcome):
        st.header(table.title, anchor=False)
        markup, key = table_html(table), f"evaluation-{table.title}"
        saving.exportable_table(markup, table.title, f"evaluation.{table.title}", key=key)


def _mixes(outcome: EvaluationOutcome) -> None:
    st.html(mixes_html(outcome))


_SHOWN = {"Claims": _claims, "Pictures": _pictures, "Tables": _tables, "Mixes": _mixes}
STYLE = """<style>
section.claim { border: 1px solid color-mix(in srgb, currentColor 15%, transparent); border-radius: 8px;
  padding: .7rem 1rem; margin-bottom: .8rem; }
section.claim h2 { font-size: 1.05rem; padding: 0; margin: 0 0 .3rem; }
section.claim p { max-width: 75ch; margin: .3rem 0; }
section.claim .verdict { border-left: 5px solid; padding: .1rem .7rem; font-weight: 600; }
section.claim .supported { border-color: #0f766e; } section.claim .cannot-be-said { border-color: #d97706; }
section.claim .not-supported { border-color: #d92d20; }
section.claim summary { cursor: pointer; }
</style>"""


def _downloads(outcome: EvaluationOutcome, name: str) -> None:
    """The files of `torchsplit evaluate`, one by one."""
    files: dict[str, tuple[str, Callable[[EvaluationOutcome], str], str]] = {
        "report.html": ("Report (HTML)", report, "text/html"),
        "evaluation.md": ("Document (Markdown)", document, "text/markdown"),
        "cases.csv": ("Cases (CSV)", cases_csv, "text/csv"),
        "models.csv": ("Models (CSV)", models_csv, "text/csv"),
        "evaluation.json": ("Outcome (JSON)", write_text, "application/json"),
    }
    with st.container(horizontal=True, key="evaluation-files"):
        for file, (label, made, mime) in files.items():
            title, data = f"{name.replace(' ', '-')}-{file}", partial(made, outcome)
            st.download_button(label, data, title, mime, key=f"evaluation-{file}", on_click="ignore")

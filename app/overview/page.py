"""The contents of the workspace and the next step; for an empty one, the ways to begin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import streamlit as st

from app.models import page as models_page
from app.models import upload
from app.overview import work
from app.overview.next_step import next_step
from app.placements.list_page import LIST as PLACEMENTS
from app.plans.summary import SOLVED, status_badge
from app.plans.verdict import verdict_of
from app.plans.verdict_line import render_verdict
from app.session import models
from app.session.result_kind import SCENARIO
from app.session.workspace import read
from app.shell import navigation
from app.shell.result_list import ResultList
from app.trainings.list_page import LIST as TRAININGS
from app.workspace import deleted
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.values import PlanRequest
from torchsplit_core.workspace.store import Workspace

MOST_SCENARIOS, MOST_OTHERS, MOST_JOBS = 6, 4, 5
"""Cards of each kind."""


def render(workspace: Workspace) -> None:
    """The whole page."""
    upload.import_dropped(workspace)
    deleted.undo()
    if _is_new(workspace):
        models_page.render_welcome(workspace)
        return
    entries = models.list_models(workspace)
    scenarios = SCENARIO.names(workspace)
    step = next_step(workspace, entries, scenarios)
    if step is not None:
        with st.container(border=True, horizontal=True, vertical_alignment="center", key="next-step"):
            st.markdown(f"**Next:** {escape_markdown(step.text)}", width="stretch")
            navigation.link(step.title, step.label, step.name, icon=":material/arrow_forward:")
    left, right = st.columns([62, 38], gap="medium")
    with left:
        _scenarios(workspace, scenarios)
        _render_others(workspace, "LLM placements", PLACEMENTS)
        _render_others(workspace, "Trainings", TRAININGS)
    with right:
        _fleet(workspace, scenarios)
        _work(workspace)
    st.header("Models", anchor=False)
    models_page.table(workspace, entries)
    _models(entries)
    with st.expander("Plan something ready"):
        models_page.start_options(workspace)


def failed_job_in_form(workspace: Workspace) -> Sequence[str]:
    """The job whose failure the upload form shows, where this page has one."""
    return upload.failed_job_in_form(workspace) if _is_new(workspace) else ()


def _is_new(workspace: Workspace) -> bool:
    """Whether it has nothing but files: a dropped one stays in its form until it is a model."""
    return all(item.kind == "upload" for item in workspace.artifacts())


def _scenarios(workspace: Workspace, known: tuple[str, ...]) -> None:
    st.header("Plans", anchor=False)
    if not known:
        st.caption("None yet. Choose what to serve on which GPUs.")
        navigation.link("Plan", "To the plan", icon=":material/view_quilt:")
    for name in known[:MOST_SCENARIOS]:
        with st.container(border=True, key=f"scenario-{name}", gap="xsmall"):
            _scenario(workspace, name)
    if len(known) > MOST_SCENARIOS:
        st.caption(f"The newest {MOST_SCENARIOS} of {len(known)}; the bar above has them all.")


def _scenario(workspace: Workspace, name: str) -> None:
    """A scenario's verdict, and links to its pages."""
    request, plan = read(workspace, "plan_request", name), read(workspace, "plan", name)
    with st.container(horizontal=True, vertical_alignment="center"):
        navigation.link("Plan", f"**{escape_markdown(name)}**", name, icon=":material/view_quilt:")
        if plan is not None:
            badge = status_badge(plan)
            st.badge(badge.text, color=badge.colour, help=badge.help)
        if plan is not None and plan.status in SOLVED and any(gpu.slices for gpu in plan.gpus):
            navigation.link("Deploy", "Files", name, icon=":material/rocket_launch:")
    if plan is None:
        st.caption("Not planned yet.")
        return
    render_verdict(verdict_of(request, plan))


def _render_others(workspace: Workspace, title: str, results: ResultList) -> None:
    """The newest results of another kind, and the link to all."""
    known = results.kind.names(workspace)
    if not known:
        return
    st.header(title, anchor=False)
    results.render_cards(workspace, known[:MOST_OTHERS])
    if len(known) > MOST_OTHERS:
        navigation.link(results.title, f"All {len(known)} {results.kind.word}s")


def _fleet(workspace: Workspace, known: tuple[str, ...]) -> None:
    """The GPUs of the current scenario."""
    name = SCENARIO.current(workspace, known)
    request = read(workspace, "plan_request", name) if name else None
    if request is None:
        return
    with st.container(border=True, key="fleet"):
        st.header("Fleet", anchor=False)
        st.markdown(escape_markdown(describe_fleet(request)))
        plan = read(workspace, "plan", name) if name else None
        used = f"{sum(bool(gpu.slices) for gpu in plan.gpus)} of them used in " if plan else "asked for in "
        st.caption(escape_markdown(f"{used}{name}"))


def describe_fleet(request: PlanRequest) -> str:
    """How many GPUs of each type."""
    count: Counter[str] = Counter()
    for entry in request.gpus:
        count[entry.type] += entry.count
    return ", ".join(f"{number} × {kind}" for kind, number in count.items()) or "no GPU"


def _work(workspace: Workspace) -> None:
    with st.container(border=True, key="recent"):
        st.header("Recent work", anchor=False)
        work.recent(workspace, MOST_JOBS)
        navigation.link("Activity", "All work, with logs", icon=":material/pending_actions:")


def _models(entries: list[models.ModelEntry]) -> None:
    """Links to the pages of the models."""
    with st.container(horizontal=True, gap="small", key="model-ways"):
        for entry in entries:
            label = escape_markdown(entry.source)
            navigation.link("Graph", label, entry.source, icon=":material/deployed_code:")
        navigation.link("Models", "Add, trace, remove", icon=":material/add:")

"""The steps between a traced graph and its cut points: a switch for each, and what each does."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import streamlit as st

from app.components import saving
from app.explorer import view_state as explorer_state
from app.format.html import table_html
from app.session import analysis
from app.session.model import GraphModel
from torchsplit_core.graph import ALL_STEPS, STEPS, StepName, StepReport
from torchsplit_core.pictures.numbers import exact
from torchsplit_core.workspace.store import Workspace

PANEL = "preparation-panel"
"""The key of the panel."""
INTRODUCTION = (
    "What is done to the traced graph before it is cut. Leave a step out to see regions, dominators and cut points "
    "without it; nothing else changes, and partitioning always takes all."
)
HEAD = (
    '<th scope="col">after</th><th scope="col" class="n">nodes touched</th><th scope="col" class="n">units</th>'
    '<th scope="col" class="n">cut points</th><th scope="col" class="n">regions</th>'
    '<th scope="col" class="n">cut points without it</th>'
)


def active_steps(workspace: Workspace, name: str) -> tuple[StepName, ...]:
    """The steps of a model's view: of this session, else as stored, else all."""
    key = _key(name)
    if key not in st.session_state:
        stored = workspace.setting(key)
        known = stored if isinstance(stored, list) else ALL_STEPS
        st.session_state[key] = tuple(step for step in ALL_STEPS if step in known)
    steps: tuple[StepName, ...] = st.session_state[key]
    return steps


def describe_steps(steps: tuple[StepName, ...]) -> str | None:
    """A remark on a view with other steps than partitioning uses; None with all steps."""
    if steps == ALL_STEPS:
        return None
    return f"prepared by {len(steps)} of {len(ALL_STEPS)} steps: partitioning uses all"


def switch() -> None:
    """The checkbox that opens the panel, in the row above the picture: a closed panel takes no room from it."""
    st.checkbox("Preparation for cutting", key=PANEL)


def render(workspace: Workspace, model: GraphModel) -> None:
    """The panel, closed at first: a switch for each step, and a table of what the steps do."""
    if not st.session_state.get(PANEL):
        return
    steps = model.analysis.prepared.steps
    with st.container(border=True, key="preparation"):
        st.caption(INTRODUCTION)
        switches, brings = st.columns([1, 2], gap="medium")
        with switches:
            for step in STEPS:
                key = _switch(model.name, step.name)
                st.session_state[key] = step.name in steps
                turn = partial(_on_toggle, workspace, model, step.name)
                st.toggle(step.title, key=key, help=step.about, on_change=turn)
            take_all, taken = partial(_save_steps, workspace, model, ALL_STEPS), steps == ALL_STEPS
            st.button("Take all steps", key="preparation-reset", disabled=taken, on_click=take_all)
        with brings:
            reports = steps_table(analysis.step_reports(model.sha256, model.graph, steps))
            file = f"{model.name}.preparation"
            saving.exportable_table(reports, "What each step does", file, key="preparation")


def steps_table(reports: Iterable[StepReport]) -> str:
    """HTML of the graph's sizes as traced and after each step; an omitted step has its row too."""
    by_step = {report.step: report for report in reports}
    rows = []
    for step in (None, *STEPS):
        report = by_step.get(step)
        if report is None:
            cells: tuple[str, ...] = ("left out", "", "", "", "")
        else:
            sizes = (exact(report.units), exact(report.cut_points), exact(report.regions))
            cells = ("", *sizes, "")
            if step is not None:
                cells = (exact(len(report.touched)), *sizes, exact(report.cut_points_without))
        title = html.escape(step.title if step else "as traced")
        numbers = "".join(f'<td class="n">{cell}</td>' for cell in cells)
        rows.append(f'<tr><td class="name">{title}</td>{numbers}</tr>')
    return table_html(HEAD, rows)


def _on_toggle(workspace: Workspace, model: GraphModel, name: StepName) -> None:
    before = set(model.analysis.prepared.steps)
    after = before | {name} if st.session_state[_switch(model.name, name)] else before - {name}
    _save_steps(workspace, model, tuple(step for step in ALL_STEPS if step in after))


def _save_steps(workspace: Workspace, model: GraphModel, steps: tuple[StepName, ...]) -> None:
    """Keep the steps in the session and the workspace, without the chosen region: other steps make other regions."""
    st.session_state[_key(model.name)] = steps
    workspace.set_setting(_key(model.name), list(steps))
    state = explorer_state.load_state(workspace, model.name, model.hierarchy)
    explorer_state.save_state(workspace, model.name, replace(state, region=None))


def _key(name: str) -> str:
    return f"preparation {name}"


def _switch(name: str, step: StepName) -> str:
    return f"preparation {step} of {name}"

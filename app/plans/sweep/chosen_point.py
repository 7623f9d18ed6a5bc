"""The chosen point of a sweep: its plan in short and under load, opened as a draft or as a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import streamlit as st

from app.components import saving
from app.plans.load import results as load_results
from app.plans.load import runs
from app.plans.load.settings import LoadSettings, build_simulation, request_limits
from app.plans.model_table import models_table
from app.plans.sweep import formatting
from app.session import draft as drafts
from app.session import scenario
from app.session.result_kind import SCENARIO
from app.session.workspace import names
from app.shell import frame
from torchsplit_core.pictures.numbers import escape_markdown, short
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.sweep.points import SweepPoint, describe_point, request_at
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.sweeps import StoredSweep


def render(workspace: Workspace, name: str, stored_sweep: StoredSweep, point: SweepPoint) -> None:
    """The plan of the chosen point in short, and the buttons that open it."""
    label = formatting.format_value(stored_sweep.what, point.value)
    request = request_at(stored_sweep.request, stored_sweep.what, point.value)
    with st.container(border=True, key="sweep-chosen"):
        st.header(f"The plan at {label}", anchor=False)
        st.markdown(escape_markdown(formatting.proof(point)))
        if text := describe_point(point):
            st.markdown(escape_markdown(text))
        if point.gpus_used is not None:
            st.caption(f"{short(point.gpus_used)} GPUs used · {short(point.total_rps, 'req/s')} in all")
            colours = scenario.colours(workspace)
            shown = models_table(point.outcome, request, colours)
            saving.exportable_table(shown, "What each model gets", f"{name}.sweep-point", key="sweep-models")
            _under_load(request, point.outcome, colours)
        about = "In the tables and sliders, to change, keep or discard."
        if st.button("Open as draft", key="sweep-draft", help=about):
            drafts.change(workspace, name, workspace.get("plan_request", name), request)
            st.rerun(scope="app")
        about = "Its request and plan under a name of their own."
        if st.button("Open as scenario", key="sweep-open", help=about):
            with frame.fault_boundary():
                frame.notify(f"This is {open_point(workspace, name, stored_sweep, point)}.")
                st.rerun(scope="app")


def _under_load(request: PlanRequest, plan: PlanOutcome, colours: Mapping[str, str]) -> None:
    """Response times of the chosen plan at its demands: simulating one plan is quick, all plans would not be."""
    if not any(gpu.slices for gpu in plan.gpus):
        return
    limits = request_limits(request)
    question = build_simulation(plan, request, LoadSettings("planned", limits_ms=limits))
    simulated = runs.load_runs(question)
    loads = [run.load for run in simulated.models]
    st.caption(
        "Under load, simulated: arrivals as the request says, else Poisson at the demands; waits included."
    )
    shown = load_results.table_of(loads, limits, colours)
    saving.exportable_table(shown, "Every model under load", "sweep-point.under-load", key="sweep-load")
    basis, unstable = load_results.describe_basis(plan, request), load_results.describe_unstable(loads)
    st.caption(escape_markdown(f"A quick look. {basis} {unstable}"))


def open_point(workspace: Workspace, name: str, stored_sweep: StoredSweep, point: SweepPoint) -> str:
    """Store a point's request and plan as a scenario and choose it; its name, the same if it was opened before."""
    request = request_at(stored_sweep.request, stored_sweep.what, point.value)
    tail = f" · {formatting.format_value(stored_sweep.what, point.value)}"
    wanted = name[: scenario.LONGEST_NAME - min(len(tail), 80) - 5] + tail[:80]
    title, number = wanted, 2
    known = set(names(workspace, "plan_request"))
    while title in known and workspace.get("plan_request", title) != request:
        title, number = f"{wanted} {number}", number + 1
    if title not in known:
        workspace.put("plan_request", title, request)
        workspace.put("plan", title, replace(point.outcome, request_sha256=request_hash(request)))
    SCENARIO.choose(workspace, title)
    return title

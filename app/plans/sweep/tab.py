"""The sweep of a scenario: one parameter over a range, and the curve of its plans, each of which opens by a click."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

from app.charts.sweep import PlanDot, SweepMark, curve, pareto_front
from app.components import saving
from app.plans.sweep import chosen_point, controls, formatting, response_times
from app.plans.sweep.formatting import RESPONSE, VIEWS
from app.shell import frame, widgets
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import SWEEP
from torchsplit_core.latency_slo.worst_response import WorstResponse
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.planning.sweep.points import SweepPoint, describe_point, undominated_points
from torchsplit_core.values import PlanRequest
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.sweeps import StoredSweep, SweepStore

REFRESH_S = 1.0
EMPTY = (
    "Here you will see what plans reach as one number varies: how well the worst-served model does, how many GPUs "
    "that takes, where no plan is possible, and what is proven. A click on a point opens its plan."
)


def render(workspace: Workspace, name: str, request: PlanRequest) -> None:
    """The whole tab: what to vary, and the results."""
    with frame.picture_below("sweep"):
        with st.container(border=True, key="sweep-ask"):
            st.fragment(controls.render)(workspace, name, request)
        working = bool(jobs.running(workspace, (SWEEP,), name))
        with st.container(key="sweep-found"):
            # While plans come and are simulated, only this fragment is drawn again.
            waits_open = not _simulate_some(workspace, name)
            again = REFRESH_S if working or waits_open else None
            st.fragment(_render_results, run_every=again)(workspace, name, request, waits_open)


def _simulate_some(workspace: Workspace, name: str) -> bool:
    """Simulate some more plans of the stored sweep under load; whether every one is."""
    stored_sweep = SweepStore(workspace, name).load()
    if stored_sweep is None:
        return True
    points = stored_sweep.points
    response_times.worst_responses(stored_sweep, points)
    return response_times.is_complete(points)


def _render_results(workspace: Workspace, name: str, request: PlanRequest, waits_open: bool) -> None:
    # A run of the fragment alone is outside the page's fault boundary.
    with frame.fault_boundary():
        stored_sweep = SweepStore(workspace, name).load()
        points = stored_sweep.points if stored_sweep is not None else ()
        if stored_sweep is None or not points:
            st.info(EMPTY)
            return
        _render_headline(stored_sweep, points, request, working=bool(jobs.running(workspace, (SWEEP,), name)))
        chosen = _chosen(name, points)
        responses = response_times.worst_responses(stored_sweep, points)
        _pictures(name, stored_sweep, points, chosen, responses)
        _table(name, stored_sweep, points, responses)
        if chosen is not None:
            chosen_point.render(workspace, name, stored_sweep, points[chosen])
        complete = waits_open and response_times.is_complete(points)
        done = complete and not jobs.running(workspace, (SWEEP,), name)
    if done:
        # The page draws the fragment again, without its interval.
        st.rerun(scope="app")


def _render_headline(
    stored_sweep: StoredSweep, points: Sequence[SweepPoint], request: PlanRequest, *, working: bool
) -> None:
    text = formatting.headline(stored_sweep.request, stored_sweep.what, points)
    st.markdown(f"**{escape_markdown(text)}**")
    plans = [point for point in points if point.gpus_used is not None]
    with st.container(horizontal=True, vertical_alignment="center"):
        if plans:
            proof = formatting.proof_badge(stored_sweep.request, plans)
            for badge in (proof, formatting.basis_badge(stored_sweep.request)):
                st.badge(badge.text, color=badge.colour, help=badge.help)
        total = len(stored_sweep.what.values)
        if len(points) < total:
            text = f"{len(points)} of {total} points"
            widgets.badge(text if working else f"{text}: run again to go on", "gray")
        if stored_sweep.request != request:
            widgets.badge("of an earlier state of this scenario: run again", "yellow")


def _chosen(name: str, points: Sequence[SweepPoint]) -> int | None:
    """The position of the chosen point, if it is still there."""
    value = st.session_state.get(_key(name))
    return next((at for at, point in enumerate(points) if point.value == value), None)


def _key(name: str) -> str:
    return f"sweep point of {name}"


def _pictures(
    name: str,
    stored_sweep: StoredSweep,
    points: Sequence[SweepPoint],
    chosen: int | None,
    responses: Mapping[float, WorstResponse],
) -> None:
    dark = widgets.is_dark()
    choose = partial(_choose, name, [point.value for point in points])
    views = formatting.views(stored_sweep.request)
    left, right = st.columns([56, 44], gap="medium")
    with left:
        st.header("What plans reach", anchor=False)
        shown = st.radio(
            "Show",
            views,
            key="sweep-view",
            horizontal=True,
            label_visibility="collapsed",
            persist_state="session",
        )
        y_title, by_limit = formatting.Y_TITLES.get(shown, ""), False
        if shown == RESPONSE:
            y_title, by_limit = formatting.response_axis(responses)
        level = 1.0 if shown == VIEWS[0] or by_limit else None
        level_text, x_title = (
            "its limit" if by_limit else "its demand",
            formatting.axis_title(stored_sweep.what),
        )
        sweep_marks = marks(stored_sweep, points, shown, chosen, responses)
        drawn = curve(sweep_marks, x_title, y_title, level, level_text=level_text, dark=dark)
        alt = "What the plan at each value reaches; the table below has the figures"
        widgets.chart(drawn, "Sweep", f"{name}.sweep", key="sweep-curve", alt=alt, on_point=choose)
        st.caption(
            "Only the dots are plans; the line says nothing about values between. Filled: proven at the "
            "objective's first level. Click one to see its plan."
        )
        if shown == RESPONSE:
            st.caption(formatting.RESPONSE_BASIS)
    with right:
        st.header("GPUs used against the worst-served model", anchor=False)
        drawn = pareto_front(plan_dots(stored_sweep, points, chosen), dark=dark)
        alt = "Each plan by GPUs used and its worst-served model; the table below has the figures"
        widgets.chart(drawn, "GPUs used", f"{name}.sweep-gpus", key="sweep-front", alt=alt, on_point=choose)
        st.caption(
            "Of the plans found, measured by the weights and demands of the scenario. Joined is the front; faint: "
            "another is no worse in both."
        )


def marks(
    stored_sweep: StoredSweep,
    points: Sequence[SweepPoint],
    view: str,
    chosen: int | None,
    responses: Mapping[float, WorstResponse],
) -> list[SweepMark]:
    """Every point as a mark of the curve."""
    drawn = []
    for at, point in enumerate(points):
        if view == RESPONSE:
            value, bound = formatting.response_figure(responses, point.value), None
        else:
            value, bound = formatting.figure(stored_sweep.request, point, view)
        text = " ".join(filter(None, (formatting.proof(point), describe_point(point))))
        if point.gpus_used is None:
            state: Any = "infeasible" if point.status == "infeasible" else "timeout"
        else:
            state = "proven" if point.proven else "open"
        drawn.append(SweepMark(at, point.value, value, bound, state, text, at == chosen))
    return drawn


def plan_dots(stored_sweep: StoredSweep, points: Sequence[SweepPoint], chosen: int | None) -> list[PlanDot]:
    """Every plan as a dot of the second picture."""
    best = {point.value for point in undominated_points(points)}
    return [
        PlanDot(
            at, point.gpus_used, point.least_as_asked,
            formatting.format_value(stored_sweep.what, point.value), point.value not in best, at == chosen,
        )
        for at, point in enumerate(points)
        if point.gpus_used is not None and point.least_as_asked is not None
    ]  # fmt: skip


def _choose(name: str, values: Sequence[float], at: int) -> None:
    if at < len(values):
        st.session_state[_key(name)] = values[at]


def _table(
    name: str,
    stored_sweep: StoredSweep,
    points: Sequence[SweepPoint],
    responses: Mapping[float, WorstResponse],
) -> None:
    st.header("All points", anchor=False)
    rows = formatting.table(stored_sweep.request, stored_sweep.what, points, responses)
    choose = partial(_choose, name, [point.value for point in points])
    look: dict[str, Any] = {"height": min(420, 38 + 35 * len(points)), "on_row": choose}
    saving.table(rows, f"{name}.sweep", key="sweep-table", alt="Every point of the sweep", **look)
    st.caption(f"Select a row to see its plan below. {formatting.RESPONSE_BASIS}")

"""The sweep of a scenario: one parameter over a range, the curve of its plans, each plan a click away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from app.charts.sweep import Mark, Spot, curve, front
from app.charts.theme import CONFIG
from app.components import saving
from app.plan.sweep import ask, chosen_point, waits, words
from app.plan.sweep.words import VIEWS, WAITS
from app.shell import frame, widgets
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import SWEEP
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.planning.sweep.points import SweepPoint, note, pareto
from torchsplit_core.latency_slo.worst_response import WorstResponse
from torchsplit_core.values import PlanRequest
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.sweeps import StoredSweep, SweepStore

REFRESH_S = 1.0
EMPTY = (
    "Here you will see what plans reach as one number varies: how well the worst-served model does, how many GPUs "
    "that takes, where no plan is possible, and what is proven. A click on a point opens its plan."
)


def show(workspace: Workspace, name: str, request: PlanRequest) -> None:
    """The whole tab: what to vary, and what was found."""
    with frame.picture_below("sweep"):
        with st.container(border=True, key="sweep-ask"):
            st.fragment(ask.show)(workspace, name, request)
        working = bool(jobs.running(workspace, (SWEEP,), name))
        with st.container(key="sweep-found"):
            # While plans come and are looked at under load, only this part is drawn anew.
            waits_open = not _looked_at(workspace, name)
            again = REFRESH_S if working or waits_open else None
            st.fragment(_found, run_every=again)(workspace, name, request, waits_open)


def _looked_at(workspace: Workspace, name: str) -> bool:
    """Look at some more plans of the kept sweep under load; whether every one was."""
    kept = SweepStore(workspace, name).load()
    if kept is None:
        return True
    points = kept.points
    waits.waits_of(kept, points)
    return waits.complete(points)


def _found(workspace: Workspace, name: str, request: PlanRequest, waits_open: bool) -> None:
    # A fragment that runs alone is outside the page's own telling.
    with frame.telling():
        kept = SweepStore(workspace, name).load()
        points = kept.points if kept is not None else ()
        if kept is None or not points:
            st.info(EMPTY)
            return
        _answer(kept, points, request, working=bool(jobs.running(workspace, (SWEEP,), name)))
        chosen = _chosen(name, points)
        looked = waits.waits_of(kept, points)
        _pictures(name, kept, points, chosen, looked)
        _table(name, kept, points, looked)
        if chosen is not None:
            chosen_point.show(workspace, name, kept, points[chosen])
        done = waits_open and waits.complete(points) and not jobs.running(workspace, (SWEEP,), name)
    if done:
        # The page draws this part again, without its clock.
        st.rerun(scope="app")


def _answer(kept: StoredSweep, points: Sequence[SweepPoint], request: PlanRequest, *, working: bool) -> None:
    st.markdown(f"**{escape_markdown(words.answer(kept.request, kept.what, points))}**")
    plans = [point for point in points if point.gpus_used is not None]
    with st.container(horizontal=True, vertical_alignment="center"):
        if plans:
            for badge in (
                words.proof_badge(kept.request, plans),
                words.basis_badge(kept.request),
            ):
                st.badge(badge.text, color=badge.colour, help=badge.help)
        total = len(kept.what.values)
        if len(points) < total:
            text = f"{len(points)} of {total} points"
            widgets.badge(text if working else f"{text}: run again to go on", "gray")
        if kept.request != request:
            widgets.badge("of an earlier state of this scenario: run again", "yellow")


def _chosen(name: str, points: Sequence[SweepPoint]) -> int | None:
    """The position of the point chosen last, where it is still there."""
    value = st.session_state.get(_key(name))
    return next((at for at, point in enumerate(points) if point.value == value), None)


def _key(name: str) -> str:
    return f"sweep point of {name}"


def _pictures(
    name: str,
    kept: StoredSweep,
    points: Sequence[SweepPoint],
    chosen: int | None,
    looked: Mapping[float, WorstResponse],
) -> None:
    dark = st.context.theme.type == "dark"
    values = [point.value for point in points]
    views = words.views(kept.request)
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
        up, by_limit = words.waits_axis(looked) if shown == WAITS else (words.UP[shown], False)
        level = 1.0 if shown == VIEWS[0] or by_limit else None
        with saving.saved("Sweep", f"{name}.sweep", key="sweep-curve"):
            st.plotly_chart(
                curve(
                    marks(kept, points, shown, chosen, looked), words.axis_title(kept.what), up, level,
                    level_text="its limit" if by_limit else "its demand", dark=dark,
                ),
                theme=None, key="sweep-curve", config=CONFIG, selection_mode="points",
                on_select=lambda: _clicked(name, "sweep-curve", values),
                alt="What the plan at each value reaches; the table below has the figures",
            )  # fmt: skip
        st.caption(
            "Only the dots are plans; the line says nothing about values between. Filled: proven at the "
            "objective's first level. Click one to see its plan."
        )
        if shown == WAITS:
            st.caption(words.WAITS_BASIS)
    with right:
        st.header("GPUs used against the worst-served model", anchor=False)
        with saving.saved("GPUs used", f"{name}.sweep-gpus", key="sweep-front"):
            st.plotly_chart(
                front(spots(kept, points, chosen), dark=dark), theme=None, key="sweep-front", config=CONFIG,
                selection_mode="points", on_select=lambda: _clicked(name, "sweep-front", values),
                alt="Each plan by GPUs used and its worst-served model; the table below has the figures",
            )  # fmt: skip
        by = "the weights and demands of the scenario"
        st.caption(
            f"Of the plans found, measured by {by}. Joined is the front; faint: another is no worse in both."
        )


def marks(
    kept: StoredSweep,
    points: Sequence[SweepPoint],
    view: str,
    chosen: int | None,
    looked: Mapping[float, WorstResponse],
) -> list[Mark]:
    """Every point as a mark of the curve."""
    found = []
    for at, point in enumerate(points):
        if view == WAITS:
            value, bound = words.waits_figure(looked, point.value), None
        else:
            value, bound = words.figure(kept.request, point, view)
        text = " ".join(filter(None, (words.proof(point), note(point))))
        if point.gpus_used is None:
            state: Any = "infeasible" if point.status == "infeasible" else "timeout"
        else:
            state = "proven" if point.proven else "open"
        found.append(Mark(at, point.value, value, bound, state, text, at == chosen))
    return found


def spots(kept: StoredSweep, points: Sequence[SweepPoint], chosen: int | None) -> list[Spot]:
    """Every plan as a dot of the second picture."""
    best = {point.value for point in pareto(points)}
    return [
        Spot(
            at, point.gpus_used, point.least_as_asked,
            words.at_value(kept.what, point.value), point.value not in best, at == chosen,
        )
        for at, point in enumerate(points)
        if point.gpus_used is not None and point.least_as_asked is not None
    ]  # fmt: skip


def _clicked(name: str, chart: str, values: Sequence[float]) -> None:
    points = st.session_state[chart]["selection"]["points"]
    if points and points[0].get("customdata"):
        _choose(name, values, int(points[0]["customdata"][0]))


def _row(name: str, values: Sequence[float]) -> None:
    rows = st.session_state["sweep-table"]["selection"]["rows"]
    if rows:
        _choose(name, values, int(rows[0]))


def _choose(name: str, values: Sequence[float], at: int) -> None:
    if at < len(values):
        st.session_state[_key(name)] = values[at]


def _table(
    name: str, kept: StoredSweep, points: Sequence[SweepPoint], looked: Mapping[float, WorstResponse]
) -> None:
    st.header("All points", anchor=False)
    values = [point.value for point in points]
    saving.table(
        words.table(kept.request, kept.what, points, looked),
        f"{name}.sweep",
        key="sweep-table",
        alt="Every point of the sweep",
        selection_mode="single-row",
        height=min(420, 38 + 35 * len(points)),
        on_select=lambda: _row(name, values),
    )
    st.caption(f"Select a row to see its plan below. {words.WAITS_BASIS}")

"""The sweep of a scenario: one parameter over a range, the curve of its plans, each plan a click away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from app.charts.sweep import Mark, Spot, curve, front
from app.charts.theme import CONFIG
from app.components import saving
from app.format.numbers import THIN, exact, plain, short
from app.plan.load import runs
from app.plan.load import words as load_words
from app.plan.load.asked import Ask, request_limits, simulation
from app.plan.model_table import models_table
from app.plan.sweep import waits, words
from app.plan.sweep.words import PARAMETER_WORDS, VIEWS, WAITS
from app.session import draft as drafts
from app.session import scenario
from app.session.thing import SCENARIO
from app.session.workspace import names
from app.shell import frame
from torchsplit_core import jobs
from torchsplit_core.hardware import catalogue
from torchsplit_core.jobs.names import SWEEP, SweepParameters
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.validate import MAX_GPUS
from torchsplit_core.planning.sweep.points import (
    MOST_VALUES,
    PARAMETERS,
    Parameter,
    SweepPoint,
    SweepRequest,
    note,
    pareto,
    present_value,
    request_at,
    spread,
    sweep_requests,
)
from torchsplit_core.responding.worst import WorstResponse
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.values.limits import LARGEST_MAGNITUDE
from torchsplit_core.workflow.sweeps import TIME_LIMIT_S
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.sweeps import KeptSweep, SweepStore

REFRESH_S = 1.0
FIRST_GPUS, FIRST_STEPS = 8, 8
FIRST_GPU_STEPS = 16
"""Whole numbers: a shorter range has no more points than it has GPUs."""
LONGEST_NAME = 120
EMPTY = (
    "Here you will see what plans reach as one number varies: how well the worst-served model does, how many GPUs "
    "that takes, where no plan is possible, and what is proven. A click on a point opens its plan."
)


def show(workspace: Workspace, name: str, request: PlanRequest) -> None:
    """The whole tab: what to vary, and what was found."""
    with frame.picture_below("sweep"):
        with st.container(border=True, key="sweep-ask"):
            st.fragment(_ask)(workspace, name, request)
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


def _ask(workspace: Workspace, name: str, request: PlanRequest) -> None:
    st.header("What to vary", anchor=False)
    left, right = st.columns(2)
    parameter = left.selectbox(
        "Parameter", PARAMETERS, format_func=PARAMETER_WORDS.__getitem__, key=f"sweep-parameter {name}",
        persist_state="session",
    )  # fmt: skip
    targets = _targets(request, parameter)
    target = right.selectbox(
        "GPU type" if parameter == "gpus" else "Model", targets, key=f"sweep-target {name} {parameter}",
        persist_state="session",
    )  # fmt: skip
    places = st.columns(4)
    start, stop, steps = _range(request, parameter, target, f"{name} {parameter} {target}", places)
    limit = places[3].number_input(
        f"Search at most, in{THIN}s", 1.0, 36_000.0, TIME_LIMIT_S, 10.0, key=f"sweep-limit {name}",
        persist_state="session",
        help="For all points, shared out evenly; two are planned at a time. What is proven sooner leaves its time "
        "unused.",
    )  # fmt: skip
    with st.container(horizontal=True, vertical_alignment="center"):
        again = st.button("Run the sweep", type="primary", key="sweep-run")
        now = present_value(request, parameter, target)
        if now is not None:
            st.caption(f"The scenario has {exact(now, words.UNITS[parameter])}.")
    if again:
        with frame.telling():
            what = SweepRequest(parameter, target, spread(parameter, start, stop, steps))
            start_sweep(workspace, name, request, what, limit)
            st.rerun(scope="app")


def _targets(request: PlanRequest, parameter: Parameter) -> list[str]:
    """What there is to vary: types of the fleet, then types that models have points on; or the models."""
    if parameter != "gpus":
        return [model.name for model in request.models]
    known = {
        point.gpu_type
        for model in request.models
        for _, variant in model.allowed_variants
        for stage in variant.stages
        for point in stage.points
    }
    fleet = [entry.type for entry in request.gpus]
    return list(dict.fromkeys([*fleet, *(kind for kind in catalogue() if kind in known)]))


def _range(
    request: PlanRequest, parameter: Parameter, target: str, mark: str, places: Sequence[Any]
) -> tuple[float, float, int]:
    """From, to and how many values, around what the request has; `mark` names the ground of the widgets."""
    now = present_value(request, parameter, target)
    if parameter == "gpus":
        least = 0 if any(entry.type != target for entry in request.gpus) else 1
        most = min(MAX_GPUS, max(FIRST_GPUS, 2 * int(now or 0)))
        mark += f" from {least}"
        ends: tuple[Any, ...] = (least, MAX_GPUS, least, most)
    else:
        centre = now or float(next(model.demand_rps for model in request.models if model.name == target))
        low = 0.0 if parameter == "min_throughput" else centre / 4
        ends = (0.0, LARGEST_MAGNITUDE, low, min(centre * 4, LARGEST_MAGNITUDE))
    form = None if parameter == "gpus" else "%.6g"
    start, stop = (
        place.number_input(
            label, ends[0], ends[1], value, format=form, key=f"sweep-{label} {mark}", persist_state="session"
        )
        for place, label, value in zip(places, ("From", "To"), ends[2:], strict=False)
    )
    steps = places[2].number_input(
        "Points", 1, MOST_VALUES, FIRST_GPU_STEPS if parameter == "gpus" else FIRST_STEPS,
        key=f"sweep-steps {mark}", persist_state="session", help="Each is a plan of its own.",
    )  # fmt: skip
    return float(start), float(stop), int(steps)


def start_sweep(
    workspace: Workspace, name: str, request: PlanRequest, what: SweepRequest, time_limit_s: float
) -> str:
    """Sweep the stored request in a job; a sweep of the same scenario ends first. Its job id.

    Raises InputFault, with nothing started, for a value that the request refuses.
    """
    sweep_requests(request, what)
    jobs.end(workspace, (SWEEP,), name)
    parameters = SweepParameters(name, what.parameter, what.target, what.values, time_limit_s)
    return jobs.start(workspace, f"Sweep {name}", SWEEP, parameters)


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
            _plan_of(workspace, name, kept, points[chosen])
        done = waits_open and waits.complete(points) and not jobs.running(workspace, (SWEEP,), name)
    if done:
        # The page draws this part again, without its clock.
        st.rerun(scope="app")


def _answer(kept: KeptSweep, points: Sequence[SweepPoint], request: PlanRequest, *, working: bool) -> None:
    st.markdown(f"**{plain(words.answer(kept.request, kept.what, points))}**")
    plans = [point for point in points if point.gpus_used is not None]
    with st.container(horizontal=True, vertical_alignment="center"):
        if plans:
            for badge in (
                words.proof_badge(kept.request, plans),
                words.basis_badge(kept.request),
            ):
                st.badge(badge.text, color=badge.colour)
        total = len(kept.what.values)
        if len(points) < total:
            text = f"{len(points)} of {total} points"
            st.badge(text if working else f"{text}: run again to go on", color="gray")
        if kept.request != request:
            st.badge("of an earlier state of this scenario: run again", color="yellow")


def _chosen(name: str, points: Sequence[SweepPoint]) -> int | None:
    """The position of the point chosen last, where it is still there."""
    value = st.session_state.get(_key(name))
    return next((at for at, point in enumerate(points) if point.value == value), None)


def _key(name: str) -> str:
    return f"sweep point of {name}"


def _pictures(
    name: str,
    kept: KeptSweep,
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
            "Only dots are plans: the line joins them and claims nothing between. Filled: proven at the "
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
    kept: KeptSweep,
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


def spots(kept: KeptSweep, points: Sequence[SweepPoint], chosen: int | None) -> list[Spot]:
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
    name: str, kept: KeptSweep, points: Sequence[SweepPoint], looked: Mapping[float, WorstResponse]
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


def _plan_of(workspace: Workspace, name: str, kept: KeptSweep, point: SweepPoint) -> None:
    """The chosen point: its plan in short, and the way to all of it."""
    label = words.at_value(kept.what, point.value)
    with st.container(border=True, key="sweep-chosen"):
        st.header(f"The plan at {label}", anchor=False)
        st.markdown(plain(words.proof(point)))
        if text := note(point):
            st.markdown(plain(text))
        if point.gpus_used is not None:
            asked = request_at(kept.request, kept.what, point.value)
            figures = f"{short(point.gpus_used)} GPUs used · {short(point.total_rps, 'req/s')} in all"
            st.caption(figures)
            st.html(models_table(point.outcome, asked, scenario.colours(workspace)))
            _under_load(asked, point.outcome, scenario.colours(workspace))
        if st.button(
            "Open as draft", key="sweep-draft", help="In the tables and sliders, to change, keep or discard."
        ):
            stored = workspace.get("plan_request", name)
            drafts.change(workspace, name, stored, request_at(kept.request, kept.what, point.value))
            st.rerun(scope="app")
        if st.button(
            "Open as scenario", key="sweep-open", help="Its request and plan under a name of their own."
        ):
            with frame.telling():
                frame.say(f"This is {open_point(workspace, name, kept, point)}.")
                st.rerun(scope="app")


def _under_load(request: PlanRequest, plan: PlanOutcome, colours: Mapping[str, str]) -> None:
    """Response times of the chosen plan at its demands: of one plan they come at once, of all they would not."""
    if not any(gpu.slices for gpu in plan.gpus):
        return
    limits = request_limits(request)
    asked = simulation(plan, request, Ask("planned", limits_ms=limits))
    ran = runs.runs_of(asked)
    found = [kept.load for kept in ran.models]
    st.caption(
        "Under load, simulated: arrivals as the request says, else Poisson at the demands; waits included."
    )
    st.html(load_words.table_of(found, limits, colours))
    st.caption(
        plain(f"A quick look. {load_words.basis_words(plan, request)} {load_words.unstable_words(found)}")
    )


def open_point(workspace: Workspace, name: str, kept: KeptSweep, point: SweepPoint) -> str:
    """Store a point's request and plan as a scenario and choose it; its name. Opened twice it is the same one."""
    asked = request_at(kept.request, kept.what, point.value)
    tail = f" · {words.at_value(kept.what, point.value)}"
    wanted = name[: LONGEST_NAME - min(len(tail), 80) - 5] + tail[:80]
    found, number = wanted, 2
    known = set(names(workspace, "plan_request"))
    while found in known and workspace.get("plan_request", found) != asked:
        found, number = f"{wanted} {number}", number + 1
    if found not in known:
        workspace.put("plan_request", found, asked)
        workspace.put("plan", found, replace(point.outcome, request_sha256=request_hash(asked)))
    SCENARIO.choose(workspace, found)
    return found

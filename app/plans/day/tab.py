"""The tab Over the day: demand by window, a plan for each beside one plan all day, and whether changing pays."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import streamlit as st

from app.charts.day import DayStretch, gpus_over_day
from app.components import saving
from app.plans import slice_map
from app.plans.day import (
    change_curve,
    costs,
    demand_input,
    running_job,
    samples,
    trace_input,
    under_trace,
    window_table,
)
from app.plans.model_table import models_table
from app.session import scenario
from app.session.workspace import read
from app.session.workspace_list import format_age
from app.shell import frame, price_table, widgets
from torchsplit_core import jobs
from torchsplit_core.day_plans.day_figures import lost_in, worst_served
from torchsplit_core.day_plans.least_change import used_gpus
from torchsplit_core.day_plans.schedule import schedule_files
from torchsplit_core.day_plans.summary import day_verdict
from torchsplit_core.day_plans.trace_check import check_trace, describe_check
from torchsplit_core.day_plans.window_requests import (
    check_day_request,
    request_of_window,
    static_request,
    windows_of,
    with_demands_as_minima,
)
from torchsplit_core.deployment import zip_files
from torchsplit_core.jobs.job_kinds import DAY, RequestParameters
from torchsplit_core.pictures.numbers import escape_markdown, short
from torchsplit_core.planning.energy.power import RULE
from torchsplit_core.planning.outcome.cost import with_costs
from torchsplit_core.planning.prices.price_table import with_prices
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import goal_of, has_no_minimum
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.tables.demand_trace.trace_csv import DemandTrace
from torchsplit_core.values import DayOutcome, PlanOutcome, PlanRequest
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace

EMPTY = (
    "Here you will see what the day costs: GPU-hours of a plan for each window beside one plan that holds all day, "
    "what changing between them loses, and each window's slices. Plan the day to begin."
)
ALL_DAY = -1
"""The number of the plan that holds all day."""


def render(workspace: Workspace, name: str, request: PlanRequest) -> None:
    """The whole tab of the stored scenario."""
    working = bool(jobs.running(workspace, (DAY,), name))
    with st.container(border=True, key="day-ask"):
        trace = _ask(workspace, name, request, working)
    if working:
        running_job.render(workspace, name, DAY)
    _outcome(workspace, name, request, working, trace)
    with st.container(border=True, key="day-samples-ask"):
        sampled = samples.render(workspace, name, request, trace)
    if sampled is not None:
        with frame.fault_boundary():
            _store(workspace, name, request, sampled)
            st.rerun(scope="app")


def _outcome(
    workspace: Workspace,
    name: str,
    request: PlanRequest,
    working: bool,
    trace: trace_input.MappedTrace | None,
) -> None:
    outcome: DayOutcome | None = read(workspace, "day", name)
    if outcome is None:
        if not working:
            st.info(EMPTY)
        return
    if outcome.request_sha256 != request_hash(request):
        widgets.badge("of an earlier state of this scenario: run again", "yellow")
        return
    with frame.fault_boundary():
        if trace is not None and all(window.plan.gpus for window in outcome.windows):
            _against_trace(workspace, name, request, outcome, trace.rates)
        _results(workspace, name, request, outcome)
        with st.container(border=True, key="day-replay-box"):
            under_trace.render(workspace, name, request, trace)


def _against_trace(
    workspace: Workspace, name: str, request: PlanRequest, outcome: DayOutcome, trace: DemandTrace
) -> None:
    """Whether the plans serve the demand of the trace that was dropped, and how old they are."""
    check = check_trace(request, outcome, trace)
    stored = workspace.find("day", name)
    if check is None or stored is None:
        return
    text = f"{describe_check(check)} Planned {format_age(time.time() - stored.changed)}."
    (st.success if check.held == check.moments else st.warning)(escape_markdown(text))


def _ask(
    workspace: Workspace, name: str, request: PlanRequest, working: bool
) -> trace_input.MappedTrace | None:
    """The windows and the start of the work; the trace that was dropped."""
    st.header("Demand by window", anchor=False)
    with st.expander("From a trace of your services"):
        trace = trace_input.render(name, request)
    if trace is not None and trace.cut is not None:
        with frame.fault_boundary():
            _store(workspace, name, request, trace.cut)
            st.rerun(scope="app")
    rows = demand_input.render(name, request)
    st.caption(
        "Together the windows are the whole day; one may pass midnight. Each is planned for its demand by the "
        "scenario's objective, with the fewest changes from the window before."
    )
    with st.expander("Prices an hour"):
        _prices(workspace, name, request)
    with st.container(horizontal=True, vertical_alignment="center"):
        pressed = st.button("Plan the day", type="primary", key="day-plan", disabled=working)
        if working and st.button("Stop", key="day-stop"):
            jobs.end(workspace, (DAY,), name)
            st.rerun(scope="app")
        if not goal_of(request).by_cost:
            st.caption("GPU-hours differ under the objective Fewest GPUs; others use all that serves better.")
    if pressed:
        with frame.fault_boundary():
            _start(workspace, name, request, rows)
            st.rerun(scope="app")
    return trace


def _prices(workspace: Workspace, name: str, request: PlanRequest) -> None:
    """The workspace's table, and its prices for this scenario without planning a day."""
    table = price_table.stored_prices(workspace)
    price_table.render(workspace, table, [entry.type for entry in request.gpus])
    if table is None or (priced := with_prices(request, table)) == request:
        return
    if st.button("Use in this scenario", key="day-prices", help="For GPUs that have no price of their own."):
        with frame.fault_boundary():
            _store(workspace, name, request, priced)
            st.rerun(scope="app")


def _start(workspace: Workspace, name: str, request: PlanRequest, rows: Sequence[window_table.Row]) -> None:
    """Store the windows with the request, and plan them. Raises InputFault with nothing stored."""
    changed = window_table.with_windows(request, rows)
    if has_no_minimum(changed):
        changed = with_demands_as_minima(changed)
    table = price_table.stored_prices(workspace)
    if table is not None:
        changed = with_prices(changed, table)
    _store(workspace, name, request, changed)
    jobs.start(workspace, f"Plan the day of {name}", DAY, RequestParameters(name))


def _store(workspace: Workspace, name: str, request: PlanRequest, changed: PlanRequest) -> None:
    """Store the request with other windows. Raises InputFault with nothing stored."""
    if changed.models[0].demand_windows and not has_no_minimum(changed):
        check_day_request(changed)
    validate(changed)
    if changed == request:
        return
    plan: PlanOutcome | None = read(workspace, "plan", name)
    workspace.put("plan_request", name, changed)
    reads_samples = request.objective.attainment is not None or goal_of(request).by_share
    priced = [entry.cost for entry in changed.gpus] != [entry.cost for entry in request.gpus]
    if priced and goal_of(request).by_cost:
        return
    if plan is not None and named_results.plan_is_current(request, plan) and not reads_samples:
        # A plan is for the demands alone: neither windows nor samples change it, so it answers the request as before.
        workspace.put("plan", name, with_costs(changed, replace(plan, request_sha256=request_hash(changed))))


def _results(workspace: Workspace, name: str, request: PlanRequest, outcome: DayOutcome) -> None:
    verdict, table = day_verdict(outcome), price_table.stored_prices(workspace)
    st.markdown(f"**{escape_markdown(verdict[0].upper() + verdict[1:])}.**")
    widgets.metric_cards(
        [
            ("GPU-hours a day", costs.pair(outcome.gpu_hours), "by window · one plan all day"),
            (
                "Worst-served model gets",
                costs.pair(outcome.worst_normalised),
                "× its demand · one plan at the peaks",
            ),
            ("Requests lost by changes", short(outcome.lost_requests), "a day, estimated"),
            costs.cost_card(request, outcome, table),
            costs.energy_card(outcome),
        ]
    )
    if prices := costs.price_text(request, outcome, table):
        st.caption(escape_markdown(prices))
    if outcome.energy_kwh_per_day is not None:
        st.caption(f"Energy is estimated: {RULE}.")
    for warning in outcome.warnings:
        st.warning(escape_markdown(warning))
    stretches = _stretches(request, outcome)
    static = used_gpus(outcome.static) if outcome.static.gpus else None
    chosen = st.session_state.get(_key(name), ALL_DAY)
    widgets.chart(
        gpus_over_day(stretches, static, dark=widgets.is_dark()), "The day", f"{name}.day", key="day-chart",
        alt="GPUs in use over the day; the table below has the figures", on_point=partial(_choose, name),
    )  # fmt: skip
    zone = st.context.timezone
    rows = _rows(request, outcome, zone)
    saving.table(
        rows, f"{name}.day", key="day-table", alt="Every window and its plan",
        on_row=lambda row: _choose(name, row if row < len(outcome.windows) else ALL_DAY),
    )  # fmt: skip
    today = datetime.datetime.now(datetime.UTC).date()
    st.caption(
        f"Select a window to see its plan. Requests lost: demand during the change that nothing serves, with the "
        f"change begun ahead where that loses less; estimated. {window_table.zone_note(zone, today)}"
    )
    with st.container(horizontal=True):
        widgets.json_button("The day (JSON)", outcome, f"{name}.day.json")
        if all(window.plan.gpus for window in outcome.windows):
            st.download_button(
                "Schedule (ZIP)", lambda: zip_files(schedule_files(request, outcome)), f"{name}.schedule.zip",
                "application/zip", on_click="ignore",
                help="When each change begins, its steps, and the files that cut GPUs. Nothing applies itself.",
            )  # fmt: skip
    if isinstance(chosen, int) and chosen < len(outcome.windows):
        _window(workspace, name, request, outcome, chosen)
    if len(outcome.windows) > 1:
        with st.container(border=True, key="day-curve-box"):
            change_curve.render(workspace, name, request)


def _window(workspace: Workspace, name: str, request: PlanRequest, outcome: DayOutcome, chosen: int) -> None:
    """The slices of one window, or of the plan that holds all day, and its opening as a scenario."""
    if chosen == ALL_DAY:
        title, plan, asked = "One plan all day", outcome.static, static_request(request)
    else:
        window = outcome.windows[chosen]
        title, plan = f"The plan of {window.name}", window.plan
        asked = request_of_window(request, window.name)
    with st.container(border=True, key="day-chosen"):
        colours = scenario.colours(workspace)
        if not plan.gpus:
            st.header(title, anchor=False)
            st.warning(escape_markdown(_why_none(plan)))
            return
        slice_map.render(plan, asked, colours, title=title, key="day-slices", file=f"{name}.day")
        shown = models_table(plan, asked, colours)
        saving.exportable_table(shown, "What each model gets", f"{name}.day-models", key="day-models")
        if st.button(
            "Open as scenario", key="day-open", help="Its request and plan under a name of their own."
        ):
            with frame.fault_boundary():
                part = "all day" if chosen == ALL_DAY else outcome.windows[chosen].name
                wanted = f"{name} · {part}"[: scenario.LONGEST_NAME - 5]
                opened = scenario.store_new(
                    workspace, wanted, asked, replace(plan, request_sha256=request_hash(asked))
                )
                frame.notify(f"This is {opened}.")
                st.rerun(scope="app")


def _why_none(plan: PlanOutcome) -> str:
    reasons = [conflict.message for conflict in plan.conflicts]
    if plan.status == "infeasible":
        return f"No plan holds, proven. {'; '.join(reasons)}"
    return "No plan was found in the time given, and none was ruled out: give the search more time."


def _key(name: str) -> str:
    return f"day window of {name}"


def _choose(name: str, number: int) -> None:
    st.session_state[_key(name)] = number


def _stretches(request: PlanRequest, outcome: DayOutcome) -> list[DayStretch]:
    windows = windows_of(request)
    demands = [
        sum(model.demand_windows[number].rate_rps(request.plan_demand_at) for model in request.models)
        for number in range(len(windows))
    ]
    return [
        DayStretch(
            number, window.name, begin, end, used_gpus(planned.plan) if planned.plan.gpus else None,
            demands[number] / (max(demands) or 1.0), worst_served([planned.plan]),
        )
        for number, (window, planned) in enumerate(zip(windows, outcome.windows, strict=True))
        for begin, end in window_table.minutes_of_day(window)
    ]  # fmt: skip


def _rows(request: PlanRequest, outcome: DayOutcome, zone: str | None) -> Sequence[dict[str, object]]:
    today = datetime.datetime.now(datetime.UTC).date()
    rows: list[dict[str, object]] = []
    for window, planned in zip(windows_of(request), outcome.windows, strict=True):
        change = planned.transition
        known = change is not None and change.status != "infeasible"
        row: dict[str, object] = {"window": window.name, "UTC": f"{window.start}–{window.end}"}
        if local := window_table.local_span(window, zone, today):
            row["local"] = local
        row |= {
            "plan": planned.plan.status,
            "GPUs used": used_gpus(planned.plan) if planned.plan.gpus else None,
            "worst served": worst_served([planned.plan]),
            "GPUs changed after it": change.touched_gpus if known and change is not None else None,
            "requests lost then": lost_in(change) if known and change is not None else None,
        }
        rows.append(row)
    static = outcome.static
    rows.append(
        {
            "window": "one plan all day",
            "plan": static.status,
            "GPUs used": used_gpus(static) if static.gpus else None,
            "worst served": worst_served([static]),
            "GPUs changed after it": 0,
            "requests lost then": 0.0,
        }
    )
    return rows

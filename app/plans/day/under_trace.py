"""A planned day under the trace: what clients would see of the windows, the one plan and the threshold rule."""

from __future__ import annotations

from collections.abc import Iterator

import streamlit as st

from app.charts.day import ResponseLine, p95_by_hour
from app.components import saving
from app.plans.day import running_job
from app.plans.day.trace_input import MappedTrace
from app.session.workspace import read
from app.shell import frame, widgets
from torchsplit_core import jobs
from torchsplit_core.day_plans.replay.summary import SIDE_WORDS, basis_text, side_text
from torchsplit_core.day_plans.replay.trace_day import check_columns, one_day
from torchsplit_core.jobs.job_kinds import DAY_REPLAY, DayReplayParameters
from torchsplit_core.pictures.numbers import escape_markdown, short
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.tables.demand_trace.trace_csv import DAY_S, DemandTrace
from torchsplit_core.values import DayReplay, PlanRequest, ReplayModel, ReplaySide, ThresholdRule
from torchsplit_core.workspace.store import Workspace

ABOUT = (
    "The day simulated request by request over a day of the trace, changes included, beside the one plan and a rule "
    "that scales replicas by their load, as Kubernetes does."
)
FIRST_TARGET = round(100 * ThresholdRule().target)
"""Percent of utilisation that the rule keeps."""


def render(workspace: Workspace, name: str, request: PlanRequest, trace: MappedTrace | None) -> None:
    """The start of the work, and what the newest of it came to; the day is planned and of this request."""
    st.header("Under the trace", anchor=False)
    st.caption(ABOUT)
    if jobs.running(workspace, (DAY_REPLAY,), name):
        running_job.render(workspace, name, DAY_REPLAY, "day-replay-stop")
    elif trace is None:
        st.caption("Drop a trace above, in *From a trace of your services*, to simulate the day over it.")
    else:
        with frame.fault_boundary():
            _offer_start(workspace, name, request, trace.rates)
    replay: DayReplay | None = read(workspace, "day_replay", name)
    if replay is None:
        return
    if replay.request_sha256 != request_hash(request):
        widgets.badge("of an earlier state of this scenario: run again", "yellow")
        return
    _show(name, replay)


def _offer_start(workspace: Workspace, name: str, request: PlanRequest, trace: DemandTrace) -> None:
    days = trace.moments // (DAY_S // trace.step_s)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        day = None
        if trace.days > 1:
            day = int(
                st.number_input("Day of the trace", 1, max(1, days), key=f"day-replay-day {name}", width=160)
            )
        target = st.number_input(
            "Target of the rule, %", 1, 100, FIRST_TARGET, key=f"day-replay-target {name}", width=160,
            help="The utilisation that the threshold rule keeps by adding and removing replicas.",
        )  # fmt: skip
        pressed = st.button("Simulate the day", key="day-replay")
    if pressed:
        chosen = one_day(trace, day)
        check_columns(request, chosen)
        rates = {model.name: chosen.rates[model.name] for model in request.models}
        parameters = DayReplayParameters(name, chosen.first_s, chosen.step_s, rates, target / 100)
        jobs.start(workspace, f"Simulate the day of {name}", DAY_REPLAY, parameters)
        st.rerun(scope="app")


def _show(name: str, replay: DayReplay) -> None:
    names = list(dict.fromkeys(model.name for side in replay.sides for model in side.models))
    widgets.badge("simulated", "blue")
    lines = (
        f"- **{SIDE_WORDS[side.name].capitalize()}**: {escape_markdown(side_text(replay, side))}."
        for side in replay.sides
    )
    st.markdown("\n".join(lines))
    chosen = names[0]
    if len(names) > 1:
        chosen = st.selectbox("Model", names, key=f"day-replay-model {name}")
    shown = [(side, model) for side in replay.sides for model in side.models if model.name == chosen]
    drawn = [
        ResponseLine(
            SIDE_WORDS[side.name],
            tuple(hour.response_ms.p95 for hour in model.hours),
            tuple(hour.stable is False for hour in model.hours),
        )
        for side, model in shown
    ]
    limit = next((model.max_response_ms for _, model in shown), None)
    widgets.chart(
        p95_by_hour(drawn, limit, dark=widgets.is_dark()), "Response by the hour", f"{name}.day-replay",
        key="day-replay-chart", alt=f"p95 of {chosen} by hour of each side; the file of the figures has them all",
    )  # fmt: skip
    st.caption(
        "p95 of the requests that arrived in the hour. A cross: more arrives than what runs can carry, and queues grow."
    )
    rows = list(table_rows(replay))
    saving.table(
        rows, f"{name}.day-replay", key="day-replay-table", alt="Every side and model under the trace"
    )
    st.caption(escape_markdown(f"{basis_text(replay)}."))
    for warning in replay.warnings:
        st.warning(escape_markdown(warning))
    widgets.json_button("Under the trace (JSON)", replay, f"{name}.day_replay.json")


def table_rows(replay: DayReplay) -> Iterator[dict[str, object]]:
    """A row for each side and model."""
    for side in replay.sides:
        for model in side.models:
            yield _row(side, model)


def _row(side: ReplaySide, model: ReplayModel) -> dict[str, object]:
    shares = model.attainment
    return {
        "side": SIDE_WORDS[side.name],
        "model": model.name,
        "p95 ms": model.response_ms.p95,
        "± p95 ms": model.p95_ci95_ms,
        "within limits": _percent(shares.all),
        "within limits in changes": _percent(shares.in_transitions),
        "within limits outside": _percent(shares.outside),
        "requests lost": short(model.lost_requests),
        "waiting at the end": short(model.waiting_requests),
        "GPU-hours of the side": side.gpu_hours,
    }


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.3f} %"

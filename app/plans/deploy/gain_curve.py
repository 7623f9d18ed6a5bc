"""What each changed GPU buys: the best plan with at most so many touched GPUs, from what runs now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from app.charts.sweep import curve
from app.components import saving
from app.plans.sweep import formatting
from app.plans.sweep.tab import REFRESH_S, marks
from app.shell import frame, widgets
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import SWEEP, SweepParameters
from torchsplit_core.pictures.numbers import counted, escape_markdown, percent, short
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.sweep.points import (
    Parameter,
    SweepPoint,
    SweepRequest,
    spread_values,
    sweep_points,
    sweep_requests,
)
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.transition import fleet_state
from torchsplit_core.values import HostState, InputFault, PlanOutcome, PlanRequest, Transition
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.sweeps import StoredSweep, SweepStore

PARAMETER: Parameter = "touched_gpus"
MOST_POINTS = 17
MOST_OF = 0.8
"""The share of the gain that the sentence looks for."""


def render(
    workspace: Workspace,
    name: str,
    plan: PlanOutcome,
    request: PlanRequest,
    state: HostState,
    outcome: Transition,
) -> None:
    """The curve of this scenario from this state, or the button that plans it."""
    st.subheader("What each changed GPU buys", anchor=False)
    try:
        fleet = {gpu.id: gpu.type for gpu in list_gpus(request.gpus)}
        current = fleet_state(fleet, state, {item.host_gpu: item.plan_gpu for item in outcome.mapping})
    except InputFault as reason:
        st.info(escape_markdown(str(reason)))
        return
    with frame.fault_boundary():
        planned = replace(request, current=current)
        working = bool(jobs.running(workspace, (SWEEP,), name))
        again = REFRESH_S if working else None
        st.fragment(_render, run_every=again)(workspace, name, plan, planned, working)


def _render(
    workspace: Workspace, name: str, plan: PlanOutcome, request: PlanRequest, was_working: bool
) -> None:
    with frame.fault_boundary():
        stored = SweepStore(workspace, name).load()
        working = bool(jobs.running(workspace, (SWEEP,), name))
        ours = stored if stored is not None and is_of(stored, request) else None
        points = bounded_points(ours, plan) if ours is not None else ()
        if ours is not None and points:
            _picture(name, ours, points, working)
        elif not working:
            st.write(
                "The best plans that change none of the GPUs, one of them, two, up to all: how much of the gain a "
                "small change brings already."
            )
        complete = ours is not None and len(points) == len(ours.what.values)
        if not working and not complete:
            about = "In the background, up to a minute."
            if stored is not None and ours is None:
                about += " The sweep of this scenario gives way to it."
            if st.button("Plan with few changes", key="gain-run", help=about):
                start(workspace, name, request)
                st.rerun(scope="app")
        if was_working and not working:
            # The page draws the fragment again, without its interval.
            st.rerun(scope="app")


def is_of(stored: StoredSweep, request: PlanRequest) -> bool:
    """Whether a stored sweep is the curve of this request with its current state."""
    return stored.what.parameter == PARAMETER and stored.request == request


def bounded_points(stored: StoredSweep, plan: PlanOutcome) -> tuple[SweepPoint, ...]:
    """The points so far; the bound of the scenario's plan, which may change every GPU, holds for each."""
    beyond = stored.what.values[-1] + 1
    what = replace(stored.what, values=(*stored.what.values, beyond))
    outcomes = {value: entry.outcome for value, entry in stored.plans.items()}
    points = sweep_points(stored.request, what, outcomes | {beyond: plan})
    return tuple(
        replace(point, bound_from=None) if point.bound_from == beyond else point
        for point in points
        if point.value != beyond
    )


def start(workspace: Workspace, name: str, request: PlanRequest) -> None:
    """Plan the curve in a job, which ends an earlier sweep of the scenario. Raises InputFault, with nothing started."""
    total = sum(entry.count for entry in request.gpus)
    what = SweepRequest(PARAMETER, "", spread_values(PARAMETER, 0, total, min(total + 1, MOST_POINTS)))
    requests = sweep_requests(request, what)
    jobs.end(workspace, (SWEEP,), name)
    SweepStore(workspace, name).begin(
        what, request, {value: request_hash(varied) for value, varied in requests}
    )
    parameters = SweepParameters(name, what.parameter, what.target, what.values, begun=True)
    jobs.start(workspace, f"Sweep {name}", SWEEP, parameters)


def _picture(name: str, stored: StoredSweep, points: Sequence[SweepPoint], working: bool) -> None:
    st.markdown(f"**{escape_markdown(sentence(points))}**")
    total = len(stored.what.values)
    with st.container(horizontal=True, vertical_alignment="center"):
        plans = [point for point in points if point.gpus_used is not None]
        if plans:
            badge = formatting.proof_badge(stored.request, plans)
            st.badge(badge.text, color=badge.colour, help=badge.help)
        if len(points) < total:
            text = f"{len(points)} of {total} points"
            widgets.badge(text if working else f"{text}: run again to go on", "gray")
    view = formatting.VIEWS[0] if formatting.bounds_least(stored.request) else formatting.VIEWS[-1]
    drawn = curve(
        marks(stored, points, view, None, {}), formatting.axis_title(stored.what), formatting.Y_TITLES[view],
        1.0 if view == formatting.VIEWS[0] else None, dark=widgets.is_dark(),
    )  # fmt: skip
    alt = "What the best plan with at most so many changed GPUs reaches; the table below has the figures"
    widgets.chart(drawn, "Touched GPUs", f"{name}.touched", key="gain-curve", alt=alt)
    rows = [
        {"touched GPUs, at most": int(point.value), "touched GPUs": point.outcome.touched_gpus,
         "value": point.objective, "bound": point.bound, "proven": formatting.proof(point)}
        for point in points
    ]  # fmt: skip
    height = min(330, 38 + 35 * len(rows))
    saving.table(rows, f"{name}.touched", key="gain-table", alt="What each changed GPU buys", height=height)
    st.caption("The tab Sweep shows each of these plans, and opens one as a draft or as a scenario.")


def sentence(points: Sequence[SweepPoint]) -> str:
    """How few changed GPUs bring most of what all of them bring."""
    solved = [point for point in points if point.objective is not None]
    if not solved:
        return "No plan is found yet."
    first, last = solved[0], solved[-1]
    if first.objective is None or last.objective is None:
        return ""
    lead = ""
    if first is not points[0]:
        how = (
            "proven impossible"
            if all(p.status == "infeasible" for p in points if p.value < first.value)
            else "not found"
        )
        lead = f"With fewer than {counted(int(first.value), 'touched GPU')} a plan is {how}. "
    gain = last.objective - first.objective
    if equal(last.objective, first.objective):
        at = "Touching no GPU" if first.value == 0 else f"Touching {int(first.value)}"
        return f"{lead}{at} is as good as touching {int(last.value)}: {short(last.objective)}."
    enough = next(
        p for p in solved if p.objective is not None and (p.objective - first.objective) / gain >= MOST_OF
    )
    share = ((enough.objective or 0.0) - first.objective) / gain
    return (
        f"{lead}{counted(int(enough.value), 'touched GPU')} "
        f"{'brings' if enough.value == 1 else 'bring'} {percent(share)} of what {int(last.value)} bring: "
        f"{short(first.objective)} with {int(first.value)}, {short(enough.objective)} with {int(enough.value)}, "
        f"{short(last.objective)} with {int(last.value)}."
    )

"""The tab Under load: requests arrive at a scenario's plan, queue and are served; what clients wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import pandas as pd
import streamlit as st

from app.charts import response_times
from app.charts.theme import CONFIG
from app.components import saving
from app.plan import fleet
from app.plan.load import beside, controls, runs, words
from app.plan.load.asked import Ask, limits_of_service, simulation
from app.plan.load.runs import Runs
from app.plan.load.words import Percentile
from app.plan.summary import SOLVED
from app.session import scenario
from app.shell import frame, widgets
from torchsplit_core import workflow
from torchsplit_core.pictures.numbers import exact, escape_markdown
from torchsplit_core.values import PlanOutcome, PlanRequest, SimulationRequest
from torchsplit_core.workspace.store import Workspace

REST_S = 0.6
"""After so long on the page the full runs begin, a model at a time."""
FIND_S = 0.6
"""So long a search for the highest load goes on before the page is drawn again, with how far it is."""
PAGE_RUN = "load drawn by the page"
"""In the session while the page itself draws the tab: only a part that runs alone may ask for itself again."""
WHAT = (
    "Here you will see how long clients wait once requests queue: response times of every model against its limit, "
    "how busy each slice is, and the highest load that the plan takes."
)


def show(workspace: Workspace, name: str, request: PlanRequest | None, plan: PlanOutcome | None) -> None:
    """The whole tab of the stored scenario."""
    if plan is None or plan.status not in SOLVED:
        st.info(f"{WHAT} It needs a plan: press Plan first.")
        return
    if request is None:
        st.info(
            f"{WHAT} This plan came without its request, which has the service times: drop the request file on the "
            "Workspace page."
        )
        return
    if not any(gpu.slices for gpu in plan.gpus):
        st.info(
            f"{WHAT} This plan has no slice, so nothing serves: ask for less, or add GPUs, and plan again."
        )
        return
    known, asked, complete = st.session_state.get(_key(workspace, name), (None, None, False))
    waits = not (known is plan and asked is request and complete)
    st.session_state[PAGE_RUN] = True
    st.fragment(_tab, run_every=REST_S if waits else None)(workspace, name, request, plan, waits)


def _key(workspace: Workspace, name: str) -> str:
    return f"load complete {workspace.id} {name}"


def _tab(workspace: Workspace, name: str, request: PlanRequest, plan: PlanOutcome, timed: bool) -> None:
    alone = not st.session_state.pop(PAGE_RUN, False)
    st.session_state[_key(workspace, name)] = (plan, request, True)
    parts: tuple[SimulationRequest, ...] = ()
    looking = False
    # A fragment that runs alone is outside the page's own telling.
    with frame.telling():
        parts, looking = _drawn(workspace, name, request, plan)
        complete = not looking and all(runs.runs_of(part).complete for part in parts)
        st.session_state[_key(workspace, name)] = (plan, request, complete)
    if not alone:
        return
    # One model at a time: a move of the slider has its turn between two.
    if looking or any(runs.run_next(part) for part in parts):
        st.rerun(scope="fragment")
    if timed:
        # The page draws this part again, without its clock.
        st.rerun(scope="app")


def _drawn(
    workspace: Workspace, name: str, request: PlanRequest, plan: PlanOutcome
) -> tuple[tuple[SimulationRequest, ...], bool]:
    """Draw the tab; the simulations that it shows, and whether a search for the highest load goes on."""
    with st.container(border=True, key="load-ask"):
        ask = controls.asked(workspace, name, request)
    simulated = simulation(plan, request, ask)
    shown = runs.runs_of(simulated)
    colours = scenario.colours(workspace)
    percentile = _answer(name, request, plan, ask, simulated, shown)
    _pictures(name, shown, ask, colours)
    _table(name, shown, ask, colours)
    with st.container(border=True):
        st.header("How busy each slice is, simulated", anchor=False)
        _map(name, request, plan, shown, colours)
    # What the plan takes does not hang on where the slider stands.
    looking = _highest(name, simulation(plan, request, replace(ask, load=1.0)), percentile)
    compared = beside.show(workspace, name, request, ask, simulated, colours)
    return (simulated, *compared), looking


def _answer(
    name: str,
    request: PlanRequest,
    plan: PlanOutcome,
    ask: Ask,
    simulated: SimulationRequest,
    shown: Runs,
) -> Percentile:
    """What one looks for first, what it rests on, and the percentile that limits are held against."""
    loads = [kept.load for kept in shown.models]
    with st.container(horizontal=True, vertical_alignment="center"):
        percentile = cast(
            Percentile,
            st.radio(
                "Limits hold for", (50, 95, 99), 1, format_func=lambda percent: f"p{percent}", horizontal=True,
                key=f"load-percentile {name}", persist_state="session",
            ),
        )  # fmt: skip
        found = words.verdict(loads, ask.limits_ms, percentile, limits_of_service(request, ask))
        told = f"**{escape_markdown(found.text)}**"
        st.markdown(f":red[{told}]" if found.colour == "red" else told)
    with st.container(horizontal=True, vertical_alignment="center"):
        badge = words.basis_badge(plan, request)
        st.badge(badge.text, color=badge.colour, help=badge.help)
        for gone in workflow.without_instance(plan, request):
            widgets.badge(f"{gone} has no slice and is left out", "red")
    quick_requests = runs.quick(simulated).requests_per_model
    st.caption(
        words.how_much(shown, quick_requests, runs.FULL_REQUESTS, runs.full_replications(simulated))
        + ". "
        + words.basis_words(plan, request)
    )
    if told := words.unstable_words(loads):
        st.warning(escape_markdown(told))
    if shown.remarks:
        with st.expander(f"{len(shown.remarks)} more to know"):
            for line in shown.remarks:
                st.markdown(f"- {escape_markdown(line)}")
    return percentile


def _pictures(name: str, shown: Runs, ask: Ask, colours: Mapping[str, str]) -> None:
    dark = st.context.theme.type == "dark"
    left, right = st.columns(2, gap="medium")
    with left:
        st.header("Response times, simulated", anchor=False)
        with saving.saved("Response times", f"{name}.response-times", key="load-spreads"):
            st.plotly_chart(
                response_times.spreads(words.spreads(shown.models, ask.limits_ms, colours), dark=dark),
                theme=None, key="load-spreads", config=CONFIG,
                alt="Within which time which share of each model's requests is answered; the table has percentiles",
            )  # fmt: skip
        st.caption(
            "95 on the axis: 95 % of the requests are answered within the time above it. Dotted: the limit."
        )
    with right:
        st.header("p50, p95, p99 against the limit", anchor=False)
        with saving.saved("Percentiles", f"{name}.percentiles", key="load-ladder"):
            st.plotly_chart(
                response_times.ladder(words.rungs(shown.models, ask.limits_ms, colours), dark=dark),
                theme=None, key="load-ladder", config=CONFIG,
                alt="p50, p95 and p99 of every model with their intervals and its limit; the table has the figures",
            )  # fmt: skip
        st.caption("Whiskers: 95 % intervals over the runs. Red: the limit.")


def _table(name: str, shown: Runs, ask: Ask, colours: Mapping[str, str]) -> None:
    st.header("Every model, simulated", anchor=False)
    loads = [kept.load for kept in shown.models]
    st.html(words.table_of(loads, ask.limits_ms, colours))
    rows = pd.DataFrame(words.table(shown, ask.limits_ms))
    saving.csv_button(rows, f"{name}.under-load", key="load-table", alt="Every model under load")


def _map(name: str, request: PlanRequest, plan: PlanOutcome, shown: Runs, colours: Mapping[str, str]) -> None:
    fleet.show(
        plan, request, colours, key="load-map", file=f"{name}.under-load", busy=words.busy(plan, shown)
    )
    st.caption(
        "The bar of a slice is the share of its time in which it works on a batch; of equal GPUs their mean. A free "
        "slice that is quickest for a request takes it, so equal slices need not be equally busy."
    )
    table = st.expander("The same as a table", key="load-busy-table", on_change="rerun")
    if table.open:
        with table:
            rows = words.busy_table(plan, shown)
            saving.table(rows, f"{name}.utilisation", key="load-busy", alt="How busy every slice is")


def _highest(name: str, simulated: SimulationRequest, percentile: Percentile) -> bool:
    """The highest load, looked for when asked, a little at a time; whether a search goes on."""
    with st.container(border=True):
        st.header("The highest load", anchor=False)
        limited = any(model.slo_ms is not None for model in simulated.models)
        key, kept = runs.find_key(simulated, percentile), f"load highest {name}"
        if st.button(
            f"Find it for p{percentile}", key="load-find", disabled=not limited,
            help=None if limited else "No model has a limit: type one above.",
        ):  # fmt: skip
            st.session_state[kept] = key
        if st.session_state.get(kept) != key:
            st.caption(
                "By which factor all rates can grow until a model's percentile exceeds its limit, to 1 %."
            )
            return False
        finding = runs.finding(simulated, percentile)
        finding.go_on(FIND_S)
        if finding.found is None:
            st.progress(finding.share, text=f"Looking for the highest load: {finding.text}")
            st.button("Cancel", key="load-find-cancel", on_click=lambda: _cancel(kept, simulated, percentile))
            return True
        st.markdown(f"**{escape_markdown(words.highest_words(finding.found, len(simulated.models)))}**")
        asked = runs.for_highest(simulated, percentile)
        st.caption(
            f"Simulated with {exact(asked.requests_per_model)} requests in each of {asked.replications} runs a model."
        )
    return False


def _cancel(kept: str, simulated: SimulationRequest, percentile: Percentile) -> None:
    runs.forget(simulated, percentile)
    st.session_state.pop(kept, None)

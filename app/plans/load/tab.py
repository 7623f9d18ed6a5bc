"""The tab Under load: requests arrive at a scenario's plan, queue and are served; the response times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pandas as pd
import streamlit as st

from app.charts import response_times
from app.components import saving
from app.plans import slice_map
from app.plans.load import comparison, controls, results, runs, token_table
from app.plans.load.results import Percentile
from app.plans.load.runs import SimulationRuns
from app.plans.load.settings import LoadSettings, build_simulation, limits_of_service
from app.plans.summary import SOLVED
from app.session import scenario
from app.shell import frame, widgets
from torchsplit_core import workflow
from torchsplit_core.pictures.numbers import escape_markdown, exact
from torchsplit_core.values import PlanOutcome, PlanRequest, SimulationRequest
from torchsplit_core.workspace.store import Workspace

REST_S = 0.6
"""Seconds after which the full runs begin, a model at a time."""
FIND_S = 0.6
"""Seconds that a search for the highest load advances before the page shows its progress."""
PERCENTILES: tuple[Percentile, ...] = (50, 95, 99)
PAGE_RUN = "load drawn by the page"
"""In the session while a run of the page draws the tab: only a run of the fragment may rerun the fragment."""
WHAT = (
    "Here you will see how long clients wait once requests queue: response times of every model against its limit, "
    "how busy each slice is, and the highest load that the plan takes."
)


def render(workspace: Workspace, name: str, request: PlanRequest | None, plan: PlanOutcome | None) -> None:
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
    known, known_request, complete = st.session_state.get(_key(workspace, name), (None, None, False))
    waits = not (known is plan and known_request is request and complete)
    st.session_state[PAGE_RUN] = True
    st.fragment(_tab, run_every=REST_S if waits else None)(workspace, name, request, plan, waits)


def _key(workspace: Workspace, name: str) -> str:
    return f"load complete {workspace.id} {name}"


def _tab(workspace: Workspace, name: str, request: PlanRequest, plan: PlanOutcome, timed: bool) -> None:
    alone = not st.session_state.pop(PAGE_RUN, False)
    st.session_state[_key(workspace, name)] = (plan, request, True)
    parts: tuple[SimulationRequest, ...] = ()
    looking, complete = False, True
    # A run of the fragment alone is outside the page's fault boundary.
    with frame.fault_boundary():
        parts, looking = _drawn(workspace, name, request, plan)
        complete = not looking and all(runs.load_runs(part).complete for part in parts)
        st.session_state[_key(workspace, name)] = (plan, request, complete)
    if not alone:
        if not (complete or timed):
            # The load was moved while the page began: it draws the fragment again, with an interval.
            st.rerun(scope="app")
        return
    # One model at a time, so that the slider can move between two.
    if looking or any(runs.run_next(part) for part in parts):
        st.rerun(scope="fragment")
    if timed:
        # The page draws the fragment again, without its interval.
        st.rerun(scope="app")


def _drawn(
    workspace: Workspace, name: str, request: PlanRequest, plan: PlanOutcome
) -> tuple[tuple[SimulationRequest, ...], bool]:
    """Draw the tab; the simulations that it shows, and whether a search for the highest load goes on."""
    with st.container(border=True, key="load-ask"):
        settings = controls.render_controls(workspace, name, request)
    simulated = build_simulation(plan, request, settings)
    shown = runs.load_runs(simulated)
    colours = scenario.colours(workspace)
    percentile = _render_verdict(name, request, plan, settings, simulated, shown)
    _pictures(name, shown, settings, colours)
    _table(name, shown, settings, colours)
    with st.container(border=True):
        st.header("How busy each slice is, simulated", anchor=False)
        _map(name, request, plan, shown, colours)
    # The highest load does not depend on the slider.
    looking = _render_max_load(name, build_simulation(plan, request, replace(settings, load=1.0)), percentile)
    compared = comparison.render(workspace, name, request, settings, simulated, colours)
    return (simulated, *compared), looking


def _render_verdict(
    name: str,
    request: PlanRequest,
    plan: PlanOutcome,
    settings: LoadSettings,
    simulated: SimulationRequest,
    shown: SimulationRuns,
) -> Percentile:
    """The verdict and its basis; the percentile that the limits are for."""
    loads = [run.load for run in shown.models]
    with st.container(horizontal=True, vertical_alignment="center"):
        percentile: Percentile = st.radio(
            "Limits hold for", PERCENTILES, 1, format_func=lambda percent: f"p{percent}", horizontal=True,
            key=f"load-percentile {name}", persist_state="session",
        )  # fmt: skip
        of_service = limits_of_service(request, settings)
        load_verdict = results.verdict_badge(loads, settings.limits_ms, percentile, of_service)
        text = f"**{escape_markdown(load_verdict.text)}**"
        st.markdown(f":red[{text}]" if load_verdict.colour == "red" else text)
    with st.container(horizontal=True, vertical_alignment="center"):
        badge = results.basis_badge(plan, request)
        st.badge(badge.text, color=badge.colour, help=badge.help)
        for gone in workflow.without_instance(plan, request):
            widgets.badge(f"{gone} has no slice and is left out", "red")
    requests = (runs.quick(simulated).requests_per_model, runs.FULL_REQUESTS)
    sample = results.describe_sample_size(shown, *requests, runs.full_replications(simulated))
    st.caption(f"{sample}. {results.describe_basis(plan, request)}")
    if text := results.describe_unstable(loads):
        st.warning(escape_markdown(text))
    if shown.remarks:
        with st.expander(f"{len(shown.remarks)} more to know"):
            for line in shown.remarks:
                st.markdown(f"- {escape_markdown(line)}")
    return percentile


def _pictures(name: str, shown: SimulationRuns, settings: LoadSettings, colours: Mapping[str, str]) -> None:
    dark = widgets.is_dark()
    lines = results.distribution_lines(shown.models, settings.limits_ms, colours)
    percentiles = results.percentile_rows(shown.models, settings.limits_ms, colours)
    left, right = st.columns(2, gap="medium")
    with left:
        st.header("Response times, simulated", anchor=False)
        drawn = response_times.distribution_chart(lines, dark=dark)
        alt = "Within which time which share of each model's requests is answered; the table has percentiles"
        widgets.chart(drawn, "Response times", f"{name}.response-times", key="load-spreads", alt=alt)
        st.caption(
            "95 on the axis: 95 % of the requests are answered within the time above it. Dotted: the limit."
        )
    with right:
        st.header("p50, p95, p99 against the limit", anchor=False)
        drawn = response_times.percentile_chart(percentiles, dark=dark)
        alt = "p50, p95 and p99 of every model with their intervals and its limit; the table has the figures"
        widgets.chart(drawn, "Percentiles", f"{name}.percentiles", key="load-ladder", alt=alt)
        st.caption("Whiskers: 95 % intervals over the runs. Red: the limit.")


def _table(name: str, shown: SimulationRuns, settings: LoadSettings, colours: Mapping[str, str]) -> None:
    st.header("Every model, simulated", anchor=False)
    loads = [run.load for run in shown.models]
    st.html(results.table_of(loads, settings.limits_ms, colours))
    rows = pd.DataFrame(results.table(shown, settings.limits_ms))
    saving.csv_button(rows, f"{name}.under-load", key="load-table", alt="Every model under load")
    if token_table.token_runs(shown):
        st.header("Tokens of LLMs, simulated", anchor=False)
        st.html(token_table.token_table_of(shown, colours))
        rows = pd.DataFrame(token_table.token_table(shown))
        saving.csv_button(rows, f"{name}.tokens", key="load-tokens", alt="Tokens of LLMs under load")


def _map(
    name: str, request: PlanRequest, plan: PlanOutcome, shown: SimulationRuns, colours: Mapping[str, str]
) -> None:
    busy = results.tenant_utilisation(plan, shown)
    slice_map.render(plan, request, colours, key="load-map", file=f"{name}.under-load", busy=busy)
    st.caption(
        "The bar of a slice is the share of its time in which it works on a batch; of equal GPUs their mean. A free "
        "slice that is quickest for a request takes it, so equal slices need not be equally busy."
    )
    table = st.expander("The same as a table", key="load-busy-table", on_change="rerun")
    if table.open:
        with table:
            rows = results.utilisation_table(plan, shown)
            saving.table(rows, f"{name}.utilisation", key="load-busy", alt="How busy every slice is")


def _render_max_load(name: str, simulated: SimulationRequest, percentile: Percentile) -> bool:
    """The highest load, searched on demand a little at a time; whether a search goes on."""
    with st.container(border=True):
        st.header("The highest load", anchor=False)
        limited = any(model.slo_ms is not None for model in simulated.models)
        key, state_key = runs.search_key(simulated, percentile), f"load highest {name}"
        if st.button(
            f"Find it for p{percentile}", key="load-find", disabled=not limited,
            help=None if limited else "No model has a limit: type one above.",
        ):  # fmt: skip
            st.session_state[state_key] = key
        if st.session_state.get(state_key) != key:
            st.caption(
                "By which factor all rates can grow until a model's percentile exceeds its limit, to 1 %."
            )
            return False
        finding = runs.max_load_search(simulated, percentile)
        finding.advance(FIND_S)
        if finding.result is None:
            st.progress(finding.share, text=f"Looking for the highest load: {finding.text}")
            cancel = partial(_cancel, state_key, simulated, percentile)
            st.button("Cancel", key="load-find-cancel", on_click=cancel)
            return True
        text = results.describe_max_load(finding.result, len(simulated.models))
        st.markdown(f"**{escape_markdown(text)}**")
        question = runs.max_load_request(simulated, percentile)
        st.caption(
            f"Simulated with {exact(question.requests_per_model)} requests in each of "
            f"{question.replications} runs a model."
        )
    return False


def _cancel(state_key: str, simulated: SimulationRequest, percentile: Percentile) -> None:
    runs.cancel_search(simulated, percentile)
    st.session_state.pop(state_key, None)

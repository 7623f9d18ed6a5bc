"""Another scenario under the same arrivals, compared with the current one."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from app.charts import response_times
from app.components import saving
from app.plans.load import results, runs
from app.plans.load.settings import LoadSettings, build_simulation, with_same_arrivals
from app.plans.summary import SOLVED
from app.session.result_kind import SCENARIO
from app.session.workspace import read
from app.shell import widgets
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.values import PlanRequest, SimulationRequest
from torchsplit_core.workspace.store import Workspace


def render(
    workspace: Workspace,
    name: str,
    request: PlanRequest,
    settings: LoadSettings,
    simulated: SimulationRequest,
    colours: Mapping[str, str],
) -> tuple[SimulationRequest, ...]:
    """The choice of a scenario, and the comparison; the simulations that are shown."""
    others = [other for other in SCENARIO.names(workspace) if other != name and _served(workspace, other)]
    with st.container(border=True, key="load-beside"):
        st.header("Beside another scenario", anchor=False)
        if not others:
            st.caption(
                "Two scenarios stand here side by side under the same arrivals. Duplicate this one (Scenario …), "
                "change the copy and plan it."
            )
            return ()
        other = st.selectbox(
            "Scenario", others, None, placeholder="Choose a scenario", key=f"load-beside {name}",
            persist_state="session",
        )  # fmt: skip
        if other is None:
            st.caption("It gets the same requests at the same instants, against the limits above.")
            return ()
        return _render_both(workspace, (name, other), request, settings, simulated, colours)


def _served(workspace: Workspace, name: str) -> bool:
    plan, request = read(workspace, "plan", name), read(workspace, "plan_request", name)
    return bool(plan and request and plan.status in SOLVED and any(gpu.slices for gpu in plan.gpus))


def _render_both(
    workspace: Workspace,
    titles: tuple[str, str],
    request: PlanRequest,
    settings: LoadSettings,
    simulated: SimulationRequest,
    colours: Mapping[str, str],
) -> tuple[SimulationRequest, ...]:
    plan, other_request = read(workspace, "plan", titles[1]), read(workspace, "plan_request", titles[1])
    first, second = with_same_arrivals(simulated, build_simulation(plan, other_request, LoadSettings()))
    left, right = runs.load_runs(first), runs.load_runs(second)
    shared = [model.name for model in first.models]
    markup = results.comparison_table(left.models, right.models, titles, settings.limits_ms)
    saving.exportable_table(markup, "Both scenarios under load", f"{titles[0]}.beside", key="load-beside")
    limits, rungs = settings.limits_ms, []
    for left_run, right_run in zip(left.models, right.models, strict=True):
        rungs += results.percentile_rows([left_run], limits, colours)
        rungs += results.percentile_rows([right_run], limits, colours, plan_name=titles[1])
    drawn = response_times.percentile_chart(rungs, dark=widgets.is_dark())
    alt = "p50, p95 and p99 of every model in both scenarios; the table above has the figures"
    widgets.chart(drawn, "Both scenarios", f"{titles[0]}.beside", key="load-both", alt=alt)
    missing = [model.name for model in request.models if model.name not in shared]
    left_out = f" Not served by both, and left out: {', '.join(missing)}." if missing else ""
    text = (
        f"Filled: {titles[0]}; hollow: {titles[1]}. Both get the same requests at the same instants, at the "
    )
    text += f"demands of {titles[0]}. {results.NOT_A_MEASUREMENT}{left_out}"
    st.caption(escape_markdown(text))
    return first, second

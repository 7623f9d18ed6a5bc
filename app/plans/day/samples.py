"""Uncertain demand: joint samples of a trace or drawn, and the plan that holds a share of them as a draft."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import streamlit as st

from app.plans.day import held_out
from app.plans.day.trace_input import MappedTrace
from app.session import draft as drafts
from app.shell import frame
from torchsplit_core.pictures.numbers import counted, escape_markdown, short
from torchsplit_core.planning.request.objective import least_cost_objective
from torchsplit_core.planning.sample_plans.drawn import drawn_samples
from torchsplit_core.tables.demand_trace.joint_moments import joint_moments
from torchsplit_core.values import Objective, PlanRequest
from torchsplit_core.workspace.store import Workspace

ABOUT = (
    "Demands rise together, or one for another: samples are moments of all models at once. Plan the fewest GPUs that "
    "hold a share of them, or the largest share that this fleet holds."
)
SHARES = {0.95: "95 %", 0.99: "99 %", 0.999: "99.9 %", 1.0: "every one"}


def render(
    workspace: Workspace, name: str, request: PlanRequest, trace: MappedTrace | None
) -> PlanRequest | None:
    """The section; the request with samples once a press asks for them."""
    st.header("Uncertain demand", anchor=False)
    st.caption(ABOUT)
    count = len(request.models[0].demand_samples)
    if count:
        with frame.fault_boundary():
            _plan_share(workspace, name, request, count)
            held_out.render(workspace, name, request)
    with st.expander("Other samples" if count else "Samples", expanded=not count):
        return _source(name, request, trace)


def _source(name: str, request: PlanRequest, trace: MappedTrace | None) -> PlanRequest | None:
    with frame.fault_boundary():
        if trace is not None and st.button("Take the moments of the trace", key="day-moments"):
            return _of_trace(request, trace)
        places = st.columns(3)
        count = places[0].number_input("Samples to draw", 2, 5000, 500, key=f"day-draw {name}")
        cv = places[1].number_input(
            "Deviation ÷ mean", 0.0, 10.0, 0.3, 0.05, key=f"day-cv {name}", help="Of each model's demand."
        )
        least = -1.0 / (len(request.models) - 1) if len(request.models) > 1 else -1.0
        correlation = places[2].number_input(
            "Correlation", float(np.ceil(100 * least) / 100), 1.0, 0.5, 0.1, key=f"day-correlation {name}",
            help="Between any two models: 1 together, 0 by themselves.",
        )  # fmt: skip
        if st.button("Draw samples around the demands", key="day-samples"):
            return drawn_samples(request, int(count), float(correlation), float(cv), request.seed)
    return None


def _of_trace(request: PlanRequest, trace: MappedTrace) -> PlanRequest:
    """The request with the moments of a trace; a model without a column has its demand at each of them."""
    moments = joint_moments(trace.rates, list(trace.rates.rates))
    count = len(next(iter(moments.rates.values())))
    models = (
        replace(model, demand_samples=moments.rates.get(model.name, (model.demand_rps,) * count))
        for model in request.models
    )
    if moments.left_out:
        frame.notify(f"{counted(moments.left_out, 'moment')} without a value of some model left out.")
    return replace(request, models=tuple(models))


def _plan_share(workspace: Workspace, name: str, request: PlanRequest, count: int) -> None:
    samples = np.array([model.demand_samples for model in request.models])
    peaks = ", ".join(
        f"{model.name} {short(float(np.mean(row)))} on average, {short(float(np.max(row)))} at most"
        for model, row in zip(request.models[:4], samples, strict=False)
    )
    st.markdown(escape_markdown(f"{counted(count, 'sample')}: {peaks}, req/s."))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        share = st.selectbox("Hold", SHARES, format_func=SHARES.__getitem__, key=f"day-share {name}")
        if st.button("Try the fewest GPUs", key="day-attain", type="primary"):
            objective = replace(least_cost_objective(request.objective), attainment=share)
            _try(workspace, name, request, objective)
        if st.button("Try the largest share of this fleet", key="day-attain-most"):
            _try(workspace, name, request, replace(request.objective, kind="attainment", attainment=None))
    st.caption("The tab Sweep has the curve: vary Share of samples held.")


def _try(workspace: Workspace, name: str, request: PlanRequest, objective: Objective) -> None:
    """The draft with this objective, on the tab Plan."""
    drafts.change(workspace, name, request, replace(request, objective=objective))
    frame.notify("In the draft: see the tab Plan.")
    st.rerun(scope="app")

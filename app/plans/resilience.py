"""What the loss of each GPU would cost, as a table below the plan."""

from __future__ import annotations

import streamlit as st

from app.components import saving
from torchsplit_core.latency_slo.simulation_input import without_instance
from torchsplit_core.pictures.numbers import counted
from torchsplit_core.planning.outcome.resilience import failure_losses
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import requires_resilience
from torchsplit_core.values import PlanOutcome, PlanRequest

MOST_ROWS = 30
"""Rows shown, the worst first."""


def render(request: PlanRequest | None, plan: PlanOutcome, file: str) -> None:
    """The models that would miss their minimum or demand with a GPU lost; nothing for a plan of another request."""
    if request is None or plan.request_sha256 != request_hash(request):
        return
    rows, spared = loss_rows(request, plan)
    with st.container(border=True):
        st.header("If this GPU is lost", anchor=False)
        gone = without_instance(plan, request)
        if len(gone) == len(request.models):
            st.caption("No model is served, so losing a GPU changes nothing.")
            return
        if requires_resilience(request):
            st.caption("Every minimum holds with any one GPU lost: checked by losing each.")
        if not rows:
            who = "model that is served" if gone else "model"
            st.caption(f"Every {who} keeps its minimum and its demand, whichever GPU is lost.")
            return
        alt = "What each model would have left with a GPU lost"
        saving.table(rows[:MOST_ROWS], f"{file}.losses", key="losses", alt=alt)
        more = f"{len(rows) - MOST_ROWS} milder rows are left out. " if len(rows) > MOST_ROWS else ""
        free = (
            f"The loss of {counted(spared, 'more used GPU')} costs no minimum and no demand."
            if spared
            else ""
        )
        if more or free:
            st.caption(more + free)


def loss_rows(request: PlanRequest, plan: PlanOutcome) -> tuple[list[dict[str, object]], int]:
    """A row for each GPU and model that would miss something, the worst GPU first; and the GPUs that cost nothing."""
    gpu_losses = failure_losses(request, plan.gpus)
    order = sorted(gpu_losses, key=lambda loss: (-loss.broken_minima, -loss.share))
    rows: list[dict[str, object]] = [
        {
            "GPU": loss.gpu,
            "model": model.name,
            "has req/s": model.before_rps,
            "left req/s": model.left_rps,
            "below its minimum by": model.below_least_rps or None,
            "below its demand by": model.below_demand_rps or None,
        }
        for loss in order
        for model in loss.models
    ]
    return rows, sum(not loss.models for loss in gpu_losses)

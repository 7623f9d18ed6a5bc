"""What changing saves against what it loses, by how many GPUs may change between windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from app.charts.day import saved_against_lost
from app.components import saving
from app.plans.day import running_job
from app.shell import frame, widgets
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import DAY_CURVE, RequestParameters
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import PlanRequest
from torchsplit_core.workspace.store import Workspace

ABOUT = "The day under ever looser limits: what is saved against one plan, and what the changes lose."


def render(workspace: Workspace, name: str, request: PlanRequest) -> None:
    """The newest curve of the request as it stands, and the button that makes one."""
    st.header("What changing saves and loses", anchor=False)
    if jobs.running(workspace, (DAY_CURVE,), name):
        running_job.render(workspace, name, DAY_CURVE, "day-curve-stop")
        return
    done = jobs.newest(workspace, DAY_CURVE, name)
    result = (done.result or {}) if done is not None and done.state == "done" else {}
    if result.get("request_sha256") == request_hash(request):
        _show(name, result["points"])
        return
    st.caption(ABOUT)
    if st.button("Plan with fewer changes", key="day-curve-start"):
        with frame.fault_boundary():
            jobs.start(workspace, f"Days of {name} with fewer changes", DAY_CURVE, RequestParameters(name))
            st.rerun(scope="app")


def _show(name: str, points: Sequence[Mapping[str, Any]]) -> None:
    drawn = saved_against_lost(
        [
            (limit_words(point["most_touched"]), point["lost_requests"], point["saved_gpu_hours"])
            for point in points
        ],
        dark=widgets.is_dark(),
    )
    widgets.chart(
        drawn, "Saved and lost", f"{name}.day-curve", key="day-curve",
        alt="GPU-hours saved against requests lost; the table below has the figures",
    )  # fmt: skip
    rows = [
        {
            "GPUs that may change": limit_words(point["most_touched"]),
            "GPU-hours": point["gpu_hours"],
            "GPU-hours saved": point["saved_gpu_hours"],
            "requests lost": point["lost_requests"],
        }
        for point in points
    ]
    saving.table(rows, f"{name}.day-curve", key="day-curve-table", alt="The curve as a table")
    st.caption(f"{ABOUT} Requests lost are of a day, estimated. n/a: no plans follow from one another so.")


def limit_words(most: int | None) -> str:
    """A limit of changed GPUs between two windows."""
    return "any number" if most is None else f"at most {most}"

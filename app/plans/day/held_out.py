"""What a share of samples is worth: plans for every second of them, judged by the others that planning did not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from app.charts.day import shares_held
from app.components import saving
from app.plans.day import running_job
from app.shell import frame, widgets
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import HELD_OUT, RequestParameters
from torchsplit_core.pictures.numbers import counted, percent
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import PlanRequest
from torchsplit_core.workspace.store import Workspace

ABOUT = (
    "A plan holds the samples that it was made for; what comes is another draw. Plans for every second sample are "
    "judged by the others. Neighbours in time are alike, so a later day may hold less."
)
TOO_FEW = "Held out: n/a. There is one sample, and judging a share takes two: one to plan for, one held out."


def render(workspace: Workspace, name: str, request: PlanRequest) -> None:
    """The newest judgement of the request as it stands, and the button that makes one."""
    st.subheader("What a share is worth", anchor=False)
    if len(request.models[0].demand_samples) < 2:
        st.caption(TOO_FEW)
        return
    if jobs.running(workspace, (HELD_OUT,), name):
        running_job.render(workspace, name, HELD_OUT, "day-held-out-stop")
        return
    done = jobs.newest(workspace, HELD_OUT, name)
    result = (done.result or {}) if done is not None and done.state == "done" else {}
    if result.get("request_sha256") == request_hash(request):
        _show(name, result["points"], request.objective.attainment)
        return
    st.caption(ABOUT)
    if st.button("Judge by samples held out", key="day-held-out-start"):
        with frame.fault_boundary():
            jobs.start(workspace, f"Samples of {name} held out", HELD_OUT, RequestParameters(name))
            st.rerun(scope="app")


def _show(name: str, points: Sequence[Mapping[str, Any]], share: float | None) -> None:
    known = [point for point in points if point["held"] is not None]
    chosen = next((point for point in known if share is not None and point["asked"] == share), None)
    if chosen is not None:
        st.markdown(
            f"**The share of this scenario, {share_words(share)}, is worth {_part(chosen, 'held', 'held_out')} "
            "of samples that planning did not see.**"
        )
    if len({point["gpus"] for point in known}) > 1:
        drawn = sorted(
            {(point["gpus"], point["planned_held"] / point["planned"], point["held"] / point["held_out"])
             for point in known}
        )  # fmt: skip
        widgets.chart(
            shares_held(drawn, dark=widgets.is_dark()), "Samples held", f"{name}.held-out", key="day-held-out",
            alt="Samples held over GPUs in use; the table below has the figures",
        )  # fmt: skip
    rows = [
        {
            "share asked for": share_words(point["asked"]),
            "plan": point["status"],
            "GPUs used": point["gpus"],
            "held of those planned for": _part(point, "planned_held", "planned"),
            "held of those held out": _part(point, "held", "held_out"),
        }
        for point in points
    ]
    saving.table(rows, f"{name}.held-out", key="day-held-out-table", alt="What each share is worth")
    st.caption(f"{ABOUT} {resolution_note(points)} n/a: no plan on this fleet.")


def _part(point: Mapping[str, Any], held: str, of: str) -> str | None:
    if point[held] is None:
        return None
    return f"{percent(point[held] / point[of])} ({point[held]:,} of {point[of]:,})"


def share_words(share: float | None) -> str:
    """A share asked for; None is the largest."""
    return "the fleet's largest" if share is None else percent(share)


def resolution_note(points: Sequence[Mapping[str, Any]]) -> str:
    """Which shares so few samples held out cannot tell from all of them; "" where there are enough for each."""
    count = points[0]["held_out"]
    shares = [point["asked"] for point in points if point["asked"] is not None]
    coarse = [share_words(share) for share in shares if share < 1 and (1 - share) * count < 1 - 1e-9]
    if not coarse:
        return ""
    return f"{counted(count, 'sample')} held out are too few to tell {' and '.join(coarse)} from every one."

"""One GPU a segment, counts of GPUs and particular GPUs compared: a job searches them and keeps the result."""

from __future__ import annotations

import streamlit as st

from app.components import saving
from app.placements.outcome_tables import comparison_table
from app.session.placements import StoredPlacement
from app.shell import frame
from torchsplit_core import jobs
from torchsplit_core.files import read_text
from torchsplit_core.jobs.job_kinds import DIVISIONS, RequestVersionParameters, to_stored
from torchsplit_core.pictures.numbers import duration, escape_markdown
from torchsplit_core.values import PlacementOutcome
from torchsplit_core.workspace.store import Workspace

COUNTED = (
    "Counts of GPUs only: a solver that knows how many GPUs of a type a segment has, and mean links between types; "
    "beside what it promises stands what these segments give on GPUs of the fleet."
)


def render(workspace: Workspace, placement: StoredPlacement) -> None:
    """The table once there is one, else the button that computes it."""
    st.header("Other ways to divide", anchor=False)
    comparison = stored_comparison(workspace, placement)
    if comparison:
        rows = comparison_table(comparison)
        saving.table(rows, f"{placement.name}.ways", key="place-ways-table", alt="Ways to divide compared")
        st.caption(escape_markdown(f"{COUNTED} {describe_literal_size(workspace, placement)}".strip()))
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        working = bool(_statuses(workspace, placement, "running"))
        if st.button("Compare the ways to divide", key="place-ways", disabled=working):
            with frame.fault_boundary():
                jobs.start(workspace, f"Compare {placement.name}", DIVISIONS, _parameters(placement))
                st.rerun()
        limit = duration(placement.request.solver.time_limit_s)
        st.caption(
            "One GPU a segment, counts of GPUs only, and particular GPUs by every division, each proven where "
            f"{limit} are enough for all."
        )


def stored_comparison(
    workspace: Workspace, placement: StoredPlacement
) -> list[tuple[str, PlacementOutcome, float | None]]:
    """The last comparison for this very request: label, outcome, and the throughput of its segments on their GPUs;
    empty without one."""
    done = _statuses(workspace, placement, "done")
    if not done:
        return []
    methods = [(name, read_text(text, origin=name)[1]) for name, text in done[0].result["ways"]]
    # Comparisons of earlier versions, without counts of GPUs, deliver what they promise.
    delivered = done[0].result.get("delivered", {name: outcome.throughput for name, outcome in methods})
    return [(name, outcome, delivered[name]) for name, outcome in methods]


def describe_literal_size(workspace: Workspace, placement: StoredPlacement) -> str:
    """The size of the published program for the request, in words; empty where the job did not count it."""
    done = _statuses(workspace, placement, "done")
    return str(done[0].result.get("literal", "")) if done else ""


def _statuses(workspace: Workspace, placement: StoredPlacement, state: str) -> list[jobs.JobStatus]:
    parameters = to_stored(DIVISIONS, _parameters(placement))
    records = (record for record in workspace.job_records() if record.name == DIVISIONS)
    same = {record.id for record in records if record.parameters == parameters}
    return [status for status in jobs.statuses(workspace) if status.id in same and status.state == state]


def _parameters(placement: StoredPlacement) -> RequestVersionParameters:
    return RequestVersionParameters(placement.name, placement.sha256)

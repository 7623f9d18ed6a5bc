"""One GPU a segment, counts of GPUs, particular GPUs side by side: searched in the background, kept with its job."""

from __future__ import annotations

import streamlit as st

from app.components import saving
from app.placements.words import comparison_table
from app.session.placements import Kept
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


def show(workspace: Workspace, kept: Kept) -> None:
    """The table once it was asked for, and the way to ask."""
    st.header("Other ways to divide", anchor=False)
    found = known(workspace, kept)
    if found:
        saving.table(
            comparison_table(found),
            f"{kept.name}.ways",
            key="place-ways-table",
            alt="Ways to divide compared",
        )
        st.caption(escape_markdown(f"{COUNTED} {literal(workspace, kept)}".strip()))
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        working = bool(_of(workspace, kept, "running"))
        if st.button("Compare the ways to divide", key="place-ways", disabled=working):
            with frame.telling():
                jobs.start(workspace, f"Compare {kept.name}", DIVISIONS, _parameters(kept))
                st.rerun()
        limit = duration(kept.request.solver.time_limit_s)
        st.caption(
            "One GPU a segment, counts of GPUs only, and particular GPUs by every division, each proven where "
            f"{limit} are enough for all."
        )


def known(workspace: Workspace, kept: Kept) -> list[tuple[str, PlacementOutcome, float | None]]:
    """What the last comparison for this very request found, each with what its segments give on their GPUs; nothing
    before there was one."""
    done = _of(workspace, kept, "done")
    if not done:
        return []
    ways = [(name, read_text(text, origin=name)[1]) for name, text in done[0].result["ways"]]
    # A comparison of before there were counts of GPUs has what each promises, and its GPUs give just that.
    delivered = done[0].result.get("delivered", {name: outcome.throughput for name, outcome in ways})
    return [(name, outcome, delivered[name]) for name, outcome in ways]


def literal(workspace: Workspace, kept: Kept) -> str:
    """How large the published program of the request would be, in words; empty where nobody counted."""
    done = _of(workspace, kept, "done")
    return str(done[0].result.get("literal", "")) if done else ""


def _of(workspace: Workspace, kept: Kept, state: str) -> list[jobs.JobStatus]:
    asked = to_stored(DIVISIONS, _parameters(kept))
    same = {
        record.id
        for record in workspace.job_records()
        if record.name == DIVISIONS and record.parameters == asked
    }
    return [status for status in jobs.statuses(workspace) if status.id in same and status.state == state]


def _parameters(kept: Kept) -> RequestVersionParameters:
    return RequestVersionParameters(kept.name, kept.sha256)

"""Where to cut: cuts of a profiled model, ranked, chosen for the explorer's overlay, offered to the planner."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from app import frame, request_edit, scenario
from app.graph_analysis import Analysis
from app.models_view import PROFILE_JOB
from app.numbers import exact, percent, plain, size
from app.plan_editor import plan_again
from app.workspace import names, read
from torchsplit_core import jobs
from torchsplit_core.planning.build_request import model_name
from torchsplit_core.storage import Workspace
from torchsplit_core.values import PartitionCandidate, PartitionOutcome, Profile

PARTITION_JOB = "torchsplit_core.workflow:partition_job"


def outcomes(workspace: Workspace, name: str) -> dict[str, PartitionOutcome]:
    """The stored cuts of a model by their names."""
    found = sorted(item for item in names(workspace, "partition") if item.startswith(f"{name} in "))
    return {item: read(workspace, "partition", item) for item in found}


def stages_of(analysis: Analysis, candidate: PartitionCandidate) -> Mapping[str, int]:
    """The stage of every node of a candidate, the members of its units included."""
    units = analysis.prepared.by_id
    return {
        member: stage
        for stage, ids in enumerate(candidate.stages)
        for name in ids
        for member in (units[name].members if name in units else (name,))
    }


def show(workspace: Workspace, name: str, profile: Profile | None) -> None:
    """The whole tab: find cuts, see them ranked, draw one over the model, offer them to the planner."""
    if profile is None or not profile.nodes:
        st.write("A cut needs the time of every node: profile this model first.")
        if st.button("Profile this model", disabled=not name.startswith("sample:")):
            jobs.start(workspace, f"Profile {name}", PROFILE_JOB, {"source": name})
            st.rerun()
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        stages = st.number_input("Parts at most", 2, 16, 2, width=140)
        link = st.number_input(
            "Link between slices, GB/s", 0.0, 2000.0, 12.0, width=200, help="0: transfers take no time."
        )
        if st.button("Find cuts", type="primary"):
            parameters = {"source": name, "stages": int(stages), "link_gb_per_s": link or None}
            jobs.start(workspace, f"Cut {name} in {int(stages)}", PARTITION_JOB, parameters)
            st.rerun()
    known = outcomes(workspace, name)
    if not known:
        st.write(
            "Here you will see where to cut the model so that its slowest part is as fast as can be: candidates "
            "ranked, with what crosses each cut, the memory of each part, and how far from the best they can be."
        )
    for found, outcome in known.items():
        _candidates(workspace, found, outcome, profile)


def _candidates(workspace: Workspace, found: str, outcome: PartitionOutcome, profile: Profile) -> None:
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{plain(found)}**", width="content")
            colour = "green" if outcome.status == "optimal" else "yellow"
            words = (
                "proven optimal"
                if outcome.status == "optimal"
                else f"{outcome.status}, gap {percent(outcome.gap)}"
            )
            st.badge(words, color=colour)
        if outcome.message:
            st.caption(plain(outcome.message))
        if not outcome.candidates:
            st.info("No cut was found: allow fewer parts.")
            return
        st.dataframe(
            candidates_table(outcome), hide_index=True, placeholder="n/a", alt="Candidates, best first"
        )
        st.caption("To see one drawn over the model: Explorer, “stage” among the colours.")
        with st.container(horizontal=True):
            if st.button("Offer these cuts to the planner", key=f"offer-{found}"):
                _offer(workspace, profile, outcome)
            st.download_button(
                "Cuts (JSON)", workspace.get_bytes("partition", found), f"{found.replace('/', '-')}.partition.json",
                "application/json", on_click="ignore", key=f"partition-{found}",
            )  # fmt: skip


def candidates_table(outcome: PartitionOutcome) -> pd.DataFrame:
    """One row a candidate: how the compute divides, what crosses, what it needs."""
    return pd.DataFrame(
        [
            {
                "parts": len(item.stages),
                "slowest part, ms": item.max_load_ms,
                "load share, %": shares_text(item),
                "crosses": " | ".join(size(count) for count in item.cut_bytes) or "nothing",
                "peak memory": " | ".join(size(count) for count in item.peak_memory_bytes),
                "basis": item.basis,
            }
            for item in outcome.candidates
        ]
    )


def shares_text(candidate: PartitionCandidate) -> str:
    """How the compute divides: "49.8 | 50.2"."""
    total = sum(candidate.loads_ms) or 1
    return " | ".join(exact(round(100 * load / total, 1)) for load in candidate.loads_ms)


def _offer(workspace: Workspace, profile: Profile, outcome: PartitionOutcome) -> None:
    """The cuts become variants of the model in the current scenario, and it is planned again."""
    with frame.telling():
        scenario_name, request = scenario.name(workspace), scenario.request(workspace)
        if request is None or scenario_name is None:
            scenario_name = f"{model_name(profile)} with cuts"
            request = request_edit.new_request(
                [model_name(profile)], {model_name(profile): profile}, "A100-80GB", 1
            )
        request = request_edit.with_cuts(request, profile, outcome)
        plan_again(workspace, scenario_name, request, then="Plan")

"""The cuts of a model in a workspace: their study, the chosen cut, and the user's own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import streamlit as st

from app.session.analysis import Analysis
from app.session.workspace import read_artifact, recall, remember_choice
from torchsplit_core.graph import TorchGraph
from torchsplit_core.partitioning import PartitionProvider, cut_behind, undominated
from torchsplit_core.partitioning.candidates import rank_distinct, replace_candidates
from torchsplit_core.values import InputFault, PartitionCandidate, PartitionDevices, PartitionOutcome, Profile
from torchsplit_core.values.partition import Objective
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace

USER_CUT = "own"
"""The key of the user's own cut."""


@dataclass(frozen=True)
class CutStudy:
    """The stored outcomes of a model by their largest number of stages, all about the same devices and objective.

    `by_key` has the distinct candidates by their keys, best first; `choice` those that no other beats in every respect.
    """

    outcomes: Mapping[int, PartitionOutcome]
    by_key: Mapping[str, PartitionCandidate]
    choice: tuple[PartitionCandidate, ...]

    @property
    def candidates(self) -> tuple[PartitionCandidate, ...]:
        """All distinct ones, best first."""
        return tuple(self.by_key.values())

    @property
    def last(self) -> PartitionOutcome:
        """The outcome with the most stages: its bound holds for fewer stages too."""
        return self.outcomes[max(self.outcomes)]

    @property
    def objective(self) -> Objective:
        """What the candidates were to minimise."""
        return self.last.objective

    @property
    def devices(self) -> PartitionDevices:
        """What the stages run on."""
        return self.last.devices or PartitionDevices(max(self.outcomes))


def load_study(workspace: Workspace, model: str, architecture_hash: str) -> CutStudy | None:
    """The study of the model as it is now; None without one, or where all are of another architecture."""
    outcomes: dict[int, PartitionOutcome] = {}
    stored = named_results.cuts_of(workspace.artifacts("partition"), model)
    for count, item in stored.items():
        outcome: PartitionOutcome = read_artifact(workspace, item)
        if outcome.architecture_hash == architecture_hash:
            outcomes[count] = outcome
    if not outcomes:
        return None
    files = tuple(stored[count].sha256 for count in outcomes)
    return _build_study(files, outcomes)


@st.cache_resource(max_entries=16, show_spinner=False)
def _build_study(files: tuple[str, ...], _outcomes: Mapping[int, PartitionOutcome]) -> CutStudy:
    """Build the study of these outcomes; the key is the hashes of their files."""
    objective = _outcomes[max(_outcomes)].objective
    all_candidates = [candidate for outcome in _outcomes.values() for candidate in outcome.candidates]
    ranked = rank_distinct(all_candidates, len(all_candidates), objective)
    return CutStudy(_outcomes, {key_of(cut): cut for cut in ranked}, undominated(ranked, objective))


def key_of(candidate: PartitionCandidate) -> str:
    """A short name that is the same for the same stages."""
    return hashlib.sha256(repr(candidate.stages).encode()).hexdigest()[:12]


def choose(workspace: Workspace, model: str, key: str) -> None:
    """Choose a cut by its key; pages draw it from now on."""
    remember_choice(workspace, f"cut of {model}", key)


def selected_key(workspace: Workspace, model: str) -> str | None:
    """The key of the cut that the user chose last; None before a choice."""
    stored = recall(workspace, f"cut of {model}")
    return stored if isinstance(stored, str) else None


def user_values(workspace: Workspace, model: str, graph: TorchGraph) -> tuple[str, ...]:
    """The values behind which the user cuts, without those that the graph lacks."""
    stored = workspace.setting(f"own cut of {model}")
    return tuple(name for name in stored if name in graph.by_id) if isinstance(stored, list) else ()


def set_user_values(workspace: Workspace, model: str, values: Sequence[str]) -> None:
    """Store the user's own cut; no values mean no cut."""
    workspace.set_setting(f"own cut of {model}", list(dict.fromkeys(values)))


@dataclass(frozen=True)
class SelectedCut:
    """The cut that pages draw, under its key, and the user's own cut where it is possible.

    `fault` says why the user's own is not possible.
    """

    key: str
    candidate: PartitionCandidate | None
    user_cut: PartitionCandidate | None
    fault: str = ""


def selected_cut(
    workspace: Workspace, model: str, cut_study: CutStudy, costs: PartitionProvider
) -> SelectedCut:
    """The cut that the user chose last, else the best candidate, else None."""
    user_cut, fault = None, ""
    if values := user_values(workspace, model, costs.graph):
        try:
            user_cut = user_candidate(costs, cut_study, values)
        except InputFault as error:
            fault = str(error)
    wanted = recall(workspace, f"cut of {model}")
    if wanted == USER_CUT and user_cut is not None:
        return SelectedCut(USER_CUT, user_cut, user_cut)
    key = wanted if wanted in cut_study.by_key else next(iter(cut_study.by_key), "")
    return SelectedCut(key, cut_study.by_key.get(key), user_cut, fault)


def user_candidate(
    costs: PartitionProvider, cut_study: CutStudy, values: Sequence[str]
) -> PartitionCandidate:
    """The cut behind these values, on the study's terms. Raises InputFault where there is none."""
    return cut_behind(
        costs,
        values,
        link_gb_per_s=cut_study.devices.link_gb_per_s,
        objective=cut_study.objective,
        time_factors=cut_study.devices.time_factors,
    )


def offer(
    workspace: Workspace, model: str, cut_study: CutStudy, candidates: Sequence[PartitionCandidate]
) -> PartitionOutcome:
    """Store the cuts of a model that the planner may use, best first; return the stored outcome."""
    outcome = replace_candidates(cut_study.last, candidates)
    workspace.put("partition", f"{model} offered", outcome)
    return outcome


def offers(workspace: Workspace) -> list[PartitionOutcome]:
    """All stored cuts but the studies: those offered to the planner, and those from files."""
    stored = workspace.artifacts()
    cuts = [item for item in stored if item.kind == "partition"]
    models = {item.name for item in stored if item.kind in ("graph", "profile")}
    studies = {item.name for model in models for item in named_results.cuts_of(cuts, model).values()}
    return [read_artifact(workspace, item) for item in cuts if item.name not in studies]


def forget(workspace: Workspace, model: str) -> None:
    """Remove all cuts of a model."""
    for name in (*named_results.partition_names(workspace, model), f"{model} offered"):
        named_results.remove(workspace, ("partition",), name)


def stages_of(analysis: Analysis, candidate: PartitionCandidate) -> Mapping[str, int]:
    """The stage of every node of a candidate, the members of its units included."""
    units = analysis.prepared.by_id
    return {
        member: stage
        for stage, ids in enumerate(candidate.stages)
        for name in ids
        for member in (units[name].members if name in units else (name,))
    }


@st.cache_resource(max_entries=4, show_spinner=False)
def provider(sha256: str, profile_sha256: str, _graph: TorchGraph, _profile: Profile) -> PartitionProvider:
    """Costs and regions of a model; the key is the hashes of its two files."""
    return PartitionProvider(_graph, _profile)

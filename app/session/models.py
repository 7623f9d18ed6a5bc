"""The models of a workspace: which exist, and what the workspace has of each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from app.session.workspace import read_artifact
from torchsplit_core.checkpoints.trained_run import METRICS, VALIDATION, TrainedStep
from torchsplit_core.graph import TorchGraph
from torchsplit_core.training.stored_runs import trained_step
from torchsplit_core.values import InputFault, Profile
from torchsplit_core.values.profile import BASES
from torchsplit_core.workspace.store import Workspace


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model of the workspace by its source, with its graph size and profile."""

    source: str
    nodes: int | None
    profile: Profile | None

    @property
    def basis(self) -> str:
        """How many rows of its profile are measured, emulated and estimated, in words."""
        counts = Counter(row.basis for row in self.profile.rows) if self.profile else Counter()
        known = [f"{counts[basis]} {basis}" for basis in BASES if counts[basis]]
        return ", ".join(known) or "not profiled"

    @property
    def measured_on(self) -> str:
        """The types of devices on which rows of its profile were measured."""
        rows = self.profile.rows if self.profile else ()
        return ", ".join(dict.fromkeys(row.gpu_type for row in rows if row.basis == "measured")) or "n/a"


def list_models(workspace: Workspace) -> list[ModelEntry]:
    """The models of all graphs and profiles, sorted by source; a second profile of a model is no further model."""
    stored = workspace.artifacts()
    graphs: dict[str, TorchGraph]
    profiles: dict[str, Profile]
    graphs, profiles = (
        {item.name: read_artifact(workspace, item) for item in stored if item.kind == kind}
        for kind in ("graph", "profile")
    )
    primary = {
        name for name, profile in profiles.items() if profile.source == name or profile.source not in profiles
    }
    entries = []
    for source in sorted({*graphs, *primary}):
        graph = graphs.get(source)
        nodes = len(graph.nodes) if graph else None
        entries.append(ModelEntry(source, nodes, profiles.get(source)))
    return entries


def describe_training(workspace: Workspace, source: str) -> str:
    """Loss and held-out figures of a step of a run; why there are none where the run is gone; else empty."""
    try:
        step = trained_step(workspace, source)
    except InputFault as fault:
        return fault.problem
    if step is None:
        return ""
    return _figures(step, tuple(_written_ns(step.run / file) for file in (METRICS, VALIDATION)))


def _written_ns(path: Path) -> int | None:
    """When a file was written last; None where it is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


@st.cache_data(max_entries=256, show_spinner=False, hash_funcs={TrainedStep: lambda step: step.text})
def _figures(step: TrainedStep, written_ns: tuple[int | None, ...]) -> str:
    """The figures as of these files: the one of the steps may have millions of lines."""
    loss = step.loss()
    figures = [] if loss is None else [f"loss {loss:.3g}"]
    return ", ".join(figures + [f"{name} {value:.3g}" for name, value in step.metrics().items()]) or "n/a"


def model_names(workspace: Workspace) -> tuple[str, ...]:
    """The sources of all models, sorted by name."""
    return tuple(entry.source for entry in list_models(workspace))

"""The models of a workspace: which there are, what is known of each, and which one is looked at.

The address carries the model (`?model=SOURCE`), so that a link shows what its sender saw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from app.session.workspace import chosen, look_at, read_artifact
from torchsplit_core.graph import TorchGraph
from torchsplit_core.values import Profile
from torchsplit_core.values.profile import BASES
from torchsplit_core.workspace.store import Workspace

PARAMETER = "model"
"""The query parameter and the workspace setting that hold the model's source."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model of the workspace by its source, and what is known of it."""

    source: str
    nodes: int | None
    profile: Profile | None

    @property
    def basis(self) -> str:
        """How many rows of its profile are measured, emulated and estimated, in words."""
        counts = Counter(row.basis for row in self.profile.rows) if self.profile else Counter()
        known = [f"{counts[basis]} {basis}" for basis in BASES if counts[basis]]
        return ", ".join(known) or "not profiled"


def entries_of(workspace: Workspace) -> list[ModelEntry]:
    """The workspace's models: everything traced or profiled, by source; a second profile of one is no model."""
    stored = workspace.artifacts()
    graphs: dict[str, TorchGraph]
    profiles: dict[str, Profile]
    graphs, profiles = (
        {item.name: read_artifact(workspace, item) for item in stored if item.kind == kind}
        for kind in ("graph", "profile")
    )
    own = {name for name, found in profiles.items() if found.source == name or found.source not in profiles}
    entries = []
    for source in sorted({*graphs, *own}):
        graph = graphs.get(source)
        entries.append(ModelEntry(source, len(graph.nodes) if graph else None, profiles.get(source)))
    return entries


def known(workspace: Workspace) -> tuple[str, ...]:
    """The sources of all models, by name."""
    return tuple(entry.source for entry in entries_of(workspace))


def current(workspace: Workspace, among: Sequence[str]) -> str | None:
    """The model of the address, else of this session, else looked at last, else the first; None where none is."""
    return chosen(workspace, PARAMETER, among, st.query_params.get(PARAMETER))


def asked_in_vain(among: Sequence[str]) -> str | None:
    """The model that the address names and that is none of these: no other may stand in for it unsaid."""
    asked = st.query_params.get(PARAMETER)
    return asked if asked and asked not in among else None


def choose(workspace: Workspace, source: str) -> None:
    """Make a model the one that is looked at, in this session and by those that come without an address."""
    if PARAMETER in st.query_params:
        st.query_params[PARAMETER] = source
    look_at(workspace, PARAMETER, source)

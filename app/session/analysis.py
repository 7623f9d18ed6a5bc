"""What the Graph page needs of a stored graph, computed once per graph, without domain logic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import streamlit as st

from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.scene import Scene, layout_scene
from torchsplit_core.drawing.view import build_view
from torchsplit_core.graph import (
    ALL_STEPS,
    DominanceInformation,
    Fate,
    PreparedGraph,
    RegionTree,
    StepName,
    StepReport,
    TorchGraph,
    annotate_with_profiling_data,
    fates,
    preparation_report,
    prepare,
    region_tree,
)
from torchsplit_core.graph.annotate import has_former_hash
from torchsplit_core.values import Profile


@dataclass(frozen=True)
class Analysis:
    """A graph prepared for cutting, its dominance and its regions."""

    prepared: PreparedGraph
    dominance: DominanceInformation
    regions: RegionTree

    @cached_property
    def region_depths(self) -> Mapping[str, int]:
        """How many regions of two values or more surround each unit, without the whole model."""
        steps = [0] * (len(self.regions.order) + 1)
        for region in self.regions.regions:
            if region.count > 1 and region.parent is not None:
                steps[region.first] += 1
                steps[region.first + region.count] -= 1
        return dict(zip(self.regions.order, accumulate(steps), strict=False))

    @cached_property
    def fates(self) -> Mapping[str, Fate]:
        """What preparation made of every node."""
        return fates(self.prepared)

    def weights(self, graph: TorchGraph, by: str) -> dict[str, float]:
        """The time share (by "time") or the bytes put out (by "bytes") of every unit."""
        if by == "bytes":
            return {unit.id: float(unit.output_bytes) for unit in self.prepared.units}
        costs = graph.metadata
        return {
            unit.id: sum(costs[name].time_share for name in unit.members if name in costs)
            for unit in self.prepared.units
        }


@st.cache_resource(max_entries=16, show_spinner="Finding dominators and regions …")
def analyse(sha256: str, _graph: TorchGraph, steps: tuple[StepName, ...] = ALL_STEPS) -> Analysis:
    """Prepare the graph by these steps and analyse it; the key is its file's hash with the steps."""
    prepared = prepare(_graph, steps)
    return Analysis(
        prepared, DominanceInformation((prepared.main_ids, prepared.main_edges)), region_tree(prepared)
    )


@st.cache_resource(max_entries=32, show_spinner="Preparing the graph step by step …")
def step_reports(sha256: str, _graph: TorchGraph, steps: tuple[StepName, ...]) -> tuple[StepReport, ...]:
    """The graph as traced and after each of these steps; the key is its file's hash with the steps."""
    return preparation_report(_graph, steps)


@st.cache_resource(max_entries=8, show_spinner=False)
def hierarchy(sha256: str, profile_sha256: str, _graph: TorchGraph) -> Hierarchy:
    """The groups of a graph; the key is its file's hash with that of its profile."""
    return Hierarchy(_graph)


@st.cache_resource(max_entries=16, show_spinner=False)
def scene(sha256: str, opened: frozenset[str], unfolded: frozenset[str], _hierarchy: Hierarchy) -> Scene:
    """The picture of a graph with these groups open."""
    return layout_scene(_hierarchy, build_view(_hierarchy, opened, unfolded))


def with_profile(graph: TorchGraph, profile: Profile | None) -> TorchGraph:
    """The graph with its time shares, where the profile is of the same model and knows its nodes.

    Raises InputFault where the profile names other nodes, or has the architecture hash of the version before.
    """
    if profile is None or not profile.nodes:
        return graph
    if profile.architecture_hash != graph.architecture_hash and not has_former_hash(graph, profile):
        return graph
    return annotate_with_profiling_data(graph, profile)

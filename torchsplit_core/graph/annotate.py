"""What profiling found, laid beside the nodes of the graph."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.values import InputFault, Profile


def annotate_with_profiling_data(graph: TorchGraph, profile: Profile) -> TorchGraph:
    """The graph with `metadata` filled from the profile's nodes.

    Raises InputFault when the two do not come from the same architecture, or when the
    profile names a node that the graph has not.
    """
    if graph.architecture_hash != profile.architecture_hash:
        raise InputFault(
            "profile architecture_hash",
            profile.architecture_hash,
            f"profile and graph describe one architecture (the graph's is {graph.architecture_hash!r})",
            "Profile the model that was traced, or trace the one that was profiled.",
        )
    for node in profile.nodes:
        if node.id not in graph.by_id:
            raise InputFault(
                "profile nodes", node.id, "profiled nodes are nodes of the graph", "Profile it again."
            )
    return replace(graph, metadata={node.id: node for node in profile.nodes})

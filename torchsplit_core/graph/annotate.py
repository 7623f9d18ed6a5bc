"""Adds profiling results to the nodes of a graph."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.graph.architecture import OF_FORMER_SCHEME, former_architecture_hash, uses_former_scheme
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.values import InputFault, Profile, quoted


def annotate_with_profiling_data(graph: TorchGraph, profile: Profile) -> TorchGraph:
    """The graph with `metadata` filled from the profile's nodes.

    Raises InputFault if the two are of different architectures, or if the profile names a node that the graph lacks.
    """
    if graph.architecture_hash != profile.architecture_hash:
        raise _hash_mismatch(graph, profile)
    for node in profile.nodes:
        if node.id not in graph.by_id:
            raise InputFault(
                "profile nodes",
                f"name {quoted(node.id)}, which is no node of the graph",
                "Profile the model again.",
            )
    return replace(graph, metadata={node.id: node for node in profile.nodes})


def has_former_hash(graph: TorchGraph, profile: Profile) -> bool:
    """Whether the profile has the graph's hash by the previous scheme."""
    differ = bool(profile.architecture_hash) and profile.architecture_hash != graph.architecture_hash
    return differ and profile.architecture_hash == former_architecture_hash(graph)


def _hash_mismatch(graph: TorchGraph, profile: Profile) -> InputFault:
    if has_former_hash(graph, profile):
        return InputFault("profile", OF_FORMER_SCHEME, "Measure again; the file keeps what was measured.")
    if profile.architecture_hash and uses_former_scheme(graph):
        return InputFault("graph", "was traced by an earlier version of TorchSplit", "Trace the model again.")
    return InputFault(
        "profile architecture_hash",
        f"is {quoted(profile.architecture_hash)}, not the graph's {quoted(graph.architecture_hash)}",
        "Profile the model that was traced, or trace the one that was profiled.",
    )

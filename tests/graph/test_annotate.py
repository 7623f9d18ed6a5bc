"""A profile beside a graph: of the same architecture, of another, or of this one as the version before saw it."""

from dataclasses import replace

import pytest

from torchsplit_core.graph import TorchGraph, annotate_with_profiling_data
from torchsplit_core.graph.architecture import former_architecture_hash, hash_model_architecture
from torchsplit_core.values import GraphNode, InputFault, NodeProfile, Profile

OLD_SENTENCE = "was measured by an earlier version of TorchSplit"


def graph(kernel: int) -> TorchGraph:
    nodes = (
        GraphNode("x", "input", shape=("s0", 8), dtype="float32"),
        GraphNode(
            "pool", "op", "pool", "aten.pool.default", ("x",), shape=("s0", 8), dtype="float32",
            arguments={"self": {"input": 0}, "kernel_size": [kernel]},
        ),
        GraphNode("output", "output", inputs=("pool",)),
    )  # fmt: skip
    made = TorchGraph(nodes)
    return replace(made, architecture_hash=hash_model_architecture(made))


def profile(architecture_hash: str) -> Profile:
    return Profile("m", architecture_hash, {}, (), (NodeProfile("pool", 1.0, 8, 8),))


def test_a_profile_of_the_graph_is_laid_beside_it():
    found = annotate_with_profiling_data(graph(3), profile(graph(3).architecture_hash))
    assert found.metadata["pool"].time_share == 1.0


def test_a_profile_of_the_version_before_says_to_measure_again():
    former = former_architecture_hash(graph(3))
    assert former == former_architecture_hash(graph(63)) != graph(3).architecture_hash
    with pytest.raises(InputFault, match=OLD_SENTENCE):
        annotate_with_profiling_data(graph(3), profile(former))


def test_graph_and_profile_of_the_version_before_fit_each_other():
    bare = TorchGraph(tuple(replace(node, arguments={}) for node in graph(3).nodes))
    old = replace(bare, architecture_hash=former_architecture_hash(bare))
    assert annotate_with_profiling_data(old, profile(old.architecture_hash)).metadata
    with pytest.raises(InputFault, match="was traced by an earlier version") as caught:
        annotate_with_profiling_data(old, profile(graph(3).architecture_hash))
    assert OLD_SENTENCE not in str(caught.value)


@pytest.mark.parametrize("other", ["", "f" * 64])
def test_a_profile_of_another_architecture_is_refused_as_ever(other):
    with pytest.raises(InputFault, match="not the graph's") as caught:
        annotate_with_profiling_data(graph(3), profile(other))
    assert OLD_SENTENCE not in str(caught.value)
    with pytest.raises(InputFault, match="not the graph's"):
        annotate_with_profiling_data(graph(3), profile(graph(5).architecture_hash))

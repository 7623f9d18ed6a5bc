"""Dominance against its definition (networkx) on random DAGs."""

import itertools

import networkx as nx
import pytest
from graph_cases import augmented, random_dag

from torchsplit_core.graph import ENTRY, EXIT, DominanceInformation, TorchGraph
from torchsplit_core.values import GraphNode, InputFault


@pytest.mark.parametrize("seed", range(200))
def test_immediate_dominators_equal_networkx(seed):
    ids, edges = random_dag(seed, 30)
    graph = augmented(ids, edges)
    found = DominanceInformation((ids, edges))
    forward = nx.immediate_dominators(graph, ENTRY)
    backward = nx.immediate_dominators(graph.reverse(), EXIT)
    for name in (*ids, EXIT):
        assert found.immediate_dominator(name) == forward[name]
    for name in (*ids, ENTRY):
        assert found.immediate_post_dominator(name) == backward[name]
    assert found.immediate_dominator(ENTRY) is None and found.immediate_post_dominator(EXIT) is None


@pytest.mark.parametrize("seed", range(40))
def test_queries_equal_the_definition(seed):
    ids, edges = random_dag(seed, 9)
    graph = augmented(ids, edges)
    found = DominanceInformation((ids, edges))
    everything = (ENTRY, *ids, EXIT)
    for a in everything:
        without = graph.subgraph(set(everything) - {a})
        for b in everything:
            dominates = a in (b, ENTRY) or (b != ENTRY and not nx.has_path(without, ENTRY, b))
            post = a in (b, EXIT) or (b != EXIT and not nx.has_path(without, b, EXIT))
            assert found.dominates(a, b) == dominates == (a in found.dominators(b))
            assert found.post_dominates(a, b) == post == (a in found.post_dominators(b))
            assert found.strictly_dominates(a, b) == (dominates and a != b)
            assert found.strictly_post_dominates(a, b) == (post and a != b)
            assert (b in found.reachable(a)) == nx.has_path(graph, a, b) == (a in found.reaching(b))
            held = {n for n in ids if found.strictly_dominates(a, n) and found.post_dominates(b, n)}
            assert found.region_between(a, b) == held


def test_trees_are_the_immediate_dominators():
    found = DominanceInformation((("a", "b", "c", "d"), (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"))))
    assert found.dominator_tree["a"] == ("b", "c", "d")
    assert set(found.post_dominator_tree["d"]) == {"a", "b", "c"}
    assert found.dominator_tree[ENTRY] == ("a",) and found.post_dominator_tree[EXIT] == ("d",)


def test_a_chain_of_thousands_needs_no_recursion():
    ids = tuple(f"v{i}" for i in range(20_000))
    found = DominanceInformation((ids, tuple(itertools.pairwise(ids))))
    assert found.dominates("v0", "v19999") and not found.dominates("v19999", "v0")
    assert len(found.dominators("v19999")) == 20_001


def test_a_torch_graph_gives_its_inputs_as_edges():
    graph = TorchGraph(
        (
            GraphNode("x", "input"),
            GraphNode("y", "op", inputs=("x", "x")),
            GraphNode("z", "op", inputs=("y",)),
        )
    )
    assert DominanceInformation(graph).immediate_dominator("z") == "y"


@pytest.mark.parametrize(
    ("ids", "edges"),
    [
        (("a", "a"), ()),
        ((ENTRY,), ()),
        (("a",), (("a", "b"),)),
        (("a", "b"), (("a", "b"), ("b", "a"))),
        (("a",), (("a", "a"),)),
    ],
)
def test_bad_graphs_are_the_users_fault(ids, edges):
    with pytest.raises(InputFault):
        DominanceInformation((ids, edges))


def test_an_empty_graph_runs_from_entry_to_exit():
    assert DominanceInformation(((), ())).immediate_dominator(EXIT) == ENTRY

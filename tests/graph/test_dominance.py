"""Dominance against its definition (networkx) on random DAGs."""

import itertools
import random

import networkx as nx
import pytest

from tests.support.graph.cases import augmented, random_dag, series_parallel
from tests.support.seeds import in_blocks
from torchsplit_core.graph import ENTRY, EXIT, DominanceInformation, TorchGraph, immediate_dominators
from torchsplit_core.values import GraphNode, InputFault


@pytest.mark.parametrize("make", [random_dag, series_parallel])
@in_blocks("seed", range(160))
def test_immediate_dominators_equal_networkx(seed, make):
    ids, edges = make(seed, 30)
    graph = augmented(ids, edges)
    dominance = DominanceInformation((ids, edges))
    forward = nx.immediate_dominators(graph, ENTRY)
    backward = nx.immediate_dominators(graph.reverse(), EXIT)
    for name in (*ids, EXIT):
        assert dominance.immediate_dominator(name) == forward[name]
    for name in (*ids, ENTRY):
        assert dominance.immediate_post_dominator(name) == backward[name]
    assert immediate_dominators(ids, iter(edges)) == {name: forward[name] for name in ids}
    assert dominance.immediate_dominator(ENTRY) is None and dominance.immediate_post_dominator(EXIT) is None


@in_blocks("seed", range(40))
def test_queries_equal_the_definition(seed):
    ids, edges = random_dag(seed, 9)
    graph = augmented(ids, edges)
    dominance = DominanceInformation((ids, edges))
    everything = (ENTRY, *ids, EXIT)
    for a in everything:
        without = graph.subgraph(set(everything) - {a})
        for b in everything:
            dominates = a in (b, ENTRY) or (b != ENTRY and not nx.has_path(without, ENTRY, b))
            post = a in (b, EXIT) or (b != EXIT and not nx.has_path(without, b, EXIT))
            assert dominance.dominates(a, b) == dominates == (a in dominance.dominators(b))
            assert dominance.post_dominates(a, b) == post == (a in dominance.post_dominators(b))
            assert dominance.strictly_dominates(a, b) == (dominates and a != b)
            assert (b in dominance.reachable(a)) == nx.has_path(graph, a, b) == (a in dominance.reaching(b))
            held = {n for n in ids if dominance.strictly_dominates(a, n) and dominance.post_dominates(b, n)}
            assert dominance.region_between(a, b) == held


def test_trees_are_the_immediate_dominators():
    dominance = DominanceInformation((("a", "b", "c", "d"), (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"))))
    assert dominance.dominator_tree["a"] == ("b", "c", "d")
    assert set(dominance.post_dominator_tree["d"]) == {"a", "b", "c"}
    assert dominance.dominator_tree[ENTRY] == ("a",) and dominance.post_dominator_tree[EXIT] == ("d",)


def test_a_chain_of_thousands_needs_no_recursion():
    ids = tuple(f"v{i}" for i in range(20_000))
    dominance = DominanceInformation((ids, tuple(itertools.pairwise(ids))))
    assert dominance.dominates("v0", "v19999") and not dominance.dominates("v19999", "v0")
    assert len(dominance.dominators("v19999")) == 20_001


def test_ids_in_topological_order_keep_it_and_others_get_one():
    edges = (("a", "c"), ("b", "c"), ("c", "d"), ("c", "d"))
    assert DominanceInformation((tuple("bacd"), edges)).topological_ids == tuple("bacd")
    assert DominanceInformation((tuple("dcba"), edges)).topological_ids == tuple("bacd")


def far_readers(length, readers):
    """A chain, and values that each read both of its ends: every one meets over the whole chain."""
    chain = tuple(f"v{i}" for i in range(length))
    loose = tuple(f"r{i}" for i in range(readers))
    edges = tuple(itertools.pairwise(chain))
    return (*chain, *loose), (*edges, *((end, r) for r in loose for end in (chain[0], chain[-1])))


@pytest.mark.slow
@pytest.mark.repeated
def test_readers_of_both_ends_of_a_long_chain_meet_in_few_steps():
    """Step by step this would be 10^10 steps, which no limit of time for a test would allow."""
    ids, edges = far_readers(100_000, 100_000)
    dominance = DominanceInformation((ids, edges))
    assert {dominance.immediate_dominator(name) for name in ids[100_000:]} == {"v0"}
    assert dominance.immediate_post_dominator("v99999") == EXIT
    turned = DominanceInformation((ids, tuple((b, a) for a, b in edges)))
    assert {turned.immediate_post_dominator(name) for name in ids[100_000:]} == {"v0"}


@pytest.mark.parametrize("seed", range(20))
def test_long_ways_up_equal_networkx(seed):
    """Chains of hundreds of values, joined here and there: beyond what is walked step by step."""
    rng = random.Random(seed)
    ids = tuple(f"v{i}" for i in range(900))
    edges = {(ids[i - rng.choice((1, 1, 1, 1, 2))], ids[i]) for i in range(2, 900)}
    edges |= {tuple(ids[i] for i in sorted(rng.sample(range(900), 2))) for _ in range(12)}
    graph = augmented(ids, edges)
    forward, backward = nx.immediate_dominators(graph, ENTRY), nx.immediate_dominators(graph.reverse(), EXIT)
    dominance = DominanceInformation((ids, sorted(edges)))
    assert all(dominance.immediate_dominator(name) == forward[name] for name in ids)
    assert all(dominance.immediate_post_dominator(name) == backward[name] for name in ids)


def test_a_torch_graph_gives_its_inputs_as_edges():
    graph = TorchGraph((
        GraphNode("x", "input"),
        GraphNode("y", "op", inputs=("x", "x")),
        GraphNode("z", "op", inputs=("y",)),
    ))  # fmt: skip
    assert DominanceInformation(graph).immediate_dominator("z") == "y"


@pytest.mark.parametrize(("ids", "edges"), [
    (("a", "a"), ()), ((ENTRY,), ()), (("a",), (("a", "b"),)), (("a", "b"), (("a", "b"), ("b", "a"))),
    (("a",), (("a", "a"),)),
])  # fmt: skip
def test_bad_graphs_are_the_users_fault(ids, edges):
    with pytest.raises(InputFault):
        DominanceInformation((ids, edges))


def test_an_empty_graph_runs_from_entry_to_exit():
    assert DominanceInformation(((), ())).immediate_dominator(EXIT) == ENTRY

"""The region tree against the definition of a region, tried on every pair."""

from dataclasses import replace
from itertools import combinations

import networkx as nx
import pytest
from graph_cases import augmented, random_dag

from torchsplit_core.graph import ENTRY, EXIT, region_tree
from torchsplit_core.values import InternalFault


def regions_by_definition(ids, edges):
    """{(a, b): held} by deleting vertices, without any dominator algorithm."""
    graph = augmented(ids, edges)
    everything = (ENTRY, *ids, EXIT)

    def missed(removed, start, end):
        return (
            start == removed
            or end == removed
            or not nx.has_path(graph.subgraph(set(everything) - {removed}), start, end)
        )

    dominates = {(a, b): missed(a, ENTRY, b) for a in everything for b in everything}
    post = {(b, a): missed(b, a, EXIT) for a in everything for b in everything}
    return {
        (a, b): {n for n in ids if n != a and dominates[a, n] and post[b, n]}
        for a in everything
        for b in everything
        if a != b and dominates[a, b] and post[b, a]
    }


@pytest.mark.parametrize("seed", range(80))
def test_regions_are_those_of_the_definition(seed):
    ids, edges = random_dag(seed, 10)
    tree = region_tree((ids, edges))
    tree.verify()
    defined = regions_by_definition(ids, edges)
    # Every pair of a chain is a region, and every region is a pair of a chain.
    chains = [r.elements for r in tree.regions if r.kind == "chain"]
    pairs = {(a, b) for chain in chains for a, b in combinations(chain, 2)}
    assert pairs == set(defined)
    for region in tree.regions:
        assert set(region.ids) == defined[region.start, region.end]


@pytest.mark.parametrize("seed", range(80))
def test_cut_points_are_the_values_all_paths_pass(seed):
    ids, edges = random_dag(seed, 10)
    graph = augmented(ids, edges)
    expected = [
        v for v in ids
        if not nx.has_path(graph.subgraph(set(graph) - {v}), ENTRY, EXIT)
        and set(graph.successors(v)) != {EXIT}
    ]  # fmt: skip
    tree = region_tree((ids, edges))
    assert sorted(tree.cut_points) == sorted(expected)
    for earlier, later in zip(tree.cut_points, tree.cut_points[1:], strict=False):
        assert tree.before(earlier) < tree.before(later)


def test_a_diamond_in_a_chain_nests():
    edges = (("a", "b"), ("b", "x"), ("x", "y"), ("y", "c"), ("b", "z"), ("z", "c"), ("c", "d"))
    tree = region_tree((tuple("abxyzcd"), edges))
    assert tree.cut_points == ("a", "b", "c")
    inner = next(i for i, r in enumerate(tree.regions) if (r.start, r.end) == ("x", "y"))
    outer = tree.regions[tree.regions[inner].parent]
    assert (outer.start, outer.end, outer.ids) == ("b", "c", ("x", "z", "y", "c"))
    assert inner in tree.children(tree.regions[inner].parent)


def test_verify_notices_a_false_region():
    tree = region_tree((tuple("abcd"), (("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"))))
    wrong = replace(tree.regions[0], start="a", end="c", ids=("b",), parent=None)
    with pytest.raises(InternalFault):
        replace(tree, regions=(wrong,)).verify()
    with pytest.raises(InternalFault):
        replace(tree, cut_points=("b",)).verify()

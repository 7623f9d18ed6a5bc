"""The region tree against the definition of a region, tried on every pair."""

from dataclasses import replace
from itertools import combinations, pairwise

import networkx as nx
import pytest

from tests.support.graph.cases import (
    augmented,
    nested_diamonds,
    random_dag,
    regions_by_definition,
    series_parallel,
)
from tests.support.seeds import in_blocks
from torchsplit_core.graph import ENTRY, EXIT, region_tree
from torchsplit_core.values import InternalFault

CASES = [
    (make, seed, most) for make in (random_dag, series_parallel) for seed in range(170) for most in (7, 16)
]


@in_blocks("make, seed, most", CASES)
def test_regions_are_those_of_the_definition(make, seed, most):
    ids, edges = make(seed, most)
    tree = region_tree((ids, edges))
    tree.verify()
    defined = regions_by_definition(ids, edges)
    # Every pair of a chain is a region, and every region is a pair of a chain.
    chains = [r.elements for r in tree.regions if r.kind == "chain"]
    pairs = {(a, b) for chain in chains for a, b in combinations(chain, 2)}
    assert pairs == set(defined)
    for region in tree.regions:
        assert set(region.ids) == defined[region.start, region.end] and len(region.ids) == region.count
    # Every link of a longer chain that holds anything has a region of its own.
    links = {pair for chain in chains if len(chain) > 2 for pair in pairwise(chain) if defined[pair]}
    assert links == {r.elements for r in tree.regions if r.kind == "link"}
    assert len(tree.regions) == len(chains) + len(links)


@in_blocks("make, seed, most", CASES[::3])
def test_each_region_hangs_below_the_smallest_that_holds_it(make, seed, most):
    ids, edges = make(seed, most)
    tree = region_tree((ids, edges))
    held = [set(region.ids) for region in tree.regions]
    for i, region in enumerate(tree.regions):
        assert region.index == i
        if region.parent is None:
            assert i == 0 and region.depth == 0 and held[0] == set(ids)
            continue
        above = [j for j in range(len(held)) if j < i and held[i] <= held[j]]
        assert region.parent == min(above, key=lambda j: (len(held[j]), -j)) and region.parent < i
        assert region.depth == tree.regions[region.parent].depth + 1 == len(above)
    for i in range(len(held)):
        assert tree.children(i) == tuple(r.index for r in tree.regions if r.parent == i)
    for place, name in enumerate(tree.order):
        inner = tree.innermost[place]
        assert name in held[inner] and not any(name in held[j] for j in tree.children(inner))
    assert all(tree.position[a] < tree.position[b] for a, b in edges)


@in_blocks("make, seed, most", CASES[::4])
def test_cut_points_are_the_values_all_paths_pass(make, seed, most):
    ids, edges = make(seed, most)
    graph = augmented(ids, edges)
    expected = [
        v for v in ids
        if not nx.has_path(graph.subgraph(set(graph) - {v}), ENTRY, EXIT)
        and set(graph.successors(v)) != {EXIT}
    ]  # fmt: skip
    tree = region_tree((ids, edges))
    assert sorted(tree.cut_points) == sorted(expected)
    for point in tree.cut_points:
        assert tree.before(point) == {point, *nx.ancestors(graph, point)} - {ENTRY}
    for earlier, later in pairwise(tree.cut_points):
        assert tree.before(earlier) < tree.before(later)


def test_a_diamond_in_a_chain_nests():
    edges = (("a", "b"), ("b", "x"), ("x", "y"), ("y", "c"), ("b", "z"), ("z", "c"), ("c", "d"))
    tree = region_tree((tuple("abxyzcd"), edges))
    assert tree.cut_points == ("a", "b", "c")
    inner = next(i for i, r in enumerate(tree.regions) if (r.start, r.end) == ("x", "y"))
    outer = tree.regions[tree.regions[inner].parent]
    assert (outer.start, outer.end, outer.ids) == ("b", "c", ("x", "y", "z", "c"))
    assert inner in tree.children(tree.regions[inner].parent)
    assert tree.regions[0].elements == (ENTRY, *"abcd", EXIT)
    assert [r.end for r in tree.regions[1:3]] == ["a", "b"] and tree.regions[-1].end == "d"


def test_a_graph_without_values_is_one_empty_region():
    tree = region_tree(((), ()))
    tree.verify()
    assert [r.elements for r in tree.regions] == [(ENTRY, EXIT)] and tree.cut_points == ()
    assert tree.regions[0].ids == ()


@pytest.mark.slow
@pytest.mark.repeated
def test_fifty_thousand_nested_regions_need_neither_recursion_nor_room():
    depth = 50_000
    tree = region_tree(nested_diamonds(depth))
    tree.verify()
    assert tree.regions[0].count == 3 * depth
    deepest = max(tree.regions, key=lambda region: region.depth)
    assert deepest.depth == depth and deepest.elements == (f"a{depth - 1}", f"z{depth - 1}")
    assert deepest.ids == (f"y{depth - 1}", f"z{depth - 1}")


@pytest.mark.slow
@pytest.mark.repeated
def test_a_chain_of_a_hundred_thousand_values_is_all_cut_points():
    ids = tuple(f"v{i}" for i in range(100_000))
    tree = region_tree((ids, tuple(pairwise(ids))))
    tree.verify()
    assert tree.cut_points == ids[:-1] and len(tree.regions) == len(ids) + 1
    assert len(tree.before(ids[70_000])) == 70_001


def test_a_value_with_a_hundred_thousand_readers():
    middle = tuple(f"v{i}" for i in range(100_000))
    edges = tuple(("a", name) for name in middle) + tuple((name, "b") for name in middle)
    tree = region_tree((("a", *middle, "b"), edges))
    tree.verify()
    assert [r.elements for r in tree.regions] == [(ENTRY, "a", "b", EXIT), (ENTRY, "a"), ("a", "b")]
    assert tree.regions[2].count == 100_001 and tree.cut_points == ("a",)
    loose = region_tree((("a", *middle), edges[:100_000]))
    assert [r.count for r in loose.regions] == [100_001, 1, 100_000]


DIAMOND = (tuple("abcd"), (("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")))


@pytest.mark.parametrize(("row", "change", "fault"), [
    (0, {"count": 3}, "not the whole graph"),
    (2, {"parent": None}, "no parent"),
    (2, {"parent": 2}, "no parent"),
    (2, {"count": 9}, "not inside its parent"),
    (2, {"first": 0, "count": 3}, "overlaps a sibling"),
    (2, {"end": "d"}, "does not end"),
    (2, {"start": "b"}, "crossed by a -> b"),
    (1, {"start": "c"}, "crossed by <entry> -> a"),
    (3, {"end": EXIT, "first": 2, "parent": 2, "count": 1}, "crossed by"),
])  # fmt: skip
def test_verify_notices_a_false_region(row, change, fault):
    tree = region_tree(DIAMOND)
    assert [r.elements[0] + r.end for r in tree.regions] == [ENTRY + EXIT, ENTRY + "a", "ac", "cd"]
    regions = [replace(r, **(change if r.index == row else {})) for r in tree.regions]
    with pytest.raises(InternalFault, match=fault):
        replace(tree, regions=tuple(regions)).verify()


@pytest.mark.parametrize(("change", "fault"), [
    ({"cut_points": ("b",)}, "crossed by a read of c"),
    ({"cut_points": ("d",)}, "nothing reads"),
    ({"order": tuple("acbd")}, "c|b"),
    ({"order": tuple("abcc")}, "every value once"),
])  # fmt: skip
def test_verify_notices_a_false_cut_point_or_order(change, fault):
    with pytest.raises(InternalFault, match=fault):
        replace(region_tree(DIAMOND), **change).verify()

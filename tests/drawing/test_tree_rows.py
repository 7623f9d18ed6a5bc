"""Dominator trees as outlines, regions as an icicle."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchsplit_core.drawing.tree_rows import TreeRow, dominator_rows, icicle
from torchsplit_core.graph import ENTRY, EXIT, DominanceInformation, region_tree

steady = settings(max_examples=60, deadline=None, derandomize=True)


Dag = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]


def random_dag(seed: int) -> Dag:
    """A random DAG of up to 25 values, chains and side branches."""
    rng = random.Random(seed)
    names = [f"v{i}" for i in range(rng.randint(1, 25))]
    edges = [(a, b) for i, b in enumerate(names) for a in names[max(0, i - 4) : i] if rng.random() < 0.4]
    return tuple(names), tuple(edges)


@steady
@given(st.integers(0, 10**6), st.booleans())
def test_every_value_stands_once_below_its_parent(seed, post):
    dominance = DominanceInformation(random_dag(seed))
    rows = dominator_rows(dominance, post=post)
    place = {row.name: i for i, row in enumerate(rows)}
    assert sorted(place) == sorted(dominance.ids) and len(rows) == len(place)
    parent = dominance.immediate_post_dominator if post else dominance.immediate_dominator
    back = dominance.immediate_dominator if post else dominance.immediate_post_dominator
    for name, at in place.items():
        above = parent(name)
        if above not in place:
            assert rows[at].indent == 0
            continue
        assert place[above] < at
        # A link of its chain stands at the same indent, all else one further in.
        linked = back(above) == name
        assert rows[at].indent - rows[place[above]].indent == (0 if linked else 1)
        between = rows[place[above] + 1 : at]
        assert all(row.indent > rows[place[above]].indent for row in between)


def diamond() -> Dag:
    """in → embed → (query, key → scaled) → attention → out, and a dead end."""
    edges = [("in", "embed"), ("embed", "query"), ("embed", "key"), ("key", "scaled"), ("query", "attention"),
             ("scaled", "attention"), ("attention", "out")]  # fmt: skip
    return ("in", "embed", "query", "key", "scaled", "attention", "out"), tuple(edges)


def test_the_spine_of_a_chain_stays_upright():
    assert dominator_rows(DominanceInformation(diamond())) == tuple(
        TreeRow(*row)
        for row in (
            ("in", 0), ("embed", 0), ("query", 1), ("key", 1), ("scaled", 1), ("attention", 0), ("out", 0),
        )
    )  # fmt: skip
    rows = dominator_rows(DominanceInformation(diamond()), post=True)
    assert [row.name for row in rows if row.indent == 0] == ["out", "attention", "embed", "in"]
    assert {row.name for row in rows if row.indent == 1} == {"query", "scaled", "key"}


def test_a_chain_of_many_thousand_values_is_no_recursion():
    names = tuple(f"v{i}" for i in range(20_000))
    rows = dominator_rows(DominanceInformation((names, tuple(itertools.pairwise(names)))))
    assert [row.name for row in rows] == list(names) and {row.indent for row in rows} == {0}


@steady
@given(st.integers(0, 10**6), st.integers(1, 9))
def test_patches_are_nested_and_as_wide_as_their_weights(seed, most):
    tree = region_tree(random_dag(seed))
    rng = random.Random(seed)
    weights = {name: rng.choice((0.0, 0.5, 1.0, 3.0)) for name in tree.order}
    total = sum(weights.values())
    patches = icicle(tree, weights)
    assert [patch.region for patch in sorted(patches, key=lambda patch: patch.region)] == [
        i for i, region in enumerate(tree.regions) if region.count > 1
    ]
    by_region = {patch.region: patch for patch in patches}
    for patch in patches:
        region = tree.regions[patch.region]
        inside = (
            sum(weights[name] for name in region.ids) / total if total else region.count / len(tree.order)
        )
        assert patch.high - patch.low == pytest.approx(inside)
        assert 0 <= patch.low <= patch.high <= 1 + 1e-9
        if region.parent is None:
            assert patch.depth == 0
        else:
            above = by_region[region.parent]
            assert above.depth == patch.depth - 1
            assert above.low - 1e-9 <= patch.low and patch.high <= above.high + 1e-9
    for depth in {patch.depth for patch in patches}:
        row = [patch for patch in patches if patch.depth == depth]
        assert all(a.high <= b.low + 1e-9 for a, b in itertools.pairwise(row))
    few = icicle(tree, weights, most)
    assert set(few) <= set(patches) and len(few) == min(most, len(patches))
    widths = sorted((patch.high - patch.low for patch in patches), reverse=True)[: len(few)]
    assert sorted((patch.high - patch.low for patch in few), reverse=True) == pytest.approx(widths)
    kept = {patch.region for patch in few}
    assert all(tree.regions[i].parent is None or tree.regions[i].parent in kept for i in kept)


def test_the_whole_model_is_the_first_patch_and_zero_weights_weigh_the_same():
    names, _ = diamond()
    tree = region_tree(diamond())
    by_weight = icicle(tree, {"attention": 3.0, "in": 1.0})
    assert (by_weight[0].low, by_weight[0].high, by_weight[0].depth) == (0.0, 1.0, 0)
    flat = icicle(tree, dict.fromkeys(names, 0.0))
    assert flat == icicle(tree, {}) == icicle(tree, dict.fromkeys(names, 1.0))
    assert flat != by_weight


def test_entry_and_exit_are_no_rows():
    rows = dominator_rows(DominanceInformation((("a", "b"), ())))
    assert rows == (TreeRow("a", 0), TreeRow("b", 0))
    assert not {ENTRY, EXIT} & {
        row.name for row in dominator_rows(DominanceInformation(diamond()), post=True)
    }

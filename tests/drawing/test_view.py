"""What is drawn with which groups open: every node at home in one item, equal blocks folded."""

from itertools import groupby

import pytest
from hypothesis import given, settings

from tests.support.drawing.cases import TARGETS, encoder, item_of, labels, looks, model
from torchsplit_core.drawing.hierarchy import WIDEST, Hierarchy
from torchsplit_core.drawing.view import (
    INITIAL_ITEMS,
    build_view,
    groups_around,
    groups_to_open,
    initially_open,
)

RELU, LINEAR, ADD = TARGETS
LAYERS = "module:encoder.layers"
steady = settings(max_examples=60, deadline=None, derandomize=True)


@steady
@given(looks())
def test_every_node_is_at_home_in_exactly_one_closed_item_that_counts_its_operations(look):
    hierarchy, opened, unfolded = look
    shown = build_view(hierarchy, opened, unfolded)
    owners = {}
    for i, item in enumerate(shown.items):
        assert item.parent < i and (item.parent == -1 or shown.items[item.parent].open)
        assert bool(item.nodes) is not item.open
        for node in item.nodes:
            assert node not in owners
            owners[node] = i
    assert [owners[node] for node in range(len(hierarchy.nodes))] == list(shown.item_of)
    assert len({item.id for item in shown.items}) == len(shown.items)
    assert {i for i, item in enumerate(shown.items) if item.open} == {item.parent for item in shown.items} - {
        -1
    }
    for item in build_view(hierarchy, opened, unfolded).items:
        if item.kind in ("module", "run"):
            assert item.count == hierarchy.groups[item.id].count and item.expandable
            assert item.open or set(item.nodes) == set(hierarchy.members(item.id))
        elif item.kind != "fold":
            (node,) = item.nodes
            assert item.id == f"node:{hierarchy.nodes[node]}" and not item.expandable
            assert (item.kind == "op") is (hierarchy.nodes[node] not in ("x", "y"))


@steady
@given(looks())
def test_folds_are_the_longest_rows_of_equal_closed_neighbours(look):
    hierarchy, opened, unfolded = look
    groups = hierarchy.groups

    def key(part):
        """Equal for parts that fold with each other."""
        if isinstance(part, int) or not groups[part].path.rpartition(".")[2].isdecimal():
            return ("alone", part)
        return ("alone", part) if innermost(hierarchy, part) in opened else groups[part].shape

    shown = build_view(hierarchy, opened, unfolded)
    expected = set()
    for around in {Hierarchy.ROOT, *(item.id for item in shown.items if item.open)} - unfolded:
        rows = (tuple(row) for _, row in groupby(groups[around].parts, key))
        expected |= {row for row in rows if len(row) > 1}
    folds = [item for item in shown.items if item.kind == "fold"]
    assert {item.groups for item in folds} == expected
    for item in folds:
        assert item.repeats == len(item.groups)
        assert item.count == sum(groups[name].count for name in item.groups)
        assert list(item.nodes) == [node for name in item.groups for node in hierarchy.members(name)]


def innermost(hierarchy: Hierarchy, name: str) -> str:
    """The group that is all a group holds, all the way in."""
    parts = hierarchy.groups[name].parts
    return innermost(hierarchy, parts[0]) if len(parts) == 1 and isinstance(parts[0], str) else name


@steady
@given(looks())
def test_opening_any_item_opens_it_and_only_adds_boxes(look):
    hierarchy, opened, unfolded = look
    before = build_view(hierarchy, opened, unfolded)
    for item in before.items:
        if not item.expandable or item.open:
            continue
        after = build_view(hierarchy, opened | groups_to_open(hierarchy, item), unfolded)
        assert item.id not in {item.id for item in after.items if not item.open}
        assert len(after.items) > len(before.items) or (item.kind == "fold" and item.repeats == 2)
        first = after.items[after.item_of[item.nodes[0]]]
        assert first.id != item.id and (len(first.nodes) < len(item.nodes))


@steady
@given(looks())
def test_a_revealed_node_stands_alone(look):
    hierarchy, opened, unfolded = look
    for node, name in enumerate(hierarchy.nodes):
        shown = build_view(hierarchy, opened | groups_around(hierarchy, name), unfolded)
        assert shown.items[shown.item_of[node]].nodes == (node,)
    with pytest.raises(KeyError):
        groups_around(hierarchy, "no such node")


def test_an_encoder_is_first_seen_folded_and_its_lists_of_blocks_open():
    hierarchy = Hierarchy(encoder(12))
    shown = build_view(hierarchy, initially_open(hierarchy))
    assert labels(shown) == ["x", "embed", "add", "encoder.layers × 12", "head", "y"]
    assert item_of(shown, "embed").kind == "op" and item_of(shown, "embed").note == "relu"
    layers = item_of(shown, "encoder.layers × 12")
    assert (layers.id, layers.repeats, layers.count, layers.note) == (LAYERS, 12, 48, "linear × 48")
    opened = groups_to_open(hierarchy, item_of(build_view(hierarchy, ()), "encoder.layers × 12"))
    assert opened == {LAYERS, f"{LAYERS}.0"}
    assert labels(build_view(hierarchy, opened)) == [
        "x", "embed", "add", "encoder.layers", "  0", "    attention", "    feed", "  layers × 11", "head", "y",
    ]  # fmt: skip
    shown = build_view(hierarchy, {LAYERS, f"{LAYERS}.5"})
    assert labels(shown)[3:9] == [
        "encoder.layers", "  layers × 5", "  5", "    attention", "    feed", "  layers × 6",
    ]  # fmt: skip
    second = item_of(shown, "layers × 6")
    assert second.note == "6 to 11, 4 operations each" and second.count == 24
    assert groups_to_open(hierarchy, second) == {f"{LAYERS}.6"}


def test_unfolded_blocks_stand_singly():
    shown = build_view(Hierarchy(encoder(4)), {LAYERS}, {LAYERS})
    assert labels(shown)[4:8] == ["  0", "  1", "  2", "  3"]
    assert not [item for item in shown.items if item.kind == "fold"]


def test_a_block_that_differs_parts_its_neighbours():
    blocks = [(f"b.{i}", ADD if i == 2 else RELU) for i in range(5) for _ in range(2)]
    shown = build_view(Hierarchy(model([*blocks, ("c", RELU)])), {"module:b"})
    assert labels(shown) == ["x", "b", "  b × 2", "  add · 2", "  b × 2", "c", "y"]


def test_a_numbered_module_says_what_it_does():
    nodes = [("net.0", RELU), ("net.1", ADD), ("net.2", RELU), ("net.2", ADD), ("c", RELU)]
    shown = build_view(Hierarchy(model(nodes)), {"module:net"})
    relu, add, mixed = (label.strip() for label in labels(shown)[2:5])
    assert (relu, add, mixed) == ("relu · 0", "add · 1", "2")


def test_blocks_that_hold_nothing_but_a_module_open_and_close_as_one_box():
    hierarchy = Hierarchy(model([(f"b.{i}.only", RELU) for i in range(4) for _ in range(2)] + [("c", ADD)]))
    closed = build_view(hierarchy, {"module:b"})
    assert labels(closed) == ["x", "b", "  b × 4", "c", "y"]
    opened = groups_to_open(hierarchy, item_of(closed, "b × 4"))
    assert labels(build_view(hierarchy, {"module:b"} | opened)) == [
        "x", "b", "  0.only", "    relu", "    relu", "  b × 3", "c", "y",
    ]  # fmt: skip
    # What is left open of the outer of the two does not count.
    assert build_view(hierarchy, {"module:b", "module:b.0"}) == closed


def test_modules_that_only_pass_through_are_one_box_with_the_whole_path():
    hierarchy = Hierarchy(model([("a.b.c.d", RELU), ("a.b.c.d", ADD), ("e", RELU)]))
    assert labels(build_view(hierarchy, ())) == ["x", "a.b.c.d", "e", "y"]
    assert labels(build_view(hierarchy, {"module:a.b.c.d"}))[1:4] == ["a.b.c.d", "  relu", "  add"]


def test_a_module_of_one_operation_is_that_operation():
    item = item_of(build_view(Hierarchy(model([("a.norm", LINEAR), ("b", ADD)])), ()), "a.norm")
    assert (item.id, item.kind, item.note, item.expandable) == ("node:n0", "op", "linear", False)


def test_what_a_run_leaves_over_is_an_operation_by_its_own_name():
    shown = build_view(Hierarchy(model([("", RELU)] * (WIDEST + 1))), ())
    assert labels(shown) == ["x", f"{WIDEST} operations", "relu", "y"]
    assert shown.items[2].note == "[2, 8]"


@steady
@given(looks())
def test_the_first_view_is_small_unless_the_top_itself_is_not(look):
    hierarchy = look[0]
    closed, first = (len(build_view(hierarchy, groups).items) for groups in ((), initially_open(hierarchy)))
    assert closed <= first <= max(INITIAL_ITEMS + 1, closed)


def test_the_first_view_opens_the_module_that_holds_most_of_the_model():
    inside = [(f"net.part{i}", RELU) for i in range(5) for _ in range(2)]
    hierarchy = Hierarchy(model([("stem", ADD), *inside, ("head", ADD)]))
    assert initially_open(hierarchy) == {"module:net"}
    wide = [(f"net.part{i}", RELU) for i in range(INITIAL_ITEMS + 1) for _ in range(2)]
    assert initially_open(Hierarchy(model(wide))) == frozenset()
    even = Hierarchy(model([(f"part{i}", RELU) for i in range(3) for _ in range(2)]))
    assert initially_open(even) == frozenset()


def test_unknown_groups_are_passed_over():
    hierarchy = Hierarchy(encoder(2))
    assert build_view(hierarchy, {"module:gone"}, {"run:gone"}) == build_view(hierarchy, ())


def test_equal_runs_inside_of_a_block_are_no_blocks():
    hierarchy = Hierarchy(model([*[("b.0", RELU)] * 3 * WIDEST, ("c", ADD)]))
    shown = build_view(hierarchy, {"module:b.0"})
    assert labels(shown) == ["x", "b.0", *[f"  {WIDEST} operations"] * 3, "c", "y"]

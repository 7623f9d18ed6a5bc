"""A graph as nested groups: modules, runs of loose operations, what is equal and what is hidden."""

from collections import Counter

import pytest
from hypothesis import given, settings

from tests.support.drawing.cases import TARGETS, encoder, graphs, model
from torchsplit_core.drawing.hierarchy import DEEPEST, MAX_LOOSE, WIDEST, Hierarchy
from torchsplit_core.graph import TorchGraph
from torchsplit_core.values import GraphNode

RELU, LINEAR, ADD = TARGETS


def everywhere(hierarchy: Hierarchy) -> Counter[int | str]:
    """How often each part stands in a group."""
    return Counter(part for group in hierarchy.groups.values() for part in group.parts)


def test_groups_follow_module_paths_and_equal_blocks_have_equal_shapes():
    groups = Hierarchy(encoder(3)).groups
    assert [groups[part].path if isinstance(part, str) else part for part in groups[Hierarchy.ROOT].parts] == [
        0, "embed", 2, "encoder", "head", len(encoder(3).ops) + 1,
    ]  # fmt: skip
    assert groups["module:encoder"].parts == ("module:encoder.layers",)
    assert groups["module:encoder.layers"].parts == tuple(f"module:encoder.layers.{i}" for i in range(3))
    attention = groups["module:encoder.layers.1.attention"]
    assert attention.parent == "module:encoder.layers.1" and attention.count == 3
    assert groups[Hierarchy.ROOT].count == len(encoder(3).ops) and groups[Hierarchy.ROOT].parent is None
    shapes = [groups[f"module:encoder.layers.{i}"].shape for i in range(3)]
    assert len(set(shapes)) == 1
    assert groups["module:embed"].shape != groups["module:head"].shape


def test_a_module_that_comes_back_is_one_group():
    hierarchy = Hierarchy(model([("a", RELU), ("b", RELU), ("a", ADD)]))
    assert [hierarchy.nodes[i] for i in hierarchy.members("module:a")] == ["n0", "n2"]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(graphs())
def test_every_shown_node_and_every_group_stands_in_exactly_one_place(graph):
    hierarchy = Hierarchy(graph)
    shown = [node.id for node in graph.nodes if node.kind != "parameter"]
    assert list(hierarchy.nodes) == shown and [hierarchy.index[name] for name in shown] == list(
        range(len(shown))
    )
    assert everywhere(hierarchy) == Counter([*range(len(shown)), *hierarchy.groups.keys() - {Hierarchy.ROOT}])
    assert sorted(hierarchy.members(Hierarchy.ROOT)) == list(range(len(shown)))
    for name, group in hierarchy.groups.items():
        members = list(hierarchy.members(name))
        assert group.id == name and group.count == sum(shown[i] not in ("x", "y") for i in members)
        assert all(hierarchy.groups[p].parent == name for p in group.parts if isinstance(p, str))
        assert all(name in hierarchy.path_to(i) for i in members)
    for i, home in enumerate(hierarchy.group_of):
        path = hierarchy.path_to(i)
        assert i in hierarchy.groups[home].parts and path[-1] == home and path[0] == Hierarchy.ROOT
        assert [hierarchy.groups[group].parent for group in path] == [None, *path[:-1]]


def test_inputs_and_outputs_stand_at_the_top_whatever_module_they_name():
    nodes = (
        GraphNode("x", "input", module="a"),
        GraphNode("n", "op", target=RELU, inputs=("x",), module="a"),
        GraphNode("y", "output", inputs=("n",), module="a.b"),
    )
    hierarchy = Hierarchy(TorchGraph(nodes))
    assert hierarchy.group_of == [Hierarchy.ROOT, "module:a", Hierarchy.ROOT]
    assert hierarchy.operations == ("input", "relu", "output")


def test_weights_are_hidden_and_what_is_read_is_named_once():
    nodes = (
        GraphNode("x", "input"),
        *(GraphNode(kind, kind) for kind in ("parameter", "buffer", "constant")),
        GraphNode("n", "op", target=LINEAR, inputs=("x", "parameter", "x", "buffer", "constant")),
    )
    hierarchy = Hierarchy(TorchGraph(nodes))
    assert hierarchy.nodes == ("x", "n") and hierarchy.reads == ((), (0,))


def test_an_operation_called_output_is_an_operation():
    group = Hierarchy(model([("a", "mine.output"), ("a", "mine.input"), ("a", RELU)])).groups["module:a"]
    assert group.count == 3


@pytest.mark.parametrize(("count", "joined"), [(MAX_LOOSE, False), (MAX_LOOSE + 1, True)])
def test_many_loose_operations_beside_modules_are_joined_to_a_run(count, joined):
    hierarchy = Hierarchy(model([("a", RELU), *[("", ADD)] * count, ("b", RELU)]))
    parts = hierarchy.groups[Hierarchy.ROOT].parts
    assert len(parts) == (5 if joined else 4 + count)
    runs = [group for group in hierarchy.groups.values() if group.kind == "run"]
    assert [run.count for run in runs] == ([count] if joined else [])


@pytest.mark.parametrize(("count", "parts"), [(WIDEST, WIDEST), (WIDEST + 1, 2)])
def test_without_modules_operations_stand_alone_up_to_the_widest_group(count, parts):
    hierarchy = Hierarchy(model([("", RELU)] * count))
    assert len(hierarchy.groups[Hierarchy.ROOT].parts) == parts + 2


@pytest.mark.parametrize(("count", "levels"), [(1_000, 2), (30_000, 3)])
def test_runs_of_runs_keep_every_group_narrow_and_are_windows_of_the_order(count, levels):
    hierarchy = Hierarchy(model([("", RELU)] * count))
    assert max(len(group.parts) for group in hierarchy.groups.values()) <= WIDEST + 2
    assert max(len(hierarchy.path_to(i)) for i in range(count)) == levels
    for group in hierarchy.groups.values():
        members = list(hierarchy.members(group.id))
        assert members == list(range(members[0], members[0] + len(members)))
    assert set(everywhere(hierarchy).values()) == {1}


def test_two_runs_never_share_an_id_however_names_are_spelt():
    names = [("a", [f"b:{i}" for i in range(MAX_LOOSE + 1)]), ("a:b", [str(i) for i in range(MAX_LOOSE + 1)])]
    nodes = [GraphNode(n, "op", target=RELU, module=module) for module, ids in names for n in ids]
    nodes += [GraphNode(f"end{m}", "op", target=RELU, module=f"{m}.in") for m in ("a", "a:b")]
    hierarchy = Hierarchy(TorchGraph(tuple(nodes)))
    assert sorted(hierarchy.members(Hierarchy.ROOT)) == list(range(len(nodes)))


@pytest.mark.parametrize("path", [".", "..", ".x", "x.", "a..b", "....a"])
def test_empty_names_in_a_path_do_no_harm(path):
    hierarchy = Hierarchy(model([(path, RELU), ("x", ADD), ("", ADD)]))
    assert sorted(hierarchy.members(Hierarchy.ROOT)) == list(range(5))
    assert hierarchy.groups[Hierarchy.ROOT].count == 3
    assert all(group.parent is not None for name, group in hierarchy.groups.items() if name != Hierarchy.ROOT)


def test_a_hostile_depth_is_cut():
    deep = ".".join(["m"] * 100_000)
    hierarchy = Hierarchy(model([(deep, RELU), (f"{deep}.more", ADD), ("m", ADD)]))
    assert max(len(hierarchy.path_to(i)) for i in range(5)) == DEEPEST + 1
    assert {hierarchy.groups[hierarchy.group_of[i]].path for i in (1, 2)} == {deep, f"{deep}.more"}


@pytest.mark.parametrize("other", [
    [("b.1.q", LINEAR), ("b.1", ADD)],  # another operation
    [("b.1.k", LINEAR), ("b.1", RELU)],  # another name inside
    [("b.1.q", LINEAR), ("b.1", RELU), ("b.1", RELU)],  # one more
    [("b.1", LINEAR), ("b.1", RELU)],  # another nesting
])  # fmt: skip
def test_a_block_that_differs_has_another_shape(other):
    block = [("b.0.q", LINEAR), ("b.0", RELU)]
    groups = Hierarchy(model([*block, *other])).groups
    assert groups["module:b.0"].shape != groups["module:b.1"].shape
    equal = Hierarchy(model([*block, ("b.1.q", LINEAR), ("b.1", RELU)])).groups
    assert equal["module:b.0"].shape == equal["module:b.1"].shape


def test_blocks_on_other_tensor_shapes_or_types_are_not_equal():
    def block(i, shape, dtype):
        return GraphNode(f"n{i}", "op", target=RELU, module=f"b.{i}", shape=shape, dtype=dtype)

    found = (block(0, (2, 8), "float32"), block(1, (2, 9), "float32"), block(2, (2, 8), "float16"))
    groups = Hierarchy(TorchGraph(found)).groups
    assert len({groups[f"module:b.{i}"].shape for i in range(3)}) == 3


def test_a_summary_names_the_commonest_operations():
    hierarchy = Hierarchy(model([("a", RELU), ("a", LINEAR), ("a.b", LINEAR), ("a", ADD)]))
    assert hierarchy.summary("module:a") == "linear × 2, relu, add"
    assert hierarchy.summary("module:a", 1) == "linear × 2, …"

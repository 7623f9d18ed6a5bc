"""Graphs with modules, drawn at random and by hand, for the drawing tests."""

import random
from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.view import View, ViewItem
from torchsplit_core.graph import TorchGraph
from torchsplit_core.values import GraphNode

PATHS = ("", "", "embed", "head.out", "layers.7.inner", "deep.er.still", ".", "odd..name", "layers")
TARGETS = ("aten.relu.default", "aten.linear.default", "aten.add.Tensor")


def model(operations: Iterable[tuple[str, str]], reads: Sequence[Sequence[int]] = ()) -> TorchGraph:
    """Operations (module, target) named n0, n1, … of 4 × their place bytes; each reads the one before.

    `reads[i]` are places of further values that operation i reads. An input `x` comes first, an
    output `y` last, and each linear reads a weight of its own.
    """
    nodes = [GraphNode("x", "input", shape=(2, 8), dtype="float32", output_bytes=64)]
    last = "x"
    for i, (module, target) in enumerate(operations):
        inputs = [last, *(f"n{place}" for place in (reads[i] if i < len(reads) else ()))]
        if "linear" in target:
            nodes.append(GraphNode(f"w{i}", "parameter", shape=(8, 8), output_bytes=256))
            inputs.append(f"w{i}")
        last = f"n{i}"
        nodes.append(
            GraphNode(last, "op", "call_function", target, tuple(inputs), module, (2, 8), "float32", 4 * i)
        )
    return TorchGraph((*nodes, GraphNode("y", "output", inputs=(last,))))


def encoder(layers: int = 12) -> TorchGraph:
    """An embedding, `layers` equal blocks of two modules, a head; a mask that every block reads."""
    operations = [("embed", TARGETS[0]), ("", TARGETS[2])]
    reads: list[list[int]] = [[], []]
    for i in range(layers):
        for below in ("attention.query", "attention.query", "attention", "feed"):
            operations.append((f"encoder.layers.{i}.{below}", TARGETS[1]))
            reads.append([1] if below == "attention" else [])
    operations.append(("head", TARGETS[1]))
    return model(operations, reads)


BLOCK = st.lists(
    st.tuples(st.sampled_from(("", ".a", ".b.c")), st.sampled_from(TARGETS)), min_size=1, max_size=3
)
LOOSE = st.tuples(st.sampled_from(PATHS), st.lists(st.sampled_from(TARGETS), max_size=9))
LISTS = st.tuples(BLOCK, BLOCK, st.integers(1, 5), st.integers(1, 5))


@st.composite
def graphs(draw: st.DrawFn) -> TorchGraph:
    """Loose operations, modules, lists of equal and of unequal blocks; reads skip forwards and back."""
    operations: list[tuple[str, str]] = []
    for place, piece in enumerate(draw(st.lists(st.one_of(LOOSE, LISTS), min_size=1, max_size=4))):
        if len(piece) == 2:
            operations += [(piece[0], target) for target in piece[1]]
        else:
            first, second, count, other_from = piece
            for i in range(count):
                for below, target in second if i >= other_from else first:
                    operations.append((f"list{place}.{i}{below}", target))
    rng = random.Random(draw(st.integers(0, 1000)))
    count = len(operations)
    reads = [[rng.randrange(count) for _ in range(rng.choice((0, 0, 0, 1, 2)))] for _ in range(count)]
    return model(operations, reads)


@st.composite
def looks(draw: st.DrawFn) -> tuple[Hierarchy, frozenset[str], frozenset[str]]:
    """A hierarchy, groups that are open and groups that are unfolded, some of them not there."""
    hierarchy = Hierarchy(draw(graphs()))
    groups = st.sampled_from([*sorted(hierarchy.groups), "module:gone"])
    opened = draw(st.one_of(st.frozensets(groups), st.just(frozenset(hierarchy.groups))))
    return hierarchy, opened, draw(st.frozensets(groups, max_size=3))


def labels(shown: View) -> list[str]:
    """Labels of the items, indented by how deep they stand."""
    depth: list[int] = []
    for item in shown.items:
        depth.append(0 if item.parent < 0 else depth[item.parent] + 1)
    return ["  " * deep + item.label for deep, item in zip(depth, shown.items, strict=True)]


def item_of(shown: View, label: str) -> ViewItem:
    """The item with this label; there is one."""
    (found,) = (item for item in shown.items if item.label == label)
    return found

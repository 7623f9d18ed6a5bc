"""The picture of a view: boxes inside boxes, lines from box to box, stubs for what everyone reads."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings

from tests.support.drawing.cases import TARGETS, encoder, looks, model
from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.layered_layout import ROW_GAP
from torchsplit_core.drawing.scene import (
    CAREFUL_LAYOUT_ITEMS,
    MARGIN,
    STUB_MIN_READERS,
    TITLE,
    WIDEST,
    Box,
    Scene,
    layout_scene,
)
from torchsplit_core.drawing.view import build_view
from torchsplit_core.graph import TorchGraph
from torchsplit_core.values import GraphNode

RELU, LINEAR, ADD = TARGETS
NEAR = 0.01
steady = settings(max_examples=60, deadline=None, derandomize=True)


def drawn(look) -> tuple[Hierarchy, Scene]:
    hierarchy, opened, unfolded = look
    return hierarchy, layout_scene(hierarchy, build_view(hierarchy, opened, unfolded))


def overlap(a: Box, b: Box) -> bool:
    return (
        min(a.x + a.width, b.x + b.width) - max(a.x, b.x) > NEAR
        and min(a.y + a.height, b.y + b.height) - max(a.y, b.y) > NEAR
    )


def on_edge(point: tuple[float, float], box: Box, *edges: str) -> bool:
    """It lies on the upper or the lower edge of a box, not only beside."""
    x, y = point
    heights = {"top": box.y, "bottom": box.y + box.height}
    return box.x - NEAR <= x <= box.x + box.width + NEAR and any(abs(y - heights[e]) < NEAR for e in edges)


def around(scene: Scene, i: int) -> list[int]:
    """The open items around an item."""
    found = []
    while (i := scene.view.items[i].parent) >= 0:
        found.append(i)
    return found


@steady
@given(looks())
def test_items_stand_inside_their_frames_and_beside_each_other(look):
    _, scene = drawn(look)
    items, boxes = scene.view.items, scene.boxes
    spare = {}
    for i, item in enumerate(items):
        frame = (
            boxes[item.parent]
            if item.parent >= 0
            else Box(-MARGIN, -TITLE, scene.width + 2 * MARGIN, scene.height + TITLE + MARGIN)
        )
        inside = [boxes[i], *(stub.box for stub in scene.stubs if stub.reader == i)]
        for box in inside:
            assert box.x >= frame.x + MARGIN - NEAR
            assert box.x + box.width <= frame.x + frame.width - MARGIN + NEAR
            assert box.y >= frame.y + TITLE - NEAR
            assert box.y + box.height <= frame.y + frame.height - MARGIN + NEAR
            if item.parent >= 0:
                low, high = spare.get(item.parent, (box.y, box.y))
                spare[item.parent] = min(low, box.y), max(high, box.y + box.height)
    for i, (low, high) in spare.items():
        # At most the row of the ports is between.
        assert low - boxes[i].y - TITLE <= ROW_GAP + NEAR
        assert boxes[i].y + boxes[i].height - MARGIN - high <= ROW_GAP + NEAR
    for level in {item.parent for item in items}:
        beside = [boxes[i] for i, item in enumerate(items) if item.parent == level]
        beside += [stub.box for stub in scene.stubs if items[stub.reader].parent == level]
        assert not [pair for pair in combinations(beside, 2) if overlap(*pair)]


@steady
@given(looks())
def test_edges_are_those_of_the_graph_with_the_bytes_of_the_distinct_values(look):
    hierarchy, scene = drawn(look)
    graph, home = hierarchy.graph, scene.view.item_of
    values = {}
    for name in hierarchy.nodes:
        for read in graph.by_id[name].inputs:
            if read in hierarchy.index and home[hierarchy.index[read]] != home[hierarchy.index[name]]:
                pair = home[hierarchy.index[read]], home[hierarchy.index[name]]
                values.setdefault(pair, set()).add(read)
    assert scene.edges == {
        pair: sum(graph.by_id[read].output_bytes for read in reads) for pair, reads in values.items()
    }


@steady
@given(looks())
def test_every_line_goes_from_a_box_to_a_box_and_through_none(look):
    _, scene = drawn(look)
    items, boxes = scene.view.items, scene.boxes
    closed = [boxes[i] for i, item in enumerate(items) if not item.open]
    for line in scene.lines:
        same = [other for other in scene.lines if other.source == line.source and other is not line]
        begin, end = line.points[0], line.points[-1]
        assert line.targets and len(set(line.points)) == len(line.points) >= 2
        assert (
            on_edge(begin, boxes[line.source], "top", "bottom")
            or any(on_edge(begin, stub.box, "bottom") for stub in scene.stubs if stub.source == line.source)
            or any(begin == other.points[-1] and not other.arrow for other in same)
        )
        # A piece without an arrow goes on where others begin, and they reach the same targets.
        followers = [other for other in same if other.points[0] == end]
        reached = [target for other in followers for target in other.targets]
        assert bool(followers) is not line.arrow and (line.arrow or set(reached) >= set(line.targets))
        # A frame whose readers all have stubs is where an arrow may end too.
        ends = {*line.targets, *(frame for target in line.targets for frame in around(scene, target))}
        assert not line.arrow or any(on_edge(end, boxes[i], "top", "bottom") for i in ends)
        for (x, y), (a, b) in pairwise(line.points):
            piece = Box(min(x, a) - 2 * NEAR, min(y, b), abs(a - x) + 4 * NEAR, abs(b - y))
            assert not [box for box in closed if overlap(piece, box)]
    assert carried(scene) == sorted(scene.edges)


def carried(scene: Scene) -> list[tuple[int, int]]:
    """Every (source, target) once for each arrow of the source that ends at the box of the target."""
    return sorted(
        (line.source, target)
        for line in scene.lines
        for target in line.targets
        if line.arrow and on_edge(line.points[-1], scene.boxes[target], "top", "bottom")
    )


@steady
@given(looks())
def test_a_scene_looks_the_same_again(look):
    assert drawn(look)[1] == drawn(look)[1]


def readers_of_one(count: int) -> Scene:
    """A mask that a chain of `count` operations reads."""
    graph = model([(f"m{i}", RELU) for i in range(count + 1)], [[], *[[0]] * count])
    hierarchy = Hierarchy(graph)
    return layout_scene(hierarchy, build_view(hierarchy, ()))


def test_what_many_read_is_a_stub_at_each_reader_and_no_line():
    few, many = readers_of_one(STUB_MIN_READERS - 1), readers_of_one(STUB_MIN_READERS)
    assert not few.stubs and len(few.edges) == len(few.lines)
    mask = [item.label for item in many.view.items].index("m0")
    assert [stub.reader for stub in many.stubs] == [target for source, target in many.edges if source == mask]
    assert len(many.stubs) == STUB_MIN_READERS and {stub.label for stub in many.stubs} == {"m0"}
    for stub in many.stubs:
        (line,) = (line for line in many.lines if line.source == mask and line.targets == (stub.reader,))
        assert on_edge(line.points[0], stub.box, "bottom")
        assert on_edge(line.points[-1], many.boxes[stub.reader], "top")


def test_what_many_inside_of_an_open_module_read_is_a_stub_at_each_of_them():
    for count in (STUB_MIN_READERS - 2, STUB_MIN_READERS - 1):
        hierarchy = Hierarchy(model([("a", RELU), *[("m", ADD)] * (count + 1)], [[], [], *[[0]] * count]))
        scene = layout_scene(hierarchy, build_view(hierarchy, {"module:m"}))
        # The first inside reads the value too: as what stands before it.
        assert carried(scene) == sorted(scene.edges)
        assert len(scene.stubs) == (count + 1 if count + 1 >= STUB_MIN_READERS else 0)
        frame = next(box for item, box in zip(scene.view.items, scene.boxes, strict=True) if item.open)
        assert all(stub.box.y > frame.y for stub in scene.stubs)


def test_a_line_into_an_open_module_passes_one_port_and_reaches_all_who_read():
    graph = model([("a", RELU), ("b", ADD), ("b", ADD), ("c", ADD)], [[], [], [0], []])
    hierarchy = Hierarchy(graph)
    scene = layout_scene(hierarchy, build_view(hierarchy, {"module:b"}))
    labels = [item.label for item in scene.view.items]
    a, b = labels.index("a"), labels.index("b")
    into = [line for line in scene.lines if line.source == a and not line.arrow]
    inner, outer = into
    frame = scene.boxes[b]
    assert on_edge(inner.points[0], frame, "top") and on_edge(outer.points[-1], frame, "top")
    assert outer.points[-1] == inner.points[0] and set(outer.targets) == {b + 1, b + 2}
    (leaving,) = (line for line in scene.lines if line.source == b + 2 and not line.arrow)
    assert on_edge(leaving.points[-1], frame, "bottom")
    (arriving,) = (line for line in scene.lines if line.source == b + 2 and line.arrow)
    assert arriving.points[0] == leaving.points[-1]


def test_a_value_that_goes_back_up_into_an_open_module_is_a_stub_there():
    hierarchy = Hierarchy(model([("a", RELU), ("a", RELU), ("b", ADD), ("a", ADD), ("c", ADD)]))
    closed = layout_scene(hierarchy, build_view(hierarchy, ()))
    a, b = (next(i for i, item in enumerate(closed.view.items) if item.label == name) for name in "ab")
    (upward,) = (line for line in closed.lines if line.source == b)
    assert not closed.stubs and upward.points[0][1] > upward.points[-1][1] and upward.targets == (a,)
    opened = layout_scene(hierarchy, build_view(hierarchy, {"module:a"}))
    b = next(i for i, item in enumerate(opened.view.items) if item.label == "b")
    (stub,) = opened.stubs
    assert (stub.source, stub.reader, stub.label) == (b, a, "b") and (b, a + 3) in opened.edges
    assert stub.box.y + stub.box.height < opened.boxes[a].y
    assert all(line.points[0][1] < line.points[-1][1] for line in opened.lines)


def chain(name: str, count: int, *inputs: str) -> list[GraphNode]:
    """Operations of module m one after the other; the first reads `inputs`."""
    return [
        GraphNode(f"{name}{i}", "op", target=RELU, inputs=(f"{name}{i - 1}",) if i else inputs, module="m")
        for i in range(count)
    ]


@pytest.mark.parametrize("inside", [
    [*chain("m", 1, "x"), *chain("dead", 4, "m0"), *chain("end", 1, "m0")],
    [*chain("source", 4), GraphNode("end0", "op", target=ADD, inputs=("x", "source3"), module="m")],
])  # fmt: skip
def test_dead_ends_and_sources_of_an_open_module_stay_below_its_title_and_in_its_frame(inside):
    nodes = (GraphNode("x", "input"), *inside, GraphNode("y", "output", inputs=("end0",)))
    hierarchy = Hierarchy(TorchGraph(nodes))
    scene = layout_scene(hierarchy, build_view(hierarchy, hierarchy.groups))
    frame = scene.boxes[1]
    assert scene.view.items[1].open
    for item, box in zip(scene.view.items, scene.boxes, strict=True):
        if item.parent == 1:
            assert box.y >= frame.y + TITLE and box.y + box.height <= frame.y + frame.height - MARGIN


@pytest.mark.repeated
@pytest.mark.slow
def test_a_scene_of_many_boxes_is_drawn_in_haste_and_keeps_its_promises():
    hierarchy = Hierarchy(encoder(CAREFUL_LAYOUT_ITEMS // 5))
    scene = layout_scene(hierarchy, build_view(hierarchy, hierarchy.groups))
    assert len(scene.boxes) > CAREFUL_LAYOUT_ITEMS
    assert carried(scene) == sorted(scene.edges)


def test_long_names_are_no_wider_than_the_widest_box():
    hierarchy = Hierarchy(model([("a" * 10_000, RELU), ("b", ADD)]))
    assert max(box.width for box in layout_scene(hierarchy, build_view(hierarchy, ())).boxes) == WIDEST


def test_an_encoder_opened_in_full_is_taller_than_wide():
    hierarchy = Hierarchy(encoder(6))
    scene = layout_scene(hierarchy, build_view(hierarchy, hierarchy.groups))
    assert len(scene.boxes) == len(scene.view.items) > 6 * 6
    assert scene.height > 3 * scene.width

"""A graph as a file: what is drawn open, Graphviz texts of the view, and what is refused."""

from xml.etree import ElementTree

import pydot
import pytest

from tests.support.drawing.cases import encoder, model
from torchsplit_core.drawing.export import render_drawing
from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.scene import layout_scene
from torchsplit_core.drawing.scene_dot import scene_dot
from torchsplit_core.drawing.view import build_view, initially_open
from torchsplit_core.graph import TorchGraph, annotate_with_profiling_data
from torchsplit_core.values import GraphNode, InputFault, NodeProfile, Profile

GRAPH = encoder(4)


def labels(text: str) -> set[str]:
    return {
        element.text or ""
        for element in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")
    }


def parsed(text: str) -> tuple[pydot.Dot, list[pydot.Node], list[pydot.Subgraph]]:
    """The graph, all its nodes and all its clusters, however deep."""
    (dot,) = pydot.graph_from_dot_data(text)
    nodes, clusters, stack = [], [], [dot]
    while stack:
        inner = stack.pop()
        nodes += inner.get_nodes()
        clusters += inner.get_subgraphs()
        stack += inner.get_subgraphs()
    return dot, nodes, clusters


def test_the_first_view_is_drawn_unless_modules_are_named():
    assert any("× 4" in label for label in labels(render_drawing(GRAPH, ".svg")))
    opened = labels(render_drawing(GRAPH, ".svg", opened=("encoder.layers.1.attention",)))
    assert {"1", "attention", "query"} <= opened and any("× 2" in label for label in opened)


@pytest.mark.slow
def test_all_of_them_can_be_open():
    operations = [node for node in GRAPH.nodes if node.kind in ("op", "input", "output")]
    dot, nodes, _ = parsed(render_drawing(GRAPH, ".dot", opened=("all",)))
    assert len(nodes) == len(operations)
    shown = {node.id for node in operations}
    assert len(dot.get_edges()) == sum(
        len({read for read in node.inputs if read in shown}) for node in operations
    )


def test_a_view_for_graphviz_has_a_cluster_for_every_open_module_and_the_bytes_on_its_edges():
    profile = Profile("s", "", nodes=(NodeProfile("n2", 0.25, 0, 0), NodeProfile("n3", 0.5, 0, 0)))
    hierarchy = Hierarchy(annotate_with_profiling_data(GRAPH, profile))
    scene = layout_scene(
        hierarchy, build_view(hierarchy, initially_open(hierarchy) | {"module:encoder.layers"})
    )
    text = scene_dot(hierarchy, scene)
    dot, nodes, clusters = parsed(text)
    items = scene.view.items
    assert len(nodes) == sum(not item.open for item in items)
    assert len(clusters) == sum(item.open for item in items) >= 1
    assert len(dot.get_edges()) == len(scene.edges)
    assert "75.0 % of the time" in text and "box3d" in text
    assert f"{next(iter(scene.edges.values()))} B" in text


@pytest.mark.parametrize("what", ["dominators", "post-dominators", "regions"])
def test_the_trees_are_files_for_graphviz(what):
    _, nodes, _ = parsed(render_drawing(GRAPH, ".dot", what))
    assert len(nodes) > 10


@pytest.mark.parametrize("what", ["dominators", "post-dominators", "regions"])
def test_a_step_of_the_preparation_is_left_out_of_the_trees(what):
    graph = TorchGraph((
        GraphNode("x", "input"), GraphNode("w", "parameter"),
        GraphNode("a", "op", target="aten.mul.Tensor", inputs=("x", "w")),
        GraphNode("v", "op", target="aten.view.default", inputs=("a",)),
        GraphNode("y", "output", inputs=("v",)),
    ))  # fmt: skip

    def names(*without):
        _, nodes, _ = parsed(render_drawing(graph, ".dot", what, without=without))
        return {node.get("label").strip('"') for node in nodes if node.get("label")} - {"<entry>", "<exit>"}

    assert names() == {"x", "a"} and names("weights") == {"x", "w", "a"}
    assert names("aliases") == {"x", "a", "v"}


@pytest.mark.parametrize(("what", "without", "said"), [
    ("regions", "inline", "unknown preparation step 'inline'. Known steps: dead, constants"),
    ("dataflow", "dead", "drawn as traced"),
])  # fmt: skip
def test_a_step_that_cannot_be_left_out_is_one_message(what, without, said):
    with pytest.raises(InputFault, match=said):
        render_drawing(GRAPH, ".dot", what, without=(without,))


@pytest.mark.parametrize(("suffix", "what", "opened", "said"), [
    (".png", "dataflow", (), "svg or .dot"),
    ("", "dataflow", (), "names a file without a suffix"),
    (".dot", "everything", (), "dominators"),
    (".svg", "regions", (), "Write a .dot file"),
    (".svg", "dataflow", ("encoder.gone",), "encoder.gone"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_one_message(suffix, what, opened, said):
    with pytest.raises(InputFault, match=said):
        render_drawing(GRAPH, suffix, what, opened)


def test_more_boxes_than_a_picture_holds_are_refused(monkeypatch):
    monkeypatch.setattr("torchsplit_core.drawing.export.MOST_ITEMS", 20)
    with pytest.raises(InputFault, match=r"makes a drawing of 3. boxes, more than 20"):
        render_drawing(model([("", "aten.relu.default")] * 30), ".svg", opened=("all",))

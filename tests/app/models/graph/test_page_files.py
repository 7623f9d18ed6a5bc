"""What leaves the Graph page as files, and the page on names and sizes that were chosen to break it."""

import json
import xml.etree.ElementTree as ElementTree

import pydot
import pytest

from app.components.saving import file_name
from tests.support.app.graphs import NAME, encoder, loose, selected, stored, tab, timed
from tests.support.app.page import said
from torchsplit_core.files import read_text
from torchsplit_core.graph import TorchGraph
from torchsplit_core.values import GraphNode

pytestmark = pytest.mark.slow


def test_files_hold_the_graph(page, workspace, files):
    stored(workspace, encoder(4), timed(encoder(4)))
    tab(page("graph", workspace), "Export")
    _, graph = read_text(files[f"{file_name(NAME)}.graph.json"]().decode())
    assert graph == encoder(4)
    for name, wanted in (
        ("dataflow", 16), ("dominators", 17), ("post-dominators", 17), ("regions", 15), ("drawing", 5),
    ):  # fmt: skip
        (dot,) = pydot.graph_from_dot_data(files[f"{file_name(NAME)}.{name}.dot"]())
        nodes, stack = len(dot.get_nodes()), list(dot.get_subgraphs())
        while stack:
            inner = stack.pop()
            nodes += len(inner.get_nodes())
            stack += inner.get_subgraphs()
        assert nodes == wanted, name
    root = ElementTree.fromstring(files[f"{file_name(NAME)}.svg"]())
    assert root.tag.endswith("svg") and "layers × 4" in "".join(root.itertext())


@pytest.mark.repeated
def test_a_graph_of_twenty_thousand_nodes_without_modules_opens(page, workspace, mounted):
    stored(workspace, loose(20_000))
    opened = page("graph", workspace)
    assert not opened.error and "20 002 nodes" in said(opened).replace("\u202f", " ")
    data = mounted[0]["data"]
    assert len(data["scene"]["items"]["id"]) < 250 and len(data["nodes"]["id"]) == 20_002
    assert len(json.dumps(data)) < 20_000_000


@pytest.mark.parametrize(
    "name", ["</script><img src=x onerror=1>", "two\nlines", "\x00\x1b", "$x$ `c` :red[x]", "..", "x" * 190]
)
def test_a_hostile_name_opens_in_every_tab(name, page, workspace, mounted, files):
    nodes = [GraphNode(name, "input", shape=(2,), dtype="float32")]
    for i in range(3):
        reads = (nodes[-1].id,)
        nodes.append(GraphNode(f"{name}{i}", "op", name, name, reads, name, (2,), "float32", 8, name, name))
    stored(workspace, TorchGraph((*nodes, GraphNode("out", "output", inputs=(f"{name}2",))), notes=(name,)))
    selected(workspace, node=f"{name}1", item=f"node:{name}1")
    opened = page("graph", workspace)
    assert mounted[-1]["data"]["nodes"]["id"][:2] == [name, f"{name}0"]
    assert not any("<img" in element.proto.body for element in opened.get("html"))
    for title in ("Tables", "Compare", "Export"):
        assert not tab(opened, title).error
    ElementTree.fromstring(files[f"{file_name(NAME)}.svg"]())
    assert all(pydot.graph_from_dot_data(make()) for file, make in files.items() if file.endswith(".dot"))

"""Models with modules for the tests of the Graph page, with a profile whose shares add up to one."""

from typing import Any

from streamlit.testing.v1 import AppTest

from app.models.graph import page as graph_page
from tests.support.app.page import turn_to
from torchsplit_core.graph import TorchGraph
from torchsplit_core.values import GraphNode, NodeProfile, Profile, ProfileRow
from torchsplit_core.workspace.store import Workspace

NAME = "upload:encoder"
LAYERS = "module:layers"


def encoder(layers: int = 4) -> TorchGraph:
    """An embedding, `layers` equal blocks of three operations with a residual, a head; a weight each."""
    nodes = [GraphNode("ids", "input", shape=("s0", 16), dtype="int64", output_bytes=128)]
    last = "ids"

    def op(name: str, target: str, module: str, *inputs: str) -> str:
        weight = (GraphNode(f"w_{name}", "parameter", shape=(8, 8), dtype="float32", output_bytes=256),)
        nodes.extend(weight if "linear" in target else ())
        reads = (*inputs, weight[0].id) if "linear" in target else inputs
        nodes.append(GraphNode(
            name, "op", "call_function", target, reads, module, (2, 16, 8), "float32", 1024, "net.py:7",
            f"x = self.{name}(x)",
        ))  # fmt: skip
        return name

    last = op("embed", "aten.linear.default", "embed", last)
    for i in range(layers):
        query = op(f"query{i}", "aten.linear.default", f"layers.{i}.attention", last)
        soft = op(f"soft{i}", "aten.softmax.int", f"layers.{i}.attention", query)
        last = op(f"add{i}", "aten.add.Tensor", f"layers.{i}", soft, last)
    last = op("head", "aten.linear.default", "head", last)
    nodes.append(GraphNode("y", "output", inputs=(last,)))
    return TorchGraph(tuple(nodes), architecture_hash="encoder", traced_batch=2)


def timed(graph: TorchGraph, *, measured: bool = True, name: str = NAME) -> Profile:
    """Equal shares for all operations; a row measured here at batches 1 and 4, one estimated on a slice."""
    ops = graph.ops
    shares = tuple(NodeProfile(node.id, 1 / len(ops), 1024, 4096) for node in ops)
    rows = [
        ProfileRow("whole", "A100-80GB", size, 2, 1, 200.0, 10.0, 160.0, 250.0, 1.0, "estimated")
        for size in ("1g.10gb", "3g.40gb")
    ]
    if measured:
        rows += [
            ProfileRow("whole", "cpu", None, batch, 1, 50.0, 20.0 * batch, 45.0, 55.0, 0.1, "measured")
            for batch in (1, 4)
        ]
    return Profile(name, graph.architecture_hash, {"device": "this CPU"}, tuple(rows), shares)


def loose(count: int) -> TorchGraph:
    """A chain of `count` operations without any module."""
    nodes = [GraphNode("x", "input", shape=(8,), dtype="float32", output_bytes=32)]
    nodes += [
        GraphNode(
            f"n{i}", "op", "call_function", "aten.relu.default", (f"n{i - 1}" if i else "x",),
            shape=(8,), dtype="float32", output_bytes=32,
        )
        for i in range(count)
    ]  # fmt: skip
    nodes.append(GraphNode("y", "output", inputs=(f"n{count - 1}",)))
    return TorchGraph(tuple(nodes), architecture_hash=f"loose {count}")


def stored(workspace: Workspace, graph: TorchGraph, profile: Profile | None = None, name: str = NAME) -> None:
    """Put a graph and, where given, its profile under a name."""
    workspace.put("graph", name, graph)
    if profile is not None:
        workspace.put("profile", name, profile)


def tab(page: AppTest, name: str) -> AppTest:
    return turn_to(page, graph_page.TAB, name)


def selected(workspace: Workspace, **look: Any) -> None:
    """Keep a look as an earlier session would have."""
    workspace.set_setting(f"explorer {NAME}", {"opened": [LAYERS], "unfolded": [], **look})

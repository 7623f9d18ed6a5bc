"""A small encoder with a profile whose operations cost the same."""

from torchsplit_core.graph import TorchGraph
from torchsplit_core.values import GraphNode, NodeProfile, Profile, ProfileRow
from torchsplit_core.values.profile import Basis


def row(batch: int = 2, latency: float = 10.0, basis: Basis = "measured", stage: str = "whole") -> ProfileRow:
    return ProfileRow(stage, "cpu", None, batch, 1, 1000 * batch / latency, latency, None, None, None, basis)


def even_profile(graph: TorchGraph, *rows: ProfileRow) -> Profile:
    ops = graph.ops
    nodes = tuple(NodeProfile(op.id, 1 / len(ops), op.output_bytes, 0) for op in ops)
    return Profile("model", graph.architecture_hash, {}, rows or (row(),), nodes)


def encoder(layers: int = 4) -> TorchGraph:
    """Layers of three operations with a residual, a mask for all of them, an assertion that nothing reads."""
    nodes = [GraphNode("x", "input", output_bytes=200), GraphNode("mask", "input", output_bytes=10)]
    nodes.append(GraphNode("check", "op", target="aten._assert", inputs=("x",)))
    last = "x"
    for i in range(layers):
        nodes += [
            GraphNode(f"w{i}", "parameter", output_bytes=1000),
            GraphNode(f"mm{i}", "op", target="aten.mm.default", inputs=(last, f"w{i}"), output_bytes=100),
            GraphNode(f"v{i}", "op", target="aten.view.default", inputs=(f"mm{i}",), output_bytes=100),
            GraphNode(f"bias{i}", "op", target="aten.add.Tensor", inputs=(f"v{i}", "mask"), output_bytes=100),
            GraphNode(f"out{i}", "op", target="aten.add.Tensor", inputs=(f"bias{i}", last), output_bytes=100),
        ]
        last = f"out{i}"
    nodes.append(GraphNode("output", "output", inputs=(last,)))
    return TorchGraph(tuple(nodes), architecture_hash="h", traced_batch=2)


GRAPH = encoder()

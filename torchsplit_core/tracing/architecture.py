"""The architecture hash: equal for equal structure, whatever the weights."""

from __future__ import annotations

import hashlib
import json

from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.values import GraphNode

SCHEME = "torchsplit.architecture.1"
WEIGHTS = ("parameter", "buffer", "constant")


def hash_model_architecture(graph: TorchGraph) -> str:
    """SHA-256 (hex) over operations, edges, shapes and dtypes in execution order, bodies of cond and while too.

    Ignores weights' values and names, node ids, module paths, source lines and the traced batch; a weight
    counts where it is first read, so one that nothing reads does not count. Arguments that are
    no values of the graph (a stride, an epsilon) count only by the shapes that follow from them.
    """
    return hashlib.sha256(json.dumps([SCHEME, _described(graph)]).encode()).hexdigest()


def _described(graph: TorchGraph) -> list[object]:
    """The graph with numbers in place of names."""
    numbers: dict[str, int] = {}
    lines: list[object] = []

    def number(name: str) -> int:
        node = graph.by_id[name]
        if name not in numbers:
            numbers[name] = len(numbers)
            lines.append(_facts(node, []))
        return numbers[name]

    for node in graph.nodes:
        if node.kind in WEIGHTS:
            continue
        reads = [number(name) for name in node.inputs]
        numbers[node.id] = len(numbers)
        bodies = [_described(body) for body in graph.bodies(node.id).values()]
        lines.append([*_facts(node, reads), bodies])
    return lines


def _facts(node: GraphNode, reads: list[int]) -> list[object]:
    """What counts of a node; a weight's target is its name, which does not."""
    target = node.target if node.kind == "op" else ""
    shape = None if node.shape is None else list(node.shape)
    return [node.kind, target, shape, node.dtype, reads]

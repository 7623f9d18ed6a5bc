"""The architecture hash: equal for equal computation, whatever the weights."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.values import GraphNode

SCHEME = "torchsplit.architecture.2"
FORMER_SCHEME = "torchsplit.architecture.1"
WEIGHTS = ("parameter", "buffer", "constant")
OF_FORMER_SCHEME = "was measured by an earlier version of TorchSplit, which hashed architectures differently"
MESSAGE = "assert_msg"
"""The only argument without effect: torch writes it, with the names of symbols and nodes inside."""


def hash_model_architecture(graph: TorchGraph) -> str:
    """SHA-256 (hex) over operations, arguments, edges, shapes and dtypes in execution order.

    Bodies of cond and while are included. Every argument counts, and in which one a value is read; so do shape and
    dtype of a constant tensor. Ignores weights' values and names, node ids, module paths, source lines and the traced
    batch; a weight counts where it is first read, so an unread one does not count.
    """
    return _hash(SCHEME, _canonical_form(graph, True))


def former_architecture_hash(graph: TorchGraph) -> str:
    """The hash by the previous scheme, which ignored every argument that is no value of the graph.

    Measurements under it stay readable and are marked; they are never used for this architecture.
    """
    return _hash(FORMER_SCHEME, _canonical_form(graph, False))


def uses_former_scheme(graph: TorchGraph) -> bool:
    """Whether the graph was stored under the previous scheme: its arguments are unknown, so it is traced again."""
    return graph.architecture_hash == former_architecture_hash(graph)


def _hash(scheme: str, described: list[object]) -> str:
    return hashlib.sha256(json.dumps([scheme, described]).encode()).hexdigest()


def _canonical_form(graph: TorchGraph, arguments: bool) -> list[object]:
    """The graph with numbers in place of names."""
    numbers: dict[str, int] = {}
    lines: list[object] = []

    def number(name: str) -> int:
        node = graph.by_id[name]
        if name not in numbers:
            numbers[name] = len(numbers)
            lines.append(_node_form(node, []))
        return numbers[name]

    for node in graph.nodes:
        if node.kind in WEIGHTS:
            continue
        reads = [number(name) for name in node.inputs]
        numbers[node.id] = len(numbers)
        bodies = graph.bodies(node.id)
        line = [*_node_form(node, reads), [_canonical_form(body, arguments) for body in bodies.values()]]
        if arguments:
            line.append(_arguments(node, {name: place for place, name in enumerate(bodies)}))
        lines.append(line)
    return lines


def _node_form(node: GraphNode, reads: list[int]) -> list[object]:
    """The hashed part of a node; a weight's target is its name, which is left out."""
    target = node.target if node.kind == "op" else ""
    shape = None if node.shape is None else list(node.shape)
    return [node.kind, target, shape, node.dtype, reads]


def _arguments(node: GraphNode, bodies: dict[str, int]) -> list[object]:
    """The arguments by name; a body by its index, because torch numbers their names through the model."""
    named_arguments = sorted(item for item in node.arguments.items() if item[0] != MESSAGE)
    return (
        [[name, _number_bodies(value, bodies)] for name, value in named_arguments]
        if bodies
        else [*map(list, named_arguments)]
    )


def _number_bodies(value: Any, bodies: dict[str, int]) -> Any:
    if isinstance(value, list):
        return [_number_bodies(item, bodies) for item in value]
    if isinstance(value, dict):
        if value.keys() == {"body"}:
            return {"body": bodies.get(value["body"])}
        return {key: _number_bodies(item, bodies) for key, item in value.items()}
    return value

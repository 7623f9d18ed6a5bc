"""TorchGraph to and from the JSON of the graph contract (see docs/file-formats.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.values import GraphNode, InputFault
from torchsplit_core.values.graph import NodeKind

FORMAT = "torchsplit.graph"
VERSION = 1


def graph_to_dict(graph: TorchGraph) -> dict[str, Any]:
    """The graph as the contract's JSON object; profiling metadata is not part of it."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "architecture_hash": graph.architecture_hash,
        "traced_batch": graph.traced_batch,
        "nodes": [
            {
                "id": node.id,
                "kind": node.kind,
                "op": node.op,
                "target": node.target,
                "inputs": list(node.inputs),
                "module": node.module,
                "shape": None if node.shape is None else list(node.shape),
                "dtype": node.dtype,
                "output_bytes": node.output_bytes,
                "source": node.source,
                "code": node.code,
            }
            for node in graph.nodes
        ],
        "subgraphs": {name: graph_to_dict(body) for name, body in graph.subgraphs.items()},
    }


def graph_from_dict(data: Mapping[str, Any]) -> TorchGraph:
    """The graph behind a contract JSON object. Raises InputFault where it breaks the contract."""
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise InputFault(
            "graph: format",
            data.get("format"),
            f"format is {FORMAT}, version {VERSION}",
            "Pass a graph file.",
        )
    nodes = data.get("nodes")
    if not isinstance(nodes, list):
        raise InputFault("graph: nodes", type(nodes).__name__, "nodes is a list", "Check the file.")
    batch, bodies = data.get("traced_batch", 1), data.get("subgraphs", {})
    if not isinstance(batch, int) or batch < 1:
        raise InputFault("graph: traced_batch", batch, "it is a whole number from 1", "Check the file.")
    if not isinstance(bodies, Mapping) or not all(isinstance(body, Mapping) for body in bodies.values()):
        raise InputFault(
            "graph: subgraphs", type(bodies).__name__, "it is an object of graphs", "Check the file."
        )
    return TorchGraph(
        nodes=tuple(_node(entry, place) for place, entry in enumerate(nodes)),
        architecture_hash=str(data.get("architecture_hash", "")),
        traced_batch=batch,
        subgraphs={name: graph_from_dict(body) for name, body in bodies.items()},
    )


def _node(entry: Any, place: int) -> GraphNode:
    if not isinstance(entry, Mapping):
        raise InputFault(
            f"graph: nodes.{place}", type(entry).__name__, "a node is an object", "Check the file."
        )
    if entry.get("kind") not in get_args(NodeKind):
        raise InputFault(
            f"graph: nodes.{place}.kind",
            entry.get("kind"),
            f"kind is one of {', '.join(get_args(NodeKind))}",
            "Check the file.",
        )
    shape, inputs, size = entry.get("shape"), entry.get("inputs", ()), entry.get("output_bytes", 0)
    for key, value, kinds, rule in (
        ("shape", shape, (list, tuple, type(None)), "shape is a list or null"),
        ("inputs", inputs, (list, tuple), "inputs is a list of ids"),
        ("output_bytes", size, (int,), "output_bytes is a whole number"),
        ("dtype", entry.get("dtype"), (str, type(None)), "dtype is a text or null"),
    ):
        if not isinstance(value, kinds):
            raise InputFault(f"graph: nodes.{place}.{key}", value, rule, "Check the file.")
    if size < 0:
        raise InputFault(f"graph: nodes.{place}.output_bytes", size, "it is 0 or more", "Check the file.")
    try:
        return GraphNode(
            id=str(entry["id"]),
            kind=entry["kind"],
            op=str(entry.get("op", "")),
            target=str(entry.get("target", "")),
            inputs=tuple(map(str, inputs)),
            module=str(entry.get("module", "")),
            shape=None
            if shape is None
            else tuple(size if isinstance(size, int) else str(size) for size in shape),
            dtype=entry.get("dtype"),
            output_bytes=size,
            source=str(entry.get("source", "")),
            code=str(entry.get("code", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputFault(
            f"graph: nodes.{place}",
            str(error),
            "a node has the fields of the graph contract",
            "Check the file.",
        ) from error

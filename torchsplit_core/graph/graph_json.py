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
    return TorchGraph(
        nodes=tuple(_node(entry, place) for place, entry in enumerate(nodes)),
        architecture_hash=str(data.get("architecture_hash", "")),
        traced_batch=int(data.get("traced_batch", 1)),
        subgraphs={name: graph_from_dict(body) for name, body in dict(data.get("subgraphs", {})).items()},
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
    shape = entry.get("shape")
    try:
        return GraphNode(
            id=str(entry["id"]),
            kind=entry["kind"],
            op=str(entry.get("op", "")),
            target=str(entry.get("target", "")),
            inputs=tuple(map(str, entry.get("inputs", ()))),
            module=str(entry.get("module", "")),
            shape=None
            if shape is None
            else tuple(size if isinstance(size, int) else str(size) for size in shape),
            dtype=entry.get("dtype"),
            output_bytes=int(entry.get("output_bytes", 0)),
            source=str(entry.get("source", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputFault(
            f"graph: nodes.{place}",
            str(error),
            "a node has the fields of the graph contract",
            "Check the file.",
        ) from error

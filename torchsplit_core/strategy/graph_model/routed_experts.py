"""A traced mixture of experts as training runs it: each expert on its rows alone.

A trace has no sizes that depend on data, so in a graph every expert computes all rows and a mask picks its own. In
training a module of the client's `expert_plan` computes each row by its own expert. Of n experts each has a share of
1/n of the rows here, as if the router were even; what makes masks, and what applies them, costs nothing.
"""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.graph.sizes import dtype_name
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.strategy.graph_model.costs import FLOATS
from torchsplit_core.values import GraphNode

ALIAS, SLICE = "torch.ops.aten.alias.default", "torch.ops.aten.slice.Tensor"
"""Operations without a cost, which stand for what training leaves out, and for an expert's share of the rows."""


def as_trained(graph: TorchGraph) -> TorchGraph:
    """The graph with the sizes that its experts have in training; the same graph if it names none."""
    for name in graph.experts:
        graph = _routed(graph, name)
    return graph


def _routed(graph: TorchGraph, module: str) -> TorchGraph:
    inside = {
        node.id for node in graph.nodes if node.module == module or node.module.startswith(f"{module}.")
    }
    counts = {
        node.shape[0] if node.shape else 0 for node in graph.nodes if node.id in inside and _is_weight(node)
    }
    if len(counts) != 1 or not isinstance(count := counts.pop(), int) or count < 2:
        return graph
    work = _floating_work(graph, inside)
    given = {
        source: graph.by_id[source]
        for name in work
        for source in graph.by_id[name].inputs
        if source not in inside and _floats(graph.by_id[source]) and graph.by_id[source].kind != "parameter"
    }
    rows = {node.shape[0] for node in given.values() if node.shape}
    nodes: list[GraphNode] = []
    parts: dict[str, str] = {}
    for node in graph.nodes:
        if node.id not in inside or node.kind != "op":
            nodes.append(node)
            continue
        masks = [
            source for source in node.inputs if source in inside - work and _is_mask(graph.by_id[source])
        ]
        if node.id not in work:
            nodes.append(replace(node, op="alias", target=ALIAS) if _is_mask(node) else node)
            continue
        for source in node.inputs:
            if source in given and source not in parts:
                parts[source] = f"{module}: part of {source}"
                part = replace(given[source], id=parts[source], inputs=(source,), op="slice", target=SLICE)
                nodes.append(_shrunk(part, rows, count))
        node = replace(node, inputs=tuple(parts.get(source, source) for source in node.inputs))
        if masks:
            source = next(source for source in node.inputs if source not in masks)
            node = replace(node, inputs=(source,), op="alias", target=ALIAS)
        leaves = any(user not in inside for user in graph.users[node.id])
        nodes.append(node if leaves else _shrunk(node, rows, count))
    return replace(graph, nodes=tuple(nodes))


def _floating_work(graph: TorchGraph, inside: set[str]) -> set[str]:
    """Operations of a module that compute with its rows or its weights, rather than with numbers of experts."""
    work: set[str] = set()
    for node in graph.nodes:
        if node.id in inside and node.kind == "op" and _floats(node):
            sources = [graph.by_id[source] for source in node.inputs]
            if any(
                _floats(source) and (source.id in work or source.id not in inside or _is_weight(source))
                for source in sources
            ):
                work.add(node.id)
    return work


def _floats(node: GraphNode) -> bool:
    return dtype_name(node.dtype) in FLOATS


def _is_weight(node: GraphNode) -> bool:
    return node.kind == "parameter"


def _is_mask(node: GraphNode) -> bool:
    """Whether a value of a module, not one of its work, is a tensor that it computes, rather than a weight or size."""
    return node.kind == "op" and node.shape is not None


def _shrunk(node: GraphNode, rows: set[int | str], count: int) -> GraphNode:
    """The node for one of `count` experts' share of the rows."""
    shape = list(node.shape or ())
    for place, size in enumerate(shape):
        if size in rows:
            shape[place] = max(1, size // count) if isinstance(size, int) else f"Max(1, ({size})//{count})"
            return replace(node, shape=tuple(shape), output_bytes=node.output_bytes // count)
    return node

"""Graphviz texts of a graph, its dominator trees and its regions, for debugging.

Nodes are named n0, n1, …, and labels are quoted and escaped, so that no name in a model can end a string or add an
attribute.
"""

from __future__ import annotations

import pydot

from torchsplit_core.graph.dominance import ENTRY, EXIT, DominanceInformation
from torchsplit_core.graph.operations import operation_name
from torchsplit_core.graph.preparation.prepare import WEIGHT_KINDS
from torchsplit_core.graph.regions import RegionTree
from torchsplit_core.graph.torch_graph import TorchGraph

SHAPES = {"input": "ellipse", "output": "ellipse"}


def quote(text: str) -> str:
    """A DOT double-quoted string that shows exactly this text."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "")
    return f'"{escaped}"'


def dataflow_dot(graph: TorchGraph) -> str:
    """Every input, operation and output, with its share of the time if profiled, without weights."""
    dot = pydot.Dot("dataflow", graph_type="digraph", rankdir="TB")
    shown = [node for node in graph.nodes if node.kind not in WEIGHT_KINDS]
    index = {node.id: f"n{i}" for i, node in enumerate(shown)}
    for node in shown:
        label = operation_name(node) if node.kind == "op" else node.id
        cost = graph.metadata.get(node.id)
        if cost is not None:
            label += f"\n{share_text(cost.time_share)}"
        dot.add_node(pydot.Node(index[node.id], label=quote(label), shape=SHAPES.get(node.kind, "box")))
    sizes = {node.id: bytes_text(node.output_bytes) for node in shown}
    for node in shown:
        for source in dict.fromkeys(node.inputs):
            if source in index:
                dot.add_edge(pydot.Edge(index[source], index[node.id], label=quote(sizes[source])))
    return str(dot.to_string())


def dominance_dot(dominance: DominanceInformation, post: bool = False) -> str:
    """The dominator tree below ENTRY, or the post-dominator tree below EXIT."""
    tree = dominance.post_dominator_tree if post else dominance.dominator_tree
    dot = pydot.Dot("post_dominators" if post else "dominators", graph_type="digraph")
    index = {name: f"n{i}" for i, name in enumerate((ENTRY, *dominance.ids, EXIT))}
    for name, key in index.items():
        shape = "diamond" if name in (ENTRY, EXIT) else "box"
        dot.add_node(pydot.Node(key, label=quote(name), shape=shape))
    for name, key in index.items():
        for child in tree.get(name, ()):
            dot.add_edge(pydot.Edge(key, index[child]))
    return str(dot.to_string())


def regions_dot(tree: RegionTree) -> str:
    """The graph with a box around every region of two values or more; cut points are bold."""
    dot = pydot.Dot("regions", graph_type="digraph", compound="true")
    boxes: dict[int, pydot.Graph] = {}
    for i, region in enumerate(tree.regions):
        if region.parent is None or region.count < 2:
            boxes[i] = dot if region.parent is None else boxes[region.parent]
            continue
        label = f"{region.kind} ({region.start}, {region.end}]"
        boxes[i] = pydot.Cluster(f"r{i}", label=quote(label))
    index = {name: f"n{i}" for i, name in enumerate(tree.ids)}
    cuts, smallest = frozenset(tree.cut_points), tree.innermost
    for name in tree.ids:
        style = "bold" if name in cuts else "solid"
        boxes[smallest[tree.position[name]]].add_node(
            pydot.Node(index[name], label=quote(name), shape="box", style=style)
        )
    for i in reversed(range(len(tree.regions))):  # children first: pydot copies on adding
        parent = tree.regions[i].parent
        if parent is not None and boxes[i] is not boxes[parent]:
            boxes[parent].add_subgraph(boxes[i])
    for source, target in tree.edges:
        dot.add_edge(pydot.Edge(index[source], index[target]))
    return str(dot.to_string())


def share_text(share: float) -> str:
    """A share of the time; a positive one never reads as zero."""
    return "< 0.1 % of the time" if 0 < share < 0.001 else f"{100 * share:.1f} % of the time"


def bytes_text(count: int) -> str:
    """Bytes in binary units."""
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 1024**2 else f"{count / 1024**2:.1f} MiB"

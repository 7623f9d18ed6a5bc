"""Graphviz texts of a graph, its dominator trees and its regions, for debugging.

Nodes get ids of our own (n0, n1, …) and labels are quoted and escaped, so that no name of a
model can end a string or add an attribute.
"""

from __future__ import annotations

from collections.abc import Mapping

import pydot

from torchsplit_core.graph.dominance import ENTRY, EXIT, DominanceInformation
from torchsplit_core.graph.modules import collapse
from torchsplit_core.graph.regions import RegionTree
from torchsplit_core.graph.torch_graph import TorchGraph

_SHAPES = {"input": "ellipse", "output": "ellipse", "module": "box3d"}


def quote(text: str) -> str:
    """A DOT double-quoted string that shows exactly this text."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "")
    return f'"{escaped}"'


def dataflow_dot(graph: TorchGraph, depth: int = 2, expanded: frozenset[str] = frozenset()) -> str:
    """The dataflow collapsed to a module depth (see `collapse`), with shares of time where profiled."""
    drawn = collapse(graph, depth, expanded)
    dot = pydot.Dot("dataflow", graph_type="digraph", rankdir="TB")
    index = {node.id: f"n{i}" for i, node in enumerate(drawn.nodes)}
    for node in drawn.nodes:
        label = node.label
        if node.count > 1:
            label += f"\n{node.count} operations"
        if node.time_share is not None:
            share = 100 * node.time_share
            # A rounded zero would say that it costs nothing.
            label += "\n< 0.1 % of the time" if 0 < share < 0.1 else f"\n{share:.1f} % of the time"
        dot.add_node(pydot.Node(index[node.id], label=quote(label), shape=_SHAPES.get(node.kind, "box")))
    sizes = {node.id: node.output_bytes for node in drawn.nodes}
    for source, target in drawn.edges:
        dot.add_edge(pydot.Edge(index[source], index[target], label=quote(_bytes(sizes[source]))))
    return str(dot.to_string())


def below(tree: Mapping[str, tuple[str, ...]], root: str) -> tuple[str, ...]:
    """The root and everything under it, breadth first."""
    order = [root]
    for name in order:
        order.extend(tree.get(name, ()))
    return tuple(order)


def dominance_dot(
    dominance: DominanceInformation, post: bool = False, *, root: str | None = None, most: int | None = None
) -> str:
    """The dominator tree below `root` (ENTRY), or the post-dominator tree (EXIT); at most `most` values of it."""
    tree: Mapping[str, tuple[str, ...]] = dominance.post_dominator_tree if post else dominance.dominator_tree
    dot = pydot.Dot("post_dominators" if post else "dominators", graph_type="digraph")
    drawn = below(tree, root or (EXIT if post else ENTRY))[:most]
    index = {name: f"n{i}" for i, name in enumerate(drawn)}
    for name in drawn:
        dot.add_node(
            pydot.Node(index[name], label=quote(name), shape="diamond" if name in (ENTRY, EXIT) else "box")
        )
    for name in drawn:
        for child in tree.get(name, ()):
            if child in index:
                dot.add_edge(pydot.Edge(index[name], index[child]))
    return str(dot.to_string())


def regions_dot(tree: RegionTree) -> str:
    """The graph with every region of two values or more as a box around them; cut points are bold."""
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
        boxes[smallest[tree.place[name]]].add_node(
            pydot.Node(index[name], label=quote(name), shape="box", style=style)
        )
    for i in reversed(range(len(tree.regions))):  # children first: pydot copies what is added
        parent = tree.regions[i].parent
        if parent is not None and boxes[i] is not boxes[parent]:
            boxes[parent].add_subgraph(boxes[i])
    for source, target in tree.edges:
        dot.add_edge(pydot.Edge(index[source], index[target]))
    return str(dot.to_string())


def _bytes(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 1024**2 else f"{count / 1024**2:.1f} MiB"

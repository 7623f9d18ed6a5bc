"""Renders a scene as Graphviz text: open modules are clusters, closed ones boxes."""

from __future__ import annotations

import pydot

from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.scene import Scene
from torchsplit_core.graph.dot import SHAPES, bytes_text, quote, share_text


def scene_dot(hierarchy: Hierarchy, scene: Scene) -> str:
    """The DOT text: the drawn items, their share of the time if profiled, and bytes on the edges."""
    costs, names = hierarchy.graph.metadata, hierarchy.nodes
    dot = pydot.Dot("dataflow", graph_type="digraph", rankdir="TB")
    clusters: dict[int, pydot.Graph] = {-1: dot}
    for i, item in enumerate(scene.view.items):
        if item.open:
            clusters[i] = pydot.Cluster(f"c{i}", label=quote(item.label))
            continue
        label = item.label if item.count < 2 else f"{item.label}\n{item.count} operations"
        shares = [costs[names[node]].time_share for node in item.nodes if names[node] in costs]
        if shares:
            label += f"\n{share_text(sum(shares))}"
        shape = "box3d" if item.repeats > 1 else SHAPES.get(item.kind, "box")
        clusters[item.parent].add_node(pydot.Node(f"n{i}", label=quote(label), shape=shape))
    for i in sorted(clusters, reverse=True):  # innermost first: pydot copies what is added
        if i >= 0:
            clusters[scene.view.items[i].parent].add_subgraph(clusters[i])
    for (source, target), count in scene.edges.items():
        dot.add_edge(pydot.Edge(f"n{source}", f"n{target}", label=quote(bytes_text(count))))
    return str(dot.to_string())

"""What the Graph page shows of a stored graph, computed once a graph. No domain logic of its own."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import streamlit as st

from torchsplit_core.graph import (
    DominanceInformation,
    PreparedGraph,
    RegionTree,
    TorchGraph,
    annotate_with_profiling_data,
    prepare,
    region_tree,
)
from torchsplit_core.graph.dot import below, dataflow_dot, dominance_dot
from torchsplit_core.values import Profile

MOST_DRAWN = 150
"""Graphviz in the browser stays quick up to about this many nodes."""
MOST_IN_TREE = 36
"""A dominator tree of a deep model runs down and to the right: more of it would be too small to read."""
THEMES = {
    True: 'bgcolor=transparent; node [color="#6b7a88", fontcolor="#e6eaee", fontname="sans-serif", fontsize=11]; '
    'edge [color="#7d8b99", fontcolor="#a9b4be", fontname="sans-serif", fontsize=9];',
    False: 'bgcolor=transparent; node [color="#7b858f", fontcolor="#1b1f24", fontname="sans-serif", fontsize=11]; '
    'edge [color="#7b858f", fontcolor="#4b535d", fontname="sans-serif", fontsize=9];',
}


@dataclass(frozen=True, slots=True)
class Analysis:
    """A graph prepared for cutting, its dominance and its regions."""

    prepared: PreparedGraph
    dominance: DominanceInformation
    regions: RegionTree


@st.cache_resource(max_entries=8, show_spinner="Finding dominators and regions …")
def analyse(sha256: str, _graph: TorchGraph) -> Analysis:
    """Everything that follows from the graph alone; its file's hash is the key."""
    prepared = prepare(_graph)
    return Analysis(
        prepared, DominanceInformation((prepared.main_ids, prepared.main_edges)), region_tree(prepared)
    )


def profiled(graph: TorchGraph, profile: Profile | None) -> TorchGraph:
    """The graph with its time shares, where the profile is of the same model and knows its nodes."""
    if profile is None or not profile.nodes or profile.architecture_hash != graph.architecture_hash:
        return graph
    return annotate_with_profiling_data(graph, profile)


def module_depth(graph: TorchGraph) -> int:
    """How deep modules are nested."""
    return max((node.module.count(".") + 1 for node in graph.ops if node.module), default=0)


def themed(dot: str, dark: bool) -> str:
    """The DOT text with the page's colours as its defaults."""
    head, brace, rest = dot.partition("{")
    return f"{head}{brace} {THEMES[dark]} {rest}"


def drawing(graph: TorchGraph, depth: int, dark: bool) -> str:
    """The dataflow collapsed to a module depth, in the page's colours."""
    return themed(dataflow_dot(graph, depth), dark)


def dominator_drawing(
    dominance: DominanceInformation, root: str, dark: bool, *, post: bool
) -> tuple[str, int]:
    """The tree below a value, breadth first up to `MOST_IN_TREE` values; how many were left out."""
    tree = dominance.post_dominator_tree if post else dominance.dominator_tree
    text = dominance_dot(dominance, post, root=root, most=MOST_IN_TREE)
    return themed(text, dark), max(0, len(below(tree, root)) - MOST_IN_TREE)


def nodes_table(graph: TorchGraph, analysis: Analysis) -> pd.DataFrame:
    """Every node with what is known of it. Dominators are of the unit that the node belongs to."""
    unit_of, known = analysis.prepared.unit_of, set(analysis.dominance.ids)
    rows = []
    # Operations are what people look for; weights follow.
    for node in sorted(graph.nodes, key=lambda item: item.kind in ("parameter", "buffer", "constant")):
        cost = graph.metadata.get(node.id)
        unit = unit_of.get(node.id)
        inside = unit is not None and unit in known
        rows.append(
            {
                "id": node.id,
                "kind": node.kind,
                "op": node.op or node.target,
                "module": node.module,
                "shape": "" if node.shape is None else f"[{', '.join(map(str, node.shape))}]",
                "dtype": node.dtype or "",
                "output bytes": node.output_bytes,
                "time %": None if cost is None else 100 * cost.time_share,
                "peak bytes": None if cost is None else cost.peak_bytes,
                "dominated by": analysis.dominance.immediate_dominator(unit) if inside else None,
                "post-dominated by": analysis.dominance.immediate_post_dominator(unit) if inside else None,
                "cut point": inside and unit in analysis.regions.cut_points,
                "source": node.source,
            }
        )
    return pd.DataFrame(rows)


def regions_table(graph: TorchGraph, regions: RegionTree) -> pd.DataFrame:
    """The canonical regions as a tree, each below its parent."""
    order, stack = [], [0] if regions.regions else []
    while stack:
        order.append(stack.pop())
        stack.extend(reversed(regions.children(order[-1])))
    rows = []
    for region in (regions.regions[index] for index in order):
        shares = [graph.metadata[name].time_share for name in region.ids if name in graph.metadata]
        rows.append(
            {
                "region": f"{'· ' * region.depth}({region.start}, {region.end}]",
                "kind": region.kind,
                "values": len(region.ids),
                "depth": region.depth,
                "time %": 100 * sum(shares) if shares else None,
            }
        )
    return pd.DataFrame(rows)

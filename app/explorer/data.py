"""What the explorer component draws, as plain JSON values in columns.

Nodes are in execution order, without weights; everything else refers to them by place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.session.analysis import Analysis
from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.scene import Box, Scene
from torchsplit_core.drawing.tree_rows import TreeRow, dominator_rows, icicle
from torchsplit_core.graph import Region

MOST_NODES = 50_000
"""A larger graph sends the browser only what is drawn, without the trees."""


@dataclass(frozen=True, slots=True)
class DrawnNodes:
    """The nodes that the browser gets: their indices in the hierarchy, and the place of each."""

    nodes: tuple[int, ...]
    positions: dict[int, int]


def drawn_nodes(hierarchy: Hierarchy, scene: Scene) -> DrawnNodes:
    """All nodes, or in a very large graph those with a box of their own in the scene."""
    if len(hierarchy.nodes) <= MOST_NODES:
        nodes: Sequence[int] = range(len(hierarchy.nodes))
    else:
        nodes = [item.nodes[0] for item in scene.view.items if len(item.nodes) == 1]
    return DrawnNodes(tuple(nodes), {node: place for place, node in enumerate(nodes)})


def scene_data(scene: Scene) -> dict[str, Any]:
    """Items in columns, lines and stubs as short lists."""
    items = scene.view.items
    # Whole pixels halve the text, and rounding to tenths would take longer than all the rest.
    return {
        "width": int(scene.width + 0.5),
        "height": int(scene.height + 0.5),
        "items": {
            "id": [item.id for item in items],
            "kind": [item.kind for item in items],
            "label": [item.label for item in items],
            "note": [item.note for item in items],
            "parent": [item.parent for item in items],
            "open": [item.open for item in items],
            "expandable": [item.expandable for item in items],
            "count": [item.count for item in items],
            "repeats": [item.repeats for item in items],
            "box": [value for box in scene.boxes for value in _pixels(box)],
        },
        "lines": [
            [line.source, line.arrow, list(line.targets), [int(v + 0.5) for p in line.points for v in p]]
            for line in scene.lines
        ],
        "stubs": [[stub.source, stub.reader, *_pixels(stub.box)] for stub in scene.stubs],
    }


def _pixels(box: Box) -> tuple[int, int, int, int]:
    return int(box.x + 0.5), int(box.y + 0.5), int(box.width + 0.5), int(box.height + 0.5)


def nodes_data(hierarchy: Hierarchy, analysis: Analysis, scene: Scene, drawn: DrawnNodes) -> dict[str, Any]:
    """Names, search texts, the item that shows each node, and its place in the trees and regions."""
    graph, unit_of = hierarchy.graph, analysis.prepared.unit_of
    order = analysis.regions.position
    cuts = frozenset(analysis.regions.cut_points)
    graph_nodes = [graph.by_id[hierarchy.nodes[node]] for node in drawn.nodes]
    ops, modules = _NameTable(), _NameTable()
    units = [unit_of.get(node.id) for node in graph_nodes]
    return {
        "id": [node.id for node in graph_nodes],
        "op": [ops.index_of(hierarchy.operations[node]) for node in drawn.nodes],
        "ops": ops.names,
        "module": [modules.index_of(node.module) for node in graph_nodes],
        "modules": modules.names,
        "source": [node.source for node in graph_nodes],
        "shape": [
            "" if node.shape is None else f"[{', '.join(map(str, node.shape))}]" for node in graph_nodes
        ],
        "home": [scene.view.item_of[node] for node in drawn.nodes],
        "unit": [
            -1 if unit is None or unit not in order else drawn.positions.get(hierarchy.index[unit], -1)
            for unit in units
        ],
        "place": [-1 if unit is None else order.get(unit, -1) for unit in units],
        "cut": [node.id in cuts for node in graph_nodes],
    }


def regions_data(hierarchy: Hierarchy, analysis: Analysis, drawn: DrawnNodes, by: str) -> dict[str, Any]:
    """One icicle. `by` is "time" or "bytes"."""
    weights = analysis.weights(hierarchy.graph, by)
    patches = icicle(analysis.regions, weights)
    regions = [analysis.regions.regions[patch.region] for patch in patches]
    return {
        "by": by,
        "index": [patch.region for patch in patches],
        "depth": [patch.depth for patch in patches],
        "low": [round(patch.low, 6) for patch in patches],
        "high": [round(patch.high, 6) for patch in patches],
        "first": [region.first for region in regions],
        "count": [region.count for region in regions],
        "label": [region_label(hierarchy, region) for region in regions],
        "end": [
            drawn.positions.get(hierarchy.index[region.end], -1) if region.end in hierarchy.index else -1
            for region in regions
        ],
    }


def region_label(hierarchy: Hierarchy, region: Region) -> str:
    """The innermost module that holds all of a region, else the value it ends with."""
    if region.parent is None:
        return "the whole model"
    # Only the two ends: all ids of thousands of nested regions would take minutes.
    order = region.table.order
    ends = (order[region.first], order[region.first + region.count - 1])
    first, last = (hierarchy.graph.by_id[name].module.split(".") for name in ends)
    common = []
    for a, b in zip(first, last, strict=False):
        if a != b:
            break
        common.append(a)
    return ".".join(common[-2:]) or region.end.strip("<>")


def trees_data(hierarchy: Hierarchy, analysis: Analysis, drawn: DrawnNodes) -> dict[str, Any]:
    """Both dominator trees as outlines; empty for a graph too large to send."""
    if len(hierarchy.nodes) > MOST_NODES:
        empty: dict[str, list[int]] = {"node": [], "indent": []}
        return {"dominators": empty, "post": empty}
    trees = {}
    for name, post in (("dominators", False), ("post", True)):
        rows = visible_rows(hierarchy, dominator_rows(analysis.dominance, post=post))
        trees[name] = {
            "node": [drawn.positions[hierarchy.index[row.name]] for row in rows],
            "indent": [row.indent for row in rows],
        }
    return trees


def visible_rows(hierarchy: Hierarchy, rows: Sequence[TreeRow]) -> list[TreeRow]:
    """The rows without weights, which are never drawn; what a weight dominates moves up."""
    visible: list[TreeRow] = []
    around: list[int] = []  # the indents of the omitted rows above the present one
    for row in rows:
        while around and row.indent <= around[-1]:
            around.pop()
        if row.name in hierarchy.index:
            visible.append(TreeRow(row.name, row.indent - len(around)))
        else:
            around.append(row.indent)
    return visible


class _NameTable:
    """Names, each once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._places: dict[str, int] = {}

    def index_of(self, name: str) -> int:
        if name not in self._places:
            self._places[name] = len(self.names)
            self.names.append(name)
        return self._places[name]

"""A graph drawn by modules: what lies deeper than the depth shown is one node.

encoder.layer.0.attention.query ──(depth 3)──> encoder.layer.0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchsplit_core.graph.operations import operation_name
from torchsplit_core.graph.prepare import WEIGHT_KINDS
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.values import GraphNode


@dataclass(frozen=True, slots=True)
class CollapsedNode:
    """One drawn node: a single value, or all operations of a module.

    `module` is the path it stands for ("" for a value outside any). `count` operations are
    inside; `expandable` when expanding its module shows more. `time_share` is the sum over
    them, None where nothing was profiled. `output_bytes`: what others read of it.
    """

    id: str
    label: str
    kind: str
    module: str
    count: int
    members: tuple[str, ...]
    expandable: bool
    time_share: float | None
    output_bytes: int


@dataclass(frozen=True, slots=True)
class CollapsedGraph:
    """Nodes in order of their first operation, and (source, target) pairs, each once.

    A module that runs twice may close a cycle between drawn nodes.
    """

    nodes: tuple[CollapsedNode, ...]
    edges: tuple[tuple[str, str], ...]


def collapse(graph: TorchGraph, depth: int, expanded: frozenset[str] = frozenset()) -> CollapsedGraph:
    """Join operations by the first `depth` parts of their module path; weights are hidden.

    A module path in `expanded` ("" for the whole model) is opened one level further.
    Operations directly in an open module stand on their own. `depth` 0 draws the whole model as one node.
    """
    shown = {node.id: node for node in graph.nodes if node.kind not in WEIGHT_KINDS}
    home = {name: _key(node, max(depth, 0), expanded) for name, node in shown.items()}
    members: dict[str, list[str]] = {}
    for name in shown:
        members.setdefault(home[name], []).append(name)
    edges: dict[tuple[str, str], None] = {}
    read: dict[str, dict[str, None]] = {key: {} for key in members}
    for name, node in shown.items():
        for source in node.inputs:
            if source in home and home[source] != home[name]:
                edges[home[source], home[name]] = None
                read[home[source]][source] = None
    nodes = tuple(_node(graph, key, shown, found, tuple(read[key])) for key, found in members.items())
    return CollapsedGraph(nodes, tuple(edges))


def _key(node: GraphNode, depth: int, expanded: frozenset[str]) -> str:
    """`module:PATH` for an operation inside a closed module, `node:ID` for what stands alone."""
    if node.kind != "op":
        return f"node:{node.id}"
    parts = node.module.split(".") if node.module else []
    level = depth
    while level <= len(parts) and ".".join(parts[:level]) in expanded:
        level += 1
    return f"node:{node.id}" if level > len(parts) else f"module:{'.'.join(parts[:level])}"


def _node(
    graph: TorchGraph, key: str, shown: Mapping[str, GraphNode], members: list[str], read: tuple[str, ...]
) -> CollapsedNode:
    shares = [graph.metadata[name].time_share for name in members if name in graph.metadata]
    is_module = key.startswith("module:")
    path = key.removeprefix("module:") if is_module else shown[members[0]].module
    if is_module:
        label = path + _repeats(path, (shown[name].module for name in members)) if path else "model"
    else:
        node = shown[members[0]]
        label = operation_name(node) if node.kind == "op" else node.id
    return CollapsedNode(
        id=key,
        label=label,
        kind="module" if is_module else shown[members[0]].kind,
        module=path,
        count=sum(shown[name].kind == "op" for name in members),
        members=tuple(members),
        expandable=is_module and len(members) > 1,
        time_share=sum(shares) if shares else None,
        output_bytes=sum(shown[name].output_bytes for name in (read or members[-1:])),
    )


def _repeats(path: str, modules: Iterable[str]) -> str:
    """` × 12` when the module is a list of twelve, its children being numbers."""
    numbers: set[str] = set()
    for module in modules:
        rest = module.removeprefix(path).lstrip(".").split(".")
        if rest[0].isdigit():
            numbers.add(rest[0])
    return f" × {len(numbers)}" if len(numbers) > 1 else ""

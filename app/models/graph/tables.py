"""The graph as tables of every node and region, which screen readers can read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pandas as pd

from app.session.analysis import Analysis
from torchsplit_core.graph import TorchGraph
from torchsplit_core.pictures.numbers import short
from torchsplit_core.values import GraphNode, InputFault, quoted

MOST_ROWS = 20_000
"""A longer table would take the browser seconds; the search finds the rest."""
LONGEST_ARGUMENTS = 300
"""Characters; a graph file has them whole."""


def matching_nodes(graph: TorchGraph, pattern: str) -> list[GraphNode]:
    """Nodes whose id, operation, module or source line matches; all of them for an empty pattern.

    Operations come first, then weights. Raises InputFault for a pattern that is no regular expression.
    """
    nodes = sorted(graph.nodes, key=lambda node: node.kind in ("parameter", "buffer", "constant"))
    if not pattern:
        return nodes
    try:
        wanted = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        problem = f"{quoted(pattern)} is not a regular expression: {error}"
        remedy = "Put a backslash before a ( [ * + ? . ) that is meant as such."
        raise InputFault("search", problem, remedy) from error
    texts = {node.id: (node.id, node.op, node.target, node.module, node.source) for node in nodes}
    return [node for node in nodes if any(map(wanted.search, texts[node.id]))]


def nodes_table(graph: TorchGraph, analysis: Analysis, nodes: Sequence[GraphNode]) -> pd.DataFrame:
    """A row for each node. Dominators are of the unit that the node belongs to."""
    unit_of, places = analysis.prepared.unit_of, analysis.regions.position
    cuts = frozenset(analysis.regions.cut_points)
    rows = []
    for node in nodes[:MOST_ROWS]:
        cost = graph.metadata.get(node.id)
        unit = unit_of.get(node.id)
        placed = unit if unit in places else None
        rows.append(
            {
                "id": node.id,
                "kind": node.kind,
                "op": node.op or node.target,
                "module": node.module,
                "shape": format_shape(node),
                "dtype": node.dtype or "",
                "arguments": format_arguments(node),
                "output bytes": node.output_bytes,
                "time %": None if cost is None else 100 * cost.time_share,
                "peak bytes, est.": None if cost is None else cost.peak_bytes,
                "dominated by": placed and analysis.dominance.immediate_dominator(placed),
                "post-dominated by": placed and analysis.dominance.immediate_post_dominator(placed),
                "cut point": unit in cuts,
                "source": node.source,
                "code": node.code,
            }
        )
    return pd.DataFrame(rows)


def regions_table(graph: TorchGraph, analysis: Analysis) -> pd.DataFrame:
    """The outermost regions of two values or more, at most MOST_ROWS: by share of time, or parents before children
    without times."""
    weights = analysis.weights(graph, "time")
    until = [0.0, *accumulate(weights.get(name, 0.0) for name in analysis.regions.order)]
    units = analysis.prepared.by_id
    rows: list[dict[str, Any]] = []
    for region in analysis.regions.regions:
        if region.count < 2:
            continue
        if len(rows) == MOST_ROWS:
            break
        share = until[region.first + region.count] - until[region.first]
        rows.append(
            {
                "depth": region.depth,
                "kind": region.kind,
                "from": region.start,
                "to": region.end,
                "values": region.count,
                "time %": 100 * share if graph.metadata else None,
                "bytes in": units[region.start].output_bytes if region.start in units else None,
                "bytes out": units[region.end].output_bytes if region.end in units else None,
            }
        )
    if graph.metadata:
        # The sort is stable: of equal shares the outer region stays first.
        rows.sort(key=lambda row: -row["time %"])
    return pd.DataFrame(rows)


def format_shape(node: GraphNode) -> str:
    """ "[8, 384, 1024]", empty without a shape."""
    return "" if node.shape is None else f"[{', '.join(map(str, node.shape))}]"


def format_arguments(node: GraphNode) -> str:
    """ "input x, kernel_size [3, 3], ceil_mode true": arguments as the graph file has them, a value by its id."""
    text = ", ".join(f"{name} {_argument(value, node.inputs)}" for name, value in node.arguments.items())
    return text if len(text) <= LONGEST_ARGUMENTS else f"{text[: LONGEST_ARGUMENTS - 1]}…"


def _argument(value: Any, inputs: Sequence[str]) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_argument(item, inputs) for item in value)}]"
    if not isinstance(value, dict):
        return value if isinstance(value, str) else json.dumps(value)
    if "length" in value:
        return f"{short(value['length'])} long, SHA-256 {value['sha256'][:12]}…"
    ((form, content),) = value.items()
    if form == "input":
        return inputs[content]
    if form == "entries":
        return f"{{{', '.join(f'{key} {_argument(item, inputs)}' for key, item in content.items())}}}"
    if form in ("complex", "slice", "constant"):
        return f"{form} {_argument(content, inputs)}"
    return str(content)

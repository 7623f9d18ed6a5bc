"""Overlays that colour the boxes: time, memory, bytes, device, regions, stages, preparation; each with its legend."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from app.explorer import data
from app.session.analysis import Analysis
from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.svg import Fill
from torchsplit_core.drawing.view import View, ViewItem
from torchsplit_core.pictures.colours import PALETTE
from torchsplit_core.pictures.numbers import percent, size
from torchsplit_core.profiling.memory import estimate_memory
from torchsplit_core.values import InputFault

DEPTHS = ("#d9ece9", "#a8d5cf", "#6fb8b0", "#3f988f", "#1f766e", "#0d544e")
"""A scale for the depth of regions, light to dark."""
FATES = (
    ("kept", "#93b0c9"),
    ("kept, weights charged to it", "#3f66cc"),
    ("folded constant", "#e2a11c"),
    ("joined its producer", "#37a06a"),
    ("side-band", "#8c547a"),
    ("dead", "#7f8790"),
)
"""What preparation makes of a node, and its colour: of the palette, grey for dead nodes."""
HEAT, PALEST_HEAT, FULL_HEAT = "#3f66cc", 0.1, 0.55
"""A ramp from pale to full: its colour, and the opacities of its ends (scene.js has the same)."""
NOT_PROFILED = "Profile this model first."


def overlays(
    hierarchy: Hierarchy,
    shown: View,
    analysis: Analysis,
    basis: str | None,
    stages: Mapping[str, int],
    devices: Mapping[str, str],
) -> list[dict[str, Any]]:
    """All overlays in the order of their buttons; one without values says why.

    `basis` says where the times come from, None without times. `stages` and `devices` have the stage of the chosen cut
    and the device of each node.
    """
    costs = hierarchy.graph.metadata
    names = hierarchy.nodes
    alive = _peaks(hierarchy)

    def inside(item: ViewItem) -> list[str]:
        return [names[node] for node in item.nodes]

    peaks = [float(max((alive[n] for n in inside(item) if n in alive), default=0)) for item in shown.items]
    times, output_bytes = _times(hierarchy, shown), _output_bytes(hierarchy, shown)
    # In the order of the stages, so that their colours are those of the tab Cuts.
    ordered = sorted(stages.items(), key=lambda entry: entry[1])
    stage_names = {name: f"stage {stage + 1}" for name, stage in ordered}
    return [
        _bar("time", "time", times, percent, "of the model's time", basis if costs else None),
        # A node's peak comes from the graph alone, whether or not it was timed.
        _bar("memory", "peak memory", peaks, size, "at once", "estimated" if alive else None),
        _bar("bytes", "output bytes", output_bytes, size, "at the traced batch", "from the shapes"),
        _categories("device", shown, names, devices, costs, "Profile or plan this model first."),
        _regions(shown, names, analysis),
        _categories("stage", shown, names, stage_names, costs, "Find cuts first, on the tab Cuts."),
        _preparation(shown, names, analysis),
    ]


def _bar(
    identity: str, label: str, values: Sequence[float], shown: Any, quantity: str, basis: str | None
) -> dict[str, Any]:
    most = max(values, default=0.0)
    head = {"id": identity, "label": label, "kind": "bar"}
    if basis is None or most <= 0:
        why = NOT_PROFILED if basis is None else "Nothing here has any."
        return {**head, "values": [], "why": why}
    return {
        **head,
        "values": [round(value / most, 4) for value in values],
        "most": f"{shown(most)} {quantity}",
        "texts": [shown(value) if value else "" for value in values],
        "basis": basis,
    }


def _peaks(hierarchy: Hierarchy) -> dict[str, int]:
    """Bytes alive while each operation runs: of the profile if it has them, else estimated from the graph."""
    graph = hierarchy.graph
    if graph.metadata:
        return {name: cost.peak_bytes for name, cost in graph.metadata.items()}
    try:
        return dict(estimate_memory(graph, graph.traced_batch).node_peak_bytes)
    except InputFault:
        # Sizes that the traced batch does not tell turn off this overlay alone.
        return {}


def _times(hierarchy: Hierarchy, shown: View) -> list[float]:
    """The share of the time of each item's nodes."""
    costs, names = hierarchy.graph.metadata, hierarchy.nodes
    return [sum(costs[names[i]].time_share for i in item.nodes if names[i] in costs) for item in shown.items]


def _output_bytes(hierarchy: Hierarchy, shown: View) -> list[float]:
    """Bytes of each item's values that other items read."""
    by_id, names = hierarchy.graph.by_id, hierarchy.nodes
    totals, item_of = [0.0] * len(shown.items), shown.item_of
    pairs = ((read, node) for node, reads in enumerate(hierarchy.reads) for read in reads)
    for node in {read for read, node in pairs if item_of[read] != item_of[node]}:
        totals[item_of[node]] += by_id[names[node]].output_bytes
    return totals


def _categories(
    label: str,
    shown: View,
    names: Sequence[str],
    category_of: Mapping[str, str],
    costs: Mapping[str, Any],
    why: str,
) -> dict[str, Any]:
    """Boxes in the colours of their nodes' categories, by shares of time (of operations where untimed)."""
    shown_names = set(names)
    known = list(dict.fromkeys(category for name, category in category_of.items() if name in shown_names))
    head = {"id": label, "label": label, "kind": "category"}
    if not known:
        return {**head, "values": [], "why": why}
    place = {name: i for i, name in enumerate(known)}
    values = []
    for item in shown.items:
        parts: dict[int, float] = defaultdict(float)
        for node in item.nodes:
            name = names[node]
            if name in category_of:
                parts[place[category_of[name]]] += (costs[name].time_share if name in costs else 0.0) + 1e-9
        total = sum(parts.values())
        values.append([[i, round(parts[i] / total, 4)] for i in sorted(parts)] if total else [])
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(known))]
    return {**head, "values": values, "names": known, "colours": colours}


def _regions(shown: View, names: Sequence[str], analysis: Analysis) -> dict[str, Any]:
    """How many regions lie around a node; a closed box has the least of its nodes."""
    depth, unit_of = analysis.region_depths, analysis.prepared.unit_of
    values: list[list[list[float]]] = []
    deepest = 0
    for item in shown.items:
        depths = [depth[unit] for node in item.nodes if (unit := unit_of.get(names[node])) and unit in depth]
        level = min(depths, default=-1)
        deepest = max(deepest, level)
        values.append([[level, 1]] if level >= 0 else [])
    last = len(DEPTHS) - 1
    count = min(deepest, last) + 1
    values = [[[min(part[0][0], last), 1]] if part else [] for part in values]
    labels = [f"{i} around" if i < last else f"{last} or more" for i in range(count)]
    return {
        "id": "region", "label": "region nesting", "kind": "category", "values": values,
        "names": labels, "colours": list(DEPTHS[:count]),
    }  # fmt: skip


def _preparation(shown: View, names: Sequence[str], analysis: Analysis) -> dict[str, Any]:
    """What preparation made of the nodes; a closed box is divided by their number, since dead nodes take no time."""
    head = {"id": "preparation", "label": "preparation", "kind": "category"}
    if len(names) > data.MOST_NODES:
        return {**head, "values": [], "why": "Too large a graph: select a node to see what became of it."}
    became = {name: fate_name(analysis, name) for name in names if name in analysis.fates}
    used = set(became.values())
    legend = [(name, colour) for name, colour in FATES if name in used]
    place = {name: i for i, (name, _) in enumerate(legend)}
    values = []
    for item in shown.items:
        parts = Counter(place[became[names[node]]] for node in item.nodes if names[node] in became)
        total = sum(parts.values())
        values.append([[i, round(parts[i] / total, 4)] for i in sorted(parts)])
    return {
        **head, "values": values,
        "names": [name for name, _ in legend], "colours": [colour for _, colour in legend],
    }  # fmt: skip


def fate_name(analysis: Analysis, name: str) -> str:
    """The name in `FATES` for a node; the side-band comes before what put the node there."""
    fate = analysis.fates[name]
    if fate.beside:
        return "side-band"
    if fate.became == "kept":
        return FATES[1 if analysis.prepared.by_id[name].weights else 0][0]
    return {"folded": "folded constant", "fused": "joined its producer", "dead": "dead"}[fate.became]


def svg_fills(hierarchy: Hierarchy, shown: View) -> list[Fill | None]:
    """Bars of time for the SVG file; none without a profile."""
    shares = _times(hierarchy, shown)
    most = max(shares, default=0.0)
    if most <= 0:
        return [None] * len(shares)
    return [Fill(share / most, heat(share / most)) if share > 0 else None for share in shares]


def heat(share: float) -> str:
    """The ramp's colour as #rrggbbaa."""
    return f"{HEAT}{round(255 * (PALEST_HEAT + (FULL_HEAT - PALEST_HEAT) * share)):02x}"

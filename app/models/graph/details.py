"""The panel beside the explorer: everything known of what is selected, and what a cut there would do."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass

from app.format.html import Fact
from app.models.graph.tables import format_arguments, format_shape
from app.session.analysis import Analysis
from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.view import ViewItem
from torchsplit_core.graph import TorchGraph
from torchsplit_core.graph.preparation.prepare import WEIGHT_KINDS
from torchsplit_core.pictures.numbers import percent, short, size
from torchsplit_core.values import PartitionOutcome, Profile, ProfileRow

MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class ProfileTimes:
    """The rows of a profile that turn a node's share of time into ms: measured here, and estimated on a slice."""

    measured: ProfileRow | None
    estimated: ProfileRow | None


def times_of(profile: Profile | None, batch: int, gpu_types: Iterable[str] = ()) -> ProfileTimes:
    """The measured and the estimated row of the batch size nearest to `batch`; the latter of the slowest slice.

    Estimated rows are of `gpu_types`, those of the scenario's fleet, or of an A100-80GB without any.
    """
    rows = [row for row in profile.rows if row.stage == "whole" and row.processes == 1] if profile else []
    wanted = tuple(gpu_types) or ("A100-80GB",)
    measured = [row for row in rows if row.basis != "estimated"]
    estimated = [row for row in rows if row.basis == "estimated" and row.gpu_type in wanted and row.profile]
    estimated.sort(key=lambda row: (abs(row.batch_size - batch), row.throughput_rps, row.profile or ""))
    nearest = min(measured, key=lambda row: abs(row.batch_size - batch), default=None)
    return ProfileTimes(nearest, estimated[0] if estimated else None)


def node_facts(graph: TorchGraph, analysis: Analysis, name: str, times: ProfileTimes) -> list[Fact]:
    """What is known of one node."""
    node = graph.by_id[name]
    cost = graph.metadata.get(name)
    unit = analysis.prepared.unit_of.get(name)
    weights = [read for read in node.inputs if graph.by_id[read].kind in WEIGHT_KINDS]
    facts: list[Fact] = [
        ("operator", html.escape(node.target or node.kind)),
        *([("arguments", html.escape(format_arguments(node)))] if node.arguments else []),
        ("module", html.escape(node.module) or "none"),
        ("output", html.escape(f"{format_shape(node)} {node.dtype or ''}".strip()) or "no tensor"),
        ("bytes out", size(node.output_bytes)),
    ]
    if weights:
        facts.append(("weights read", size(sum(graph.by_id[read].output_bytes for read in weights))))
    facts += _time_facts(cost.time_share if cost else None, times)
    for batch, timing in sorted((cost.times_ms if cost else {}).items()):
        spread = f"{timing.mean:.3g} ± {timing.std:.2g} ms, {timing.min:.3g} to {timing.max:.3g} ms"
        facts.append((f"timed here, batch {batch}", spread))
    facts.append(("peak memory, est.", size(cost.peak_bytes) if cost else "n/a"))
    facts.append(("reads", _format_names([read for read in node.inputs if read not in weights])))
    facts.append(("read by", _format_names(graph.users.get(name, ()))))
    if unit is not None and unit in analysis.regions.position:
        before = analysis.dominance.immediate_dominator(unit)
        after = analysis.dominance.immediate_post_dominator(unit)
        facts.append(("dominated by", html.escape(_last_part(before))))
        facts.append(("post-dominated by", html.escape(_last_part(after))))
    if name in analysis.fates:
        facts.append(("preparation", describe_preparation(analysis, name)))
    return facts


def describe_preparation(analysis: Analysis, name: str) -> str:
    """What preparation for cutting did to a node, as HTML."""
    fate = analysis.fates[name]
    if fate.became == "dead":
        return "dead: no output needs it, set aside"
    if fate.became == "charged":
        return f"weight: charged to {_format_names(fate.to)}"
    beside = ", shipped beside every cut" if fate.beside else ""
    if fate.became in ("folded", "fused"):
        what = "constant: folded into" if fate.became == "folded" else "alias: joined its producer"
        return f"{what} {_format_names(fate.to)}{beside}"
    unit = analysis.prepared.by_id[name]
    joined = f", with {_format_names(i for i in unit.members if i != name)}" if len(unit.members) > 1 else ""
    charged = f", charged with {size(unit.weight_bytes)} of weights" if unit.weights else ""
    return ("side-band: shipped beside every cut" if beside else "kept") + joined + charged


def group_facts(hierarchy: Hierarchy, item: ViewItem, times: ProfileTimes) -> list[Fact]:
    """What is known of a module, a run or a fold."""
    graph = hierarchy.graph
    members = [hierarchy.nodes[i] for i in item.nodes or hierarchy.members(item.id)]
    inside = set(members)
    nodes = [graph.by_id[name] for name in members]
    weights = {read for node in nodes for read in node.inputs if graph.by_id[read].kind in WEIGHT_KINDS}
    entering = {read for node in nodes for read in node.inputs if read not in inside and read not in weights}
    leaving = [node.id for node in nodes if any(user not in inside for user in graph.users[node.id])]
    costs = [graph.metadata[name] for name in members if name in graph.metadata]
    # The first of equal blocks stands for all of a fold or a list.
    member = item.groups[0] if item.groups else item.id
    if item.repeats > 1 and not item.groups:
        member = next(part for part in hierarchy.groups[item.id].parts if isinstance(part, str))
    summary = hierarchy.summary(member, 6)
    return [
        ("operations", short(item.count)),
        ("kinds" if item.repeats < 2 else "kinds, of each block", html.escape(summary)),
        *([("blocks", f"{item.repeats}, equal")] if item.repeats > 1 else []),
        ("weights", size(sum(graph.by_id[name].output_bytes for name in weights))),
        ("bytes in", size(sum(graph.by_id[name].output_bytes for name in entering))),
        ("bytes out", size(sum(graph.by_id[name].output_bytes for name in leaving))),
        *_time_facts(sum(cost.time_share for cost in costs) if costs else None, times),
        ("peak memory, est.", size(max(cost.peak_bytes for cost in costs)) if costs else "n/a"),
        ("values in", _format_names(sorted(entering))),
        ("values out", _format_names(leaving)),
    ]


def region_facts(graph: TorchGraph, analysis: Analysis, index: int, times: ProfileTimes) -> list[Fact]:
    """What is known of a region: one value in, one value out."""
    region = analysis.regions.regions[index]
    units = [analysis.prepared.by_id[name] for name in region.ids]
    members = [name for unit in units for name in unit.members]
    costs = [graph.metadata[name] for name in members if name in graph.metadata]
    bytes_of = {unit.id: unit.output_bytes for unit in analysis.prepared.units}
    return [
        ("region", f"{html.escape(_last_part(region.start))} to {html.escape(_last_part(region.end))}"),
        ("kind", "chain of cut points" if region.kind == "chain" else "between two cut points"),
        ("operations", short(len(members))),
        ("weights", size(sum(unit.weight_bytes for unit in units))),
        ("bytes in", size(bytes_of.get(region.start))),
        ("bytes out", size(bytes_of.get(region.end))),
        *_time_facts(sum(cost.time_share for cost in costs) if costs else None, times),
        ("peak memory, est.", size(max(cost.peak_bytes for cost in costs)) if costs else "n/a"),
    ]


def cut_facts(
    graph: TorchGraph, analysis: Analysis, name: str, times: ProfileTimes, best: PartitionOutcome | None
) -> list[Fact]:
    """What a cut behind this value would do; empty where the value is no cut point."""
    unit = analysis.prepared.unit_of.get(name)
    if unit is None or unit not in analysis.regions.cut_points:
        return []
    before = analysis.regions.before(unit)
    costs = graph.metadata
    members = (name for unit in analysis.prepared.units if unit.id in before for name in unit.members)
    first = sum(costs[member].time_share for member in members if member in costs)
    facts: list[Fact] = [("bytes across", size(analysis.prepared.by_id[unit].output_bytes))]
    row = times.measured or times.estimated
    if costs and row is not None:
        parts = (first * row.batch_ms, (1 - first) * row.batch_ms)
        facts.insert(0, (f"stages, from {row.basis} times", f"{short(parts[0])} | {short(parts[1], 'ms')}"))
    elif costs:
        facts.insert(0, ("stages, share", f"{percent(first)} | {percent(1 - first)}"))
    if best is not None and best.candidates:
        loads = best.candidates[0].loads_ms
        total = sum(loads) or 1
        facts.append(("best found, est.", " | ".join(percent(load / total) for load in loads)))
    return facts


def _time_facts(share: float | None, times: ProfileTimes) -> list[Fact]:
    if share is None:
        return [("time", "n/a")]
    facts: list[Fact] = [("share of the time", percent(share))]
    if times.measured is not None:
        row = times.measured
        facts.append((f"time, {row.basis} here, batch {row.batch_size}", short(share * row.batch_ms, "ms")))
    if times.estimated is not None:
        row = times.estimated
        low, high = row.low_rps, row.high_rps
        spread = ""
        if low and high:
            # Throughput and time are each other's inverse at one process.
            ends = [share * 1000 * row.batch_size / rate for rate in (high, low)]
            spread = f" ({short(ends[0])} to {short(ends[1])})"
        label = f"on {html.escape(row.gpu_type)} {html.escape(row.profile or '')}, batch {row.batch_size}"
        time = f'<span class="estimated">{short(share * row.batch_ms, "ms")}{spread} est.</span>'
        facts.append((label, time))
    return facts


def _format_names(names: Iterable[str]) -> str:
    unique = list(dict.fromkeys(names))
    text = ", ".join(html.escape(name) for name in unique[:MOST_NAMED])
    return (text + (f" and {len(unique) - MOST_NAMED} more" if len(unique) > MOST_NAMED else "")) or "nothing"


def _last_part(name: str | None) -> str:
    return {"<entry>": "the inputs", "<exit>": "the outputs", None: "n/a"}.get(name, str(name))

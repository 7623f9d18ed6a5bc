"""A placement in words and tables. No streamlit in here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from app.charts.pipeline import slowest
from app.format.badges import Colour
from torchsplit_core.pictures.numbers import exact, percent, short
from torchsplit_core.values import PlacementFrontier, PlacementOutcome, PlacementRequest, RooflineThroughput
from torchsplit_core.values.placement import Split
from torchsplit_core.values.units import GB, GIB

SPLITS: Mapping[Split, str] = {
    "equal": "Batch in equal parts",
    "proportional": "Batch in proportion to speed",
    "tensor": "Every layer cut (tensor parallel)",
}
UNITS: Mapping[Literal["tokens_per_s", "seed_literal"], str] = {
    "tokens_per_s": "Tokens/s for both",
    "seed_literal": "As published: links in batches/s",
}
FIELD_LABELS = {
    "layers": ("layers", ""),
    "hidden_size": ("hidden size", ""),
    "ffn_size": ("feed-forward size", ""),
    "layer_weight_gib": ("weights of a layer, GiB", ""),
    "sequence_length": ("sequence", ""),
    "batch_size": ("batch", ""),
    "sequences_in_flight": ("sequences in flight", "a batch a segment"),
    "prefill_chunk": ("prompt piece", "none"),
}
"""Fields of a model that the form edits: the label of each, and what stands for None."""
MOST_NAMED = 3


def shown_link(gib_per_s: float) -> float:
    """A placement's GiB/s in GB/s, the unit of links on every page."""
    return float(f"{gib_per_s * GIB / GB:.9g}")


def stored_link(gb_per_s: float, before: float | None = None) -> float:
    """GB/s of a page in GiB/s; exactly `before` where the page shows that, so that equal links stay equal."""
    if before is not None and gb_per_s == shown_link(before):
        return before
    return gb_per_s * GB / GIB


def unit_of(outcome: PlacementOutcome | PlacementFrontier) -> str:
    """The unit of the throughput; "" where batches/s of links were compared with tokens/s."""
    return "tokens/s" if outcome.units == "tokens_per_s" else ""


def bottleneck(outcome: PlacementOutcome) -> tuple[str, str]:
    """The bottleneck: a few words, and a sentence."""
    segments, links = slowest(outcome)
    if not segments and not links and outcome.sequences_in_flight is not None:
        # A pass makes one token of every sequence in flight, which is slower than any part of the pipeline.
        text = f"{outcome.sequences_in_flight:,} sequences get a token each in the time of a pass."
        more = "More sequences, or a shorter pipeline, would raise the throughput."
        return "Sequences in flight", f"{text} {more}"
    if len(segments) == len(outcome.segments) > 1:
        return "All segments", "All segments are equally slow: the pipeline is balanced."
    named = [f"segment {place + 1}" for place in segments]
    named += [f"the link from segment {place + 1} to {place + 2}" for place in links]
    shown = ", ".join(named[:MOST_NAMED])
    if len(named) > MOST_NAMED:
        shown += f" and {len(named) - MOST_NAMED} more"
    head = f"Segment {segments[0] + 1}" if segments else f"Link {links[0] + 1} to {links[0] + 2}"
    if len(named) > 1:
        counted = ((len(segments), "segment"), (len(links), "link"))
        head = ", ".join(f"{count} {what}{'s' if count > 1 else ''}" for count, what in counted if count)
    if len(outcome.segments) == 1:
        return head, "The only segment is the whole."
    remedy = "faster GPUs there would raise the whole" if segments else "a faster link would raise the whole"
    if segments and links:
        remedy = "both would have to be faster to raise the whole"
    return head, f"{shown[0].upper()}{shown[1:]}: {remedy}."


def proof(outcome: PlacementOutcome) -> tuple[str, Colour]:
    """How far the outcome is proven, and the colour of that badge."""
    if outcome.status == "optimal":
        return "proven optimal", "gray"
    if outcome.status == "feasible":
        return (f"gap {percent(outcome.gap)}" if outcome.gap is not None else "gap not known"), "yellow"
    if outcome.status == "infeasible":
        return "proven infeasible", "red"
    return "nothing found in time", "yellow"


def latency_labels(request: PlacementRequest) -> tuple[str, str, str]:
    """The title of the card with the latency, the curve's name for the time of a pass, and the card's note."""
    speeds = request.throughput
    if not isinstance(speeds, RooflineThroughput):
        return "Time of a batch", "time of a batch", "through all segments and links"
    if speeds.phase == "decode":
        return "Time per token", "time of a pass", "of one sequence, through all segments"
    return "Time to first token", "time to first token", "of the whole batch"


def single_pipeline(outcome: PlacementOutcome, number: int) -> PlacementOutcome:
    """One of several pipelines as an outcome without a bound; a single pipeline is the outcome itself."""
    if not outcome.replicas:
        return outcome
    replica = outcome.replicas[number]
    return replace(
        outcome, throughput=replica.throughput, bound=None, gap=None, latency_s=replica.latency_s,
        segments=replica.segments,
        links=replica.links, replicas=(), sequences_in_flight=replica.sequences_in_flight,
    )  # fmt: skip


def gpus_used(outcome: PlacementOutcome) -> int:
    """GPUs of all pipelines."""
    parts = [part for replica in outcome.replicas for part in replica.segments] or list(outcome.segments)
    return sum(len(part.gpu_ids) for part in parts)


def replicas_table(outcome: PlacementOutcome) -> dict[str, list[Any]]:
    """A row for each pipeline, the fastest first."""
    rows = outcome.replicas
    return {
        "pipeline": list(range(1, len(rows) + 1)),
        unit_of(outcome) or "throughput": [replica.throughput for replica in rows],
        "ms of a pass": [1e3 * replica.latency_s for replica in rows],
        **_in_flight([replica.sequences_in_flight for replica in rows]),
        "segments": [len(replica.segments) for replica in rows],
        "GPUs": [sum(len(part.gpu_ids) for part in replica.segments) for replica in rows],
    }


def curve_table(curve: PlacementFrontier) -> dict[str, list[Any]]:
    """A row for each pipeline of the curve, by rising throughput."""
    points = curve.points
    return {
        unit_of(curve) or "throughput": [point.throughput for point in points],
        "ms of a pass": [1e3 * point.latency_s for point in points],
        "none below, ms": [1e3 * point.latency_bound_s for point in points],
        **_in_flight([point.sequences_in_flight for point in points]),
        "proven": ["yes" if point.proven else "no" for point in points],
        "segments": [len(point.segments) for point in points],
        "GPUs": [sum(len(part.gpu_ids) for part in point.segments) for point in points],
    }


def segments_table(outcome: PlacementOutcome, request: PlacementRequest) -> dict[str, list[Any]]:
    """A row for each segment, exact."""
    types = {gpu.id: gpu.type for gpu in request.gpus}
    slow = slowest(outcome)[0]
    rows = outcome.segments
    return {
        "segment": list(range(1, len(rows) + 1)),
        "layers": [_layers(part.start_layer, part.end_layer) for part in rows],
        "GPUs": [", ".join(map(str, part.gpu_ids)) for part in rows],
        "types": [", ".join(dict.fromkeys(types[gpu] for gpu in part.gpu_ids)) for part in rows],
        "tokens/s": [part.throughput for part in rows],
        "sequences a GPU": [_list(part.batch_per_gpu) for part in rows],
        "memory a GPU, GiB": [_list(part.memory_gib) for part in rows],
        "slowest": ["yes" if place in slow else "no" for place in range(len(rows))],
    }


def links_table(outcome: PlacementOutcome, request: PlacementRequest) -> dict[str, list[Any]]:
    """A row for each link: its throughput, and the GB/s of its slowest pair."""
    order = {gpu.id: place for place, gpu in enumerate(request.gpus)}
    slow, parts = slowest(outcome)[1], outcome.segments

    def gb_per_s(place: int) -> float:
        first, second = parts[place].gpu_ids, parts[place + 1].gpu_ids
        return shown_link(min(request.bandwidth_gib_per_s[order[a]][order[b]] for a in first for b in second))

    unit = "tokens/s" if outcome.units == "tokens_per_s" else "batches/s"
    return {
        "from segment": [link.from_segment + 1 for link in outcome.links],
        "to segment": [link.to_segment + 1 for link in outcome.links],
        unit: [link.throughput for link in outcome.links],
        "slowest pair, GB/s": [gb_per_s(place) for place in range(len(outcome.links))],
        "slowest": ["yes" if place in slow else "no" for place in range(len(outcome.links))],
    }


def comparison_table(rows: Sequence[tuple[str, PlacementOutcome, float | None]]) -> dict[str, list[Any]]:
    """A row for each solver on the same request, with its proof and the throughput on its GPUs."""
    outcomes = [outcome for _, outcome, _ in rows]
    return {
        "solver": [label for label, _, _ in rows],
        "tokens/s": [outcome.throughput for outcome in outcomes],
        "on its GPUs": [delivered for _, _, delivered in rows],
        "at most": [outcome.bound for outcome in outcomes],
        "proof": [proof(outcome)[0] for outcome in outcomes],
        "segments": [len(outcome.segments) or None for outcome in outcomes],
        "GPUs": [gpus_used(outcome) or None for outcome in outcomes],
    }


def describe_changes(before: PlacementRequest, after: PlacementRequest) -> tuple[str, ...]:
    """The changes of an edit, in words."""
    lines = []
    for field, (label, unset) in FIELD_LABELS.items():
        values = (getattr(request.model, field) for request in (before, after))
        old, new = (unset if value is None else exact(value) for value in values)
        if old != new:
            lines.append(f"{label} {old} → {new}")
    if before.max_gpus_per_segment != after.max_gpus_per_segment:
        lines.append(f"GPUs a segment {before.max_gpus_per_segment} → {after.max_gpus_per_segment}")
    if before.split != after.split:
        lines.append(f"split {SPLITS[after.split].lower()}")
    if before.units != after.units:
        lines.append(f"units {UNITS[after.units].lower()}")
    if before.same_type_segments != after.same_type_segments:
        lines.append("one type a segment" if after.same_type_segments else "types mixed in a segment")
    if before.max_replicas != after.max_replicas:
        lines.append(f"pipelines {before.max_replicas} → {after.max_replicas}")
    if before.gpus != after.gpus:
        memory = {gpu.id: gpu.memory_gib for gpu in before.gpus}
        remaining = [gpu for gpu in after.gpus if gpu.id in memory]
        for gpus, words in ((before.gpus, "fewer"), (after.gpus, "more")):
            if count := len(gpus) - len(remaining):
                lines.append(f"{count} GPU{'s' if count > 1 else ''} {words}")
        if any(memory[gpu.id] != gpu.memory_gib for gpu in remaining):
            lines.append("memory of GPUs")
    return tuple(lines)


def _in_flight(counts: list[int | None]) -> dict[str, list[Any]]:
    """The column of sequences in flight, which only a decode has."""
    return {"in flight": counts} if any(count is not None for count in counts) else {}


def _layers(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def _list(value: float | tuple[float, ...]) -> str:
    if not isinstance(value, tuple):
        return short(value)
    return short(value[0]) if value and len(set(value)) == 1 else ", ".join(map(short, value))


def headline(outcome: PlacementOutcome) -> str:
    """The throughput in one number, as pictures show it."""
    return short(outcome.throughput, unit_of(outcome))

"""The results of a measurement as rows, node shares, failures and the environment of a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.profiling.memory import CUDA_CONTEXT_BYTES, MemoryEstimate, estimate_memory
from torchsplit_core.profiling.pace import fit_pace, rounds_of
from torchsplit_core.profiling.points import MeasurementLog, MeasurementSettings
from torchsplit_core.values import (
    Device,
    InternalFault,
    LatencyPercentiles,
    MemoryParts,
    NodeProfile,
    NodeTimes,
    Percentile,
    ProfileFailure,
    ProfileRow,
)
from torchsplit_core.values.units import GIB

UNKNOWN_OPERATIONS_ALLOWED = 2
"""Operations of the child's export that the graph may lack before the two count as different models."""
CPU = "CPU"
"""The gpu_type of rows measured on a processor."""


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """The results of one model's measurement on one device. `nodes` is empty if operations were not timed."""

    graph: TorchGraph
    rows: tuple[ProfileRow, ...]
    nodes: tuple[NodeProfile, ...]
    failures: tuple[ProfileFailure, ...]
    environment: Mapping[str, Any]
    notes: tuple[str, ...]


def build_measured_model(
    graph: TorchGraph,
    device: Device,
    sizes: Sequence[int],
    settings: MeasurementSettings,
    log: MeasurementLog,
    processes: int = 1,
) -> MeasuredModel:
    """The children's points as the contract's values, without batch sizes outside `sizes`."""
    points = sorted((point for point in log.points), key=lambda point: point.batch_size)
    batches = [point for point in points if point.kind == "batch" and point.batch_size in sizes]
    timed = {point.batch_size: point.content for point in points if point.kind == "nodes"}
    profile = device.profile
    length = settings.sequence_length
    # A compiled model is not the program whose process reported its memory.
    compiled_model = bool(settings.compile_mode)
    pace = (
        fit_pace([rounds_of(point.content, measuring_child_only=compiled_model) for point in batches])
        if device.kind == "cpu"
        else None
    )
    rows = tuple(
        replace(_row(point.content, graph, device, profile), sequence_length=length, pace=pace)
        for point in batches
    )
    failures = tuple(
        ProfileFailure(
            stage="whole",
            gpu_type=device.gpu_type,
            profile=profile,
            batch_size=item["batch_size"],
            processes=processes,
            reason=item["reason"],
            message=item["message"],
            device=device.id,
            sequence_length=length,
        )
        for item in sorted(log.failures, key=lambda item: int(item["batch_size"]))
        if item["kind"] == "batch" and item["batch_size"] in sizes
    )
    nodes = () if settings.dtype and _unknown_operations(timed, graph) else _nodes(timed, graph)
    label = "Batch" if processes == 1 else f"{processes} processes, batch"
    notes = [f"{label} {failure.batch_size}: {failure.message}" for failure in failures]
    notes += [
        f"Operations could not be timed at batch {item['batch_size']}"
        + ("" if nodes else ", their shares are estimated")
        + f": {item['message']}"
        for item in log.failures
        if item["kind"] == "nodes"
    ]
    notes += [note for point in batches for note in _point_notes(point.content)]
    # A note of all numbers of processes is given once.
    notes += _comparability_notes(settings, bool(timed) and not nodes) if processes == 1 else []
    if why := log.environment.get("held_fault"):
        notes.append(f"What a process holds was not measured, memory is that of its tensors alone: {why}")
    requested_sms, granted_sms = log.environment.get("sm_asked"), log.environment.get("sm_count")
    if requested_sms is not None and requested_sms != granted_sms:
        notes.append(
            f"{requested_sms} SMs were asked for; the driver gave {granted_sms or 'a number that it does not tell'}."
        )
    environment = dict(log.environment) | {
        "device_id": device.id,
        "device_name": device.name,
        "basis": device.basis,
        "taken_over": sorted(log.taken_over.intersection(sizes)),
        "point_budget_s": settings.point_budget_s,
        "memory_basis": _memory_basis(rows),
        "nodes_batch_sizes": sorted(timed),
        "sum_of_nodes_over_run": _sum_over_run(timed),
    }
    return MeasuredModel(graph, rows, nodes, failures, environment, tuple(notes))


def _comparability_notes(settings: MeasurementSettings, other_operations: bool) -> list[str]:
    """Differences of the measured rows from the estimated ones and from the timed operations."""
    notes = []
    if settings.dtype:
        notes.append(f"Measured in {settings.dtype}; what is estimated has the dtypes of the traced graph.")
    if other_operations:
        notes.append(
            "In that dtype the model has other operations: their times are left out, shares are estimated."
        )
    if settings.compile_mode:
        notes.append(
            f"Measured under torch.compile ({settings.compile_mode}); operations were timed uncompiled."
        )
    return notes


def _point_notes(content: Mapping[str, Any]) -> list[str]:
    """What a reader of a point should know besides its figures."""
    notes = []
    if why := content.get("unsteady"):
        again = ", measured again as well" if content["looks"] > 2 else ""
        notes.append(
            f"Batch {content['batch_size']} is unsteady{again}: {why}. Measure again while nothing else runs here."
        )
    if not content["finite"]:
        notes.append(f"Batch {content['batch_size']}: the outputs have NaN or infinite values.")
    if content["grew_bytes"]:
        notes.append(
            f"Batch {content['batch_size']}: memory grew by {content['grew_bytes'] / 2**20:.0f} MiB over "
            f"{content['latency']['runs']} runs; the model may leak."
        )
    return notes


def _row(content: Mapping[str, Any], graph: TorchGraph, device: Device, profile: str | None) -> ProfileRow:
    batch = int(content["batch_size"])
    latency = LatencyPercentiles(
        runs=content["latency"]["runs"],
        **{name: Percentile(**content["latency"][name]) for name in ("p50", "p95", "p99")},
    )
    rates = content.get("rates") or {
        "rps": 1000 * batch / content["mean_ms"],
        "low_rps": 1000 * batch / content["mean_high_ms"],
        "high_rps": 1000 * batch / content["mean_low_ms"],
    }
    parts = memory_parts(
        content["peak"],
        estimate_memory(graph, batch),
        cuda=device.kind != "cpu",
        held_bytes=content.get("held_bytes"),
    )
    return ProfileRow(
        stage="whole",
        gpu_type=device.gpu_type,
        profile=profile,
        batch_size=batch,
        processes=content.get("processes", 1),
        throughput_rps=rates["rps"],
        latency_ms=latency.p95.value,
        low_rps=rates["low_rps"],
        high_rps=rates["high_rps"],
        memory_gib=parts.weights + parts.activations + parts.transient + parts.context,
        basis=device.basis,
        device=device.id,
        percentiles_ms=latency,
        memory_parts_gib=parts,
    )


def memory_parts(
    peak: Mapping[str, Any] | None, estimate: MemoryEstimate, *, cuda: bool, held_bytes: int | None = None
) -> MemoryParts:
    """The measured peak in its parts, or the estimate if none was measured.

    CUDA's context is assumed; on a processor it is the part of `held_bytes`, all that the process holds, that is in
    none of the other parts, and 0 if that was not measured.
    """
    tensors = estimate.peak_bytes if peak is None else peak["peak_bytes"]
    context = CUDA_CONTEXT_BYTES / GIB if cuda else max(0, (held_bytes or 0) - tensors) / GIB
    if peak is not None:
        return MemoryParts(
            weights=peak["weight_bytes"] / GIB,
            activations=peak["activation_bytes"] / GIB,
            transient=peak["transient_bytes"] / GIB,
            context=context,
            basis="measured",
        )
    return MemoryParts(
        weights=estimate.weight_bytes / GIB,
        activations=estimate.activation_bytes / GIB,
        transient=estimate.transient_bytes / GIB,
        context=context,
        basis="estimated",
    )


def _memory_basis(rows: Sequence[ProfileRow]) -> str:
    bases = {row.memory_parts_gib.basis for row in rows if row.memory_parts_gib}
    return bases.pop() if len(bases) == 1 else "mixed"


def _sum_over_run(timed: Mapping[int, Mapping[str, Any]]) -> dict[str, float]:
    """By batch size: the sum of the operations' times over the time of their run, median of the runs."""
    by_batch = {}
    for batch, content in sorted(timed.items()):
        ratios = sorted(operations / whole for whole, operations in content["runs_ms"])
        by_batch[str(batch)] = round(ratios[len(ratios) // 2], 4)
    return by_batch


def _nodes(timed: Mapping[int, Mapping[str, Any]], graph: TorchGraph) -> tuple[NodeProfile, ...]:
    """Shares from per-node minima. Raises InternalFault if the timed model is not the traced one."""
    if not timed:
        return ()
    peaks = estimate_memory(graph, graph.traced_batch).node_peak_bytes
    times = {batch: _times(content["items"]) for batch, content in sorted(timed.items())}
    shares = {batch: _shares(content["items"], graph) for batch, content in sorted(timed.items())}
    reference_batch = graph.traced_batch if graph.traced_batch in timed else min(timed)
    written = {str(item["id"]): int(item["output_bytes"]) for item in timed[reference_batch]["items"]}
    return tuple(
        NodeProfile(
            id=node.id,
            time_share=shares[reference_batch][node.id],
            output_bytes=written.get(node.id, node.output_bytes)
            if reference_batch == graph.traced_batch
            else node.output_bytes,
            peak_bytes=peaks[node.id],
            time_shares={batch: by_node[node.id] for batch, by_node in shares.items()},
            times_ms={batch: by_node[node.id] for batch, by_node in times.items() if node.id in by_node},
        )
        for node in graph.ops
    )


def _times(items: Sequence[Mapping[str, Any]]) -> dict[str, NodeTimes]:
    """Each operation's times to six digits; points of an earlier version only have minima and give none."""
    fields = ("mean_ms", "deviation_ms", "least_ms", "most_ms")
    return {
        str(item["id"]): NodeTimes(*(float(f"{item[name]:.6g}") for name in fields))
        for item in items
        if "mean_ms" in item
    }


def _shares(items: Sequence[Mapping[str, Any]], graph: TorchGraph) -> dict[str, float]:
    """Each operation's share of the sum of the minimum times."""
    expected = {node.id for node in graph.ops}
    if unknown := _unknown_operations({0: {"items": items}}, graph):
        raise InternalFault(f"the timed export and the traced graph differ: {', '.join(unknown[:5])}")
    least = {str(item["id"]): float(item["least_ms"]) for item in items if item["id"] in expected}
    total = sum(least.values())
    return {node.id: least.get(node.id, 0.0) / total if total else 0.0 for node in graph.ops}


def _unknown_operations(timed: Mapping[int, Mapping[str, Any]], graph: TorchGraph) -> list[str]:
    """Timed operations missing from the graph, if there are more than an export may add."""
    expected = {node.id for node in graph.ops}
    for content in timed.values():
        unknown = [str(item["id"]) for item in content["items"] if item["id"] not in expected]
        if len(unknown) > UNKNOWN_OPERATIONS_ALLOWED:
            return unknown
    return []


def slowest_row(rows: Sequence[ProfileRow]) -> ProfileRow:
    """Several measurements of one key as one row: the slowest, with an interval that spans all."""
    slowest = min(rows, key=lambda row: row.throughput_rps)
    lows = [row.low_rps for row in rows if row.low_rps is not None]
    highs = [row.high_rps for row in rows if row.high_rps is not None]
    return replace(slowest, low_rps=min(lows, default=None), high_rps=max(highs, default=None))

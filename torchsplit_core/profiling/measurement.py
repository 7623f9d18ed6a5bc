"""Measure a model on this host: end to end over a batch grid, and operation by operation.

The model is foreign code and runs in a limited child process; this file checks the question before and
shapes the answer after. Importing it does not load torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchsplit_core.graph.graph_json import graph_from_dict
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.hardware import discover_host
from torchsplit_core.isolation import Limits, run_limited
from torchsplit_core.profiling.estimate import estimated_nodes
from torchsplit_core.profiling.memory import CUDA_CONTEXT_BYTES, estimate_memory
from torchsplit_core.values import (
    InputFault,
    InternalFault,
    NodeProfile,
    ProfileRow,
    Progress,
    ignore_progress,
)

LARGEST_MEASURED_BATCH = 4096
MOST_BATCH_SIZES = 16
EXPORTER = "torchsplit_core.tracing.export:export_program"
"""What exports as tracing does, so that node names agree: "module:function" of (model, args, kwargs, other),
other being (args, kwargs) of one row more."""
DESCRIBER = "torchsplit_core.tracing.export:describe_program"
"""What makes the contract's graph of an export: "module:function" of (program, batch)."""
TRACED_BATCH = 2
"""The batch of a graph that is made while measuring; the same as tracing's."""
STRANGERS_ALLOWED = 2
"""Operations of the export in the child that the graph may lack before the two count as different models."""
CPU = "CPU"
"""The gpu_type of rows measured on a processor."""

Environment = dict[str, str | int | float | bool | None]


def measure(
    source: str,
    graph: TorchGraph,
    *,
    device: str = "auto",
    batch_sizes: Sequence[int] = (1, 2, 4),
    trust: bool = False,
    point_budget_s: float = 2.0,
    exporter: str = EXPORTER,
    progress: Progress = ignore_progress,
    limits: Limits | None = None,
) -> tuple[tuple[ProfileRow, ...], tuple[NodeProfile, ...], Environment]:
    """Rows (basis measured), node shares and environment of a model on "auto", "cpu" or "cuda".

    `point_budget_s` seconds for each batch size, and for the operations; every point gets three runs at
    least. throughput = batch / p50 with a 90 % interval of the median, latency_ms = p95 of the runs.
    On a processor memory_gib is estimated by liveness (see `memory`), on a GPU it is the measured peak.
    `environment["notes"]` says what failed or was left out.
    Raises InputFault for a bad grid, a device that is not here, or a model that does not run at all.
    """
    answer = _ask_child(source, graph, device, batch_sizes, trust, point_budget_s, exporter, progress, limits)
    return _found(answer, graph, point_budget_s)


def trace_and_measure(
    source: str,
    *,
    device: str = "auto",
    batch_sizes: Sequence[int] = (1, 2, 4),
    trust: bool = False,
    point_budget_s: float = 2.0,
    progress: Progress = ignore_progress,
    limits: Limits | None = None,
) -> tuple[TorchGraph, tuple[ProfileRow, ...], tuple[NodeProfile, ...], Environment]:
    """Like `measure` for a model that was not traced yet: one child process, one export for both.

    Raises InputFault as `measure` does, and where the model cannot be exported.
    """
    answer = _ask_child(source, None, device, batch_sizes, trust, point_budget_s, EXPORTER, progress, limits)
    graph = graph_from_dict(answer["graph"])
    return graph, *_found(answer, graph, point_budget_s)


def _ask_child(
    source: str,
    graph: TorchGraph | None,
    device: str,
    batch_sizes: Sequence[int],
    trust: bool,
    point_budget_s: float,
    exporter: str,
    progress: Progress,
    limits: Limits | None,
) -> dict[str, Any]:
    """Check the question and run it in the limited child; without a graph the child makes one too."""
    sizes = check_batch_sizes(batch_sizes)
    check_budget(point_budget_s)
    wanted = check_device(device)
    arguments = {
        "source": source,
        "trust": trust,
        "device": wanted,
        "batch_sizes": list(sizes),
        "point_budget_s": point_budget_s,
        "exporter": exporter,
        "describe": None if graph else DESCRIBER,
        "traced_batch": graph.traced_batch if graph else TRACED_BATCH,
    }
    answer: dict[str, Any] = run_limited(
        "torchsplit_core.profiling.child:measure_in_child",
        arguments,
        limits=limits or _limits(wanted, len(sizes), point_budget_s),
        progress=progress,
        subject=f"profile of {source}",
    )
    return answer


def _found(
    answer: Mapping[str, Any], graph: TorchGraph, point_budget_s: float
) -> tuple[tuple[ProfileRow, ...], tuple[NodeProfile, ...], Environment]:
    """The child's answer as rows, node shares and environment."""
    environment: Environment = dict(answer["environment"])
    notes = list(answer["notes"])
    gpu_type, device_name = _names(environment)
    environment["device_name"] = device_name
    rows = tuple(_row(item, graph, gpu_type) for item in answer["rows"])
    nodes = _nodes(answer["nodes"], graph)
    environment |= {
        "point_budget_s": point_budget_s,
        "memory_basis": "measured: peak of torch's allocator and the context"
        if gpu_type != CPU
        else "estimated: weights and liveness of activations",
        "nodes_basis": "measured" if nodes else "estimated",
        "nodes_batch_size": graph.traced_batch,
        "notes": " ".join(notes),
    }
    for item in answer["rows"]:
        for key in ("p50_ms", "p99_ms", "runs"):
            environment[f"batch_{item['batch_size']}_{key}"] = item[key]
    return rows, nodes or estimated_nodes(graph), environment


def check_batch_sizes(batch_sizes: Sequence[int]) -> tuple[int, ...]:
    """The grid, ascending, each size once; InputFault for an empty, long, non-positive or huge one."""
    rule = f"a batch grid has 1 to {MOST_BATCH_SIZES} integers from 1 to {LARGEST_MEASURED_BATCH}"
    remedy = "For example 1,2,4,8."
    for size in batch_sizes:
        proper = isinstance(size, int) and not isinstance(size, bool)
        if not proper or not 1 <= size <= LARGEST_MEASURED_BATCH:
            raise InputFault("batch sizes", size, rule, remedy)
    sizes = tuple(sorted(set(batch_sizes)))
    if not 1 <= len(sizes) <= MOST_BATCH_SIZES:
        raise InputFault("batch sizes", batch_sizes, rule, remedy)
    return sizes


def check_budget(point_budget_s: float) -> None:
    """InputFault for a time budget that is not between 10 ms and 10 minutes."""
    if not 0.01 <= point_budget_s <= 600:
        raise InputFault("time per point", point_budget_s, "it is 0.01 to 600 seconds", "For example 2.")


def check_device(device: str) -> str:
    """ "auto", "cpu" or "cuda" if this host has it; InputFault otherwise."""
    if device in ("auto", "cpu"):
        return device
    host = discover_host()
    if device == "cuda" and host.gpus:
        return device
    if device in ("cuda", "mig") or device.startswith("sm:"):
        found = host.message if device == "cuda" else "Slices are estimated from the graph instead."
        raise InputFault("device", device, "not available on this host", f"Use --device cpu. {found}")
    raise InputFault("device", device, "a device is auto, cpu, cuda, mig or sm:N", "Use --device auto.")


def _limits(device: str, points: int, budget_s: float) -> Limits:
    """Time for building, exporting and every point at its worst; CUDA maps more than it uses."""
    wall_s = 180.0 + (points + 1) * 20.0 * budget_s
    if device == "cpu" or not discover_host().gpus:
        return Limits(wall_s=wall_s, cpu_s=None)
    return Limits(wall_s=wall_s, cpu_s=None, memory_bytes=None)


def _names(environment: Mapping[str, Any]) -> tuple[str, str]:
    """The gpu_type of the rows (the catalogue's name where it has one) and the device's own name."""
    host = discover_host()
    if environment["device"] == "cpu":
        return CPU, host.cpu_name
    name = str(environment["device_name"])
    known = next((gpu.gpu_type for gpu in host.gpus if gpu.name == name and gpu.gpu_type), None)
    return known or name, name


def _row(item: Mapping[str, Any], graph: TorchGraph, gpu_type: str) -> ProfileRow:
    batch = int(item["batch_size"])
    if item["peak_bytes"] is None:
        memory_gib = estimate_memory(graph, batch).instance_gib(cuda=False)
    else:
        memory_gib = (item["peak_bytes"] + CUDA_CONTEXT_BYTES) / 2**30
    return ProfileRow(
        stage="whole",
        gpu_type=gpu_type,
        profile=None,
        batch_size=batch,
        processes=1,
        throughput_rps=1000 * batch / item["p50_ms"],
        latency_ms=item["p95_ms"],
        low_rps=1000 * batch / item["high_ms"],
        high_rps=1000 * batch / item["low_ms"],
        memory_gib=memory_gib,
        basis="measured",
    )


def _nodes(timed: Sequence[Mapping[str, Any]], graph: TorchGraph) -> tuple[NodeProfile, ...]:
    """Shares from per-node minima; InternalFault where the timed model is not the traced one."""
    if not timed:
        return ()
    expected = {node.id for node in graph.ops}
    strangers = [item["id"] for item in timed if item["id"] not in expected]
    if len(strangers) > STRANGERS_ALLOWED:
        raise InternalFault(f"the timed export and the traced graph differ: {', '.join(strangers[:5])}")
    least = {str(item["id"]): item for item in timed if item["id"] in expected}
    total = sum(item["least_ms"] for item in least.values())
    peaks = estimate_memory(graph, graph.traced_batch).node_peak_bytes
    return tuple(
        NodeProfile(
            id=node.id,
            time_share=least[node.id]["least_ms"] / total if node.id in least and total else 0.0,
            output_bytes=int(least[node.id]["output_bytes"]) if node.id in least else node.output_bytes,
            peak_bytes=peaks[node.id],
        )
        for node in graph.ops
    )

"""The part of a measurement that executes the model: runs inside a limited child process.

It answers in JSON values only. A batch size that fails or does not fit in memory is a note, not an end.
"""

from __future__ import annotations

import importlib
import platform
import time
from typing import Any

import torch

from torchsplit_core.clients import example_arguments, foreign_code, load_client, open_model
from torchsplit_core.isolation import is_out_of_memory
from torchsplit_core.profiling.annotators import SEED, RuntimeAnnotator, time_runs, to_device
from torchsplit_core.profiling.statistics import summarise
from torchsplit_core.values import InputFault, Progress, SplitClient

PATIENCE = 15.0
"""A batch size whose three runs would take more than this many budgets is left out, with a note …"""
LEAST_PATIENCE_S = 20.0
"""… but not one whose three runs take less than this: a small budget asks for few runs, not for few sizes."""
SHARE_FOR_BATCHES = 0.6
"""Share of the progress that the end-to-end runs stand for; the rest is export and node times."""


def measure_in_child(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Rows, node times, notes and environment of one model; arguments as `measurement.measure` sends them.

    Raises InputFault where the model cannot be built or no batch size ran.
    """
    device = _device(arguments["device"])
    torch.manual_seed(SEED)
    progress(0.0, "building the model")
    client = load_client(arguments["source"], arguments["trust"])
    model = open_model(client)
    with foreign_code("moving the model to the device"):
        model = model.to(device)
    rows, notes = _batches(client, model, device, arguments, progress)
    if not rows:
        raise InputFault(
            "batch sizes",
            arguments["batch_sizes"],
            "at least one batch size runs on this device",
            " ".join(notes) or "Use smaller ones.",
        )
    progress(SHARE_FOR_BATCHES, "exporting")
    graph, nodes = _nodes(client, model.to("cpu"), arguments, device, notes, progress)
    progress(1.0, "done")
    return {"rows": rows, "nodes": nodes, "graph": graph, "notes": notes, "environment": _environment(device)}


def _device(wanted: str) -> str:
    """ "cpu" or "cuda"; auto takes a GPU where torch can use one."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise InputFault(
            "device",
            wanted,
            "this build of torch can use the GPU",
            "Install a CUDA build of torch, or use --device cpu.",
        )
    return "cuda"


def _batches(
    client: SplitClient, model: Any, device: str, arguments: dict[str, Any], progress: Progress
) -> tuple[list[dict[str, Any]], list[str]]:
    """Every batch size, smallest first, within its time; what went wrong as notes."""
    budget_s = float(arguments["point_budget_s"])
    sizes: list[int] = arguments["batch_sizes"]
    patience_ms = 1000 * max(PATIENCE * budget_s, LEAST_PATIENCE_S)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for index, batch in enumerate(sizes):
        progress(SHARE_FOR_BATCHES * index / len(sizes), f"batch size {batch}")
        if rows and rows[-1]["p50_ms"] * batch / rows[-1]["batch_size"] * 3 > patience_ms:
            notes.append(
                f"Batch {batch} and larger left out: three runs would take too long for the time budget."
            )
            break
        try:
            rows.append(_batch(client, model, device, batch, budget_s))
        except InputFault as fault:
            notes.append(f"Batch {batch} failed: {fault}")
        except (MemoryError, RuntimeError, OSError) as fault:
            if not is_out_of_memory(fault):
                raise
            notes.append(f"Batch {batch} and larger left out: out of memory.")
            break
    return rows, notes


def _batch(client: SplitClient, model: Any, device: str, batch: int, budget_s: float) -> dict[str, Any]:
    args, kwargs = to_device(example_arguments(client, batch), torch.device(device))
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with foreign_code(f"forward at batch {batch}"):
        found = summarise(time_runs(model, args, kwargs, budget_s, device))
    return {
        "batch_size": batch,
        "runs": found.runs,
        "p50_ms": found.p50_ms,
        "p95_ms": found.p95_ms,
        "p99_ms": found.p99_ms,
        "low_ms": found.median_low_ms,
        "high_ms": found.median_high_ms,
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
    }


def _nodes(
    client: SplitClient,
    model: Any,
    arguments: dict[str, Any],
    device: str,
    notes: list[str],
    progress: Progress,
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The graph where it was asked for, and the least time of every operation at the traced batch.

    No times, with a note, where they cannot be taken; a graph that was asked for and cannot be made is a fault.
    """
    batch = int(arguments["traced_batch"])
    describe = arguments.get("describe")
    graph = None
    try:
        args, kwargs = example_arguments(client, batch)
        # What differs at another batch size is what follows the batch.
        other = example_arguments(client, batch + 1)
        with foreign_code("export"):
            exported = _function(arguments["exporter"])(model, args, kwargs, other)
        if describe:
            graph = _function(describe)(exported, batch)
        progress(0.8, "timing every operation")
        with foreign_code(f"operation by operation at batch {batch}"):
            timings = RuntimeAnnotator(exported, device).annotate(args, kwargs, arguments["point_budget_s"])
    except InputFault as fault:
        if describe and graph is None:
            raise
        notes.append(f"Operations could not be timed, their shares are estimated: {fault}")
        return graph, []
    except (MemoryError, RuntimeError, OSError) as fault:
        if not is_out_of_memory(fault) or (describe and graph is None):
            raise
        notes.append("Operations could not be timed, their shares are estimated: out of memory.")
        return graph, []
    return graph, [
        {"id": item.id, "least_ms": item.least_ms, "output_bytes": item.output_bytes, "device": item.device}
        for item in timings
    ]


def _function(path: str) -> Any:
    """What "module:function" names; profiling knows tracing's functions by name only."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _environment(device: str) -> dict[str, str | int | float | bool]:
    """What a reader needs to judge or repeat the figures."""
    found: dict[str, str | int | float | bool] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "device": device,
        "seed": SEED,
        "eval_mode": True,
        "cuda_graphs": False,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if device == "cuda":
        found["device_name"] = torch.cuda.get_device_name()
        found["cuda"] = str(torch.version.cuda)
    return found

"""The part of a measurement that executes the model, in a limited child process.

It reports JSON objects with one key each as results come, so they survive its death:

    graph        the contract's graph, if requested
    batch_sizes  those of the client, if none were given
    environment  facts of the device and the software
    begin        [kind, batch size] of the next point, the culprit if the child dies
    batch        one batch size end to end; replaced if another round follows
    nodes        every operation's times at one batch size
    failure      a point without figures: kind, batch size, reason, message

A point that fails or does not fit in memory is a failure of that point only.
"""

from __future__ import annotations

import importlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from torchsplit_core.isolation import is_out_of_memory
from torchsplit_core.model_source import example_arguments, foreign_code, load_client, open_model
from torchsplit_core.profiling.measuring.accelerator import OpenedDevice, open_device
from torchsplit_core.profiling.measuring.annotators import RuntimeAnnotator, to_device
from torchsplit_core.profiling.measuring.compilation import (
    COMPILATION_RUNS,
    CompileFault,
    compile_model,
    raise_compile_faults,
    require_compiler,
)
from torchsplit_core.profiling.measuring.grids import check_batch_sizes
from torchsplit_core.profiling.measuring.host_copies import HostCopies
from torchsplit_core.profiling.measuring.rounds import (
    MAX_ROUNDS,
    TimingRound,
    read_cpu_time,
    segment_rounds,
    undisturbed_blocks,
    unsteady_reason,
)
from torchsplit_core.profiling.measuring.run_statistics import summarise
from torchsplit_core.profiling.measuring.timing import LEAST_RUNS, all_finite, time_runs
from torchsplit_core.telemetry import ActiveSpan, adopt, schema, span
from torchsplit_core.values import InputFault, Progress, SplitClient
from torchsplit_core.values.profile import NOT_TRIED

PATIENCE_BUDGETS = 15.0
"""A batch size whose three runs would take more than this many budgets is left out, with a note …"""
LEAST_PATIENCE_S = 20.0
"""… unless its three runs take less than this: a small budget asks for few runs, not for few sizes."""
SHARE_FOR_GRAPH, SHARE_FOR_BATCHES, SHARE_FOR_NODES = 0.15, 0.6, 0.8
"""Shares of the progress after the graph, the end-to-end runs and the node times; the rest is further rounds."""
BETWEEN_ROUNDS_S = 1.0
"""Pause before an unsteady point is measured again, as the disturbance may end."""
LEAK_SHARE = 0.05
"""Process memory that grew by more than this share between the first and the last run is reported …"""
LEAK_BYTES = 64 * 2**20
"""… if it also grew by more than this: allocators keep some pages for themselves."""

Message = dict[str, Any]


def measure_in_child(arguments: dict[str, Any], progress: Progress) -> Iterator[Message]:
    """The results of one model on one device; arguments as `measurement.measure` sends them.

    Raises InputFault if the model cannot be built or exported, or the device cannot be used.
    """
    torch.manual_seed(arguments["seed"])
    progress(0.0, "building the model")
    client = load_client(arguments["source"], arguments["trust"], arguments["sequence_length"])
    model = open_model(client)
    exported: Any = None
    identity = arguments["architecture_hash"]
    if arguments["describe"]:
        progress(0.05, "exporting")
        exported = _export(client, model, arguments)
        graph = _import_function(arguments["describe"])(exported, arguments["traced_batch"])
        identity = graph["architecture_hash"]
        yield {"graph": graph}
    if arguments["batch_sizes"] is None:
        arguments = arguments | {"batch_sizes": _client_batch_sizes(client, arguments["source"])}
        yield {"batch_sizes": arguments["batch_sizes"]}
    known = arguments["known"].get(identity, {})
    with adopt(arguments["telemetry"]), open_device(arguments["device"]) as opened:
        if arguments["compile_mode"]:
            require_compiler(opened.torch_device)
        dtype = _dtype(arguments)
        with foreign_code("moving the model to the device"):
            model = model.to(opened.torch_device, dtype)
        yield {"environment": _environment(opened, arguments)}
        session = _Session(client, model, opened, arguments, known, progress)
        yield from session.measure_batches()
        if session.batch_medians:
            # A model exported before its cast is another program.
            usable = None if dtype else exported
            yield from session.measure_nodes(lambda: usable or _export(client, model.to("cpu"), arguments))
            yield from session.remeasure()
    progress(1.0, "done")


def _client_batch_sizes(client: SplitClient, source: str) -> list[int]:
    """The batch sizes that the client offers. Raises InputFault if they are no valid grid."""
    try:
        return list(check_batch_sizes(client.batch_sizes))
    except InputFault as fault:
        where = f"{source.rpartition('/')[2]}.batch_sizes"
        raise InputFault(where, fault.problem, "Choose some of them with --batch-sizes.") from fault


@dataclass(slots=True)
class _BatchMeasurement:
    """A point measured here: its message and its rounds."""

    content: Message
    rounds: list[TimingRound] = field(default_factory=list)


class _Session:
    """The points of one model on one open device."""

    def __init__(
        self,
        client: SplitClient,
        model: Any,
        opened: OpenedDevice,
        arguments: Mapping[str, Any],
        known: Mapping[str, Any],
        progress: Progress,
    ) -> None:
        self.client, self.model, self.opened, self.arguments = client, model, opened, arguments
        self.progress = progress
        self.budget_s = float(arguments["point_budget_s"])
        self.known_batches: dict[int, float | None] = {
            int(batch): p50 for batch, p50 in known.get("batch", {}).items()
        }
        self.known_nodes: set[int] = set(known.get("nodes", ()))
        self.too_large: int | None = min(known.get("out_of_memory", ()), default=None)
        self.batch_medians: list[tuple[int, float]] = []
        """Batch sizes with figures, with their median in ms; smallest first."""
        self.measured_batches: dict[int, _BatchMeasurement] = {}
        self.device_lost = False
        """The device failed: nothing more can be measured in this process."""

    def measure_batches(self) -> Iterator[Message]:
        """Measure every unknown batch size, smallest first, within its time."""
        sizes: list[int] = self.arguments["batch_sizes"]
        patience_ms = 1000 * max(PATIENCE_BUDGETS * self.budget_s, LEAST_PATIENCE_S)
        skip_reason: tuple[str, str] | None = None
        for index, batch in enumerate(sizes):
            share = (SHARE_FOR_BATCHES - SHARE_FOR_GRAPH) * index / len(sizes)
            self.progress(SHARE_FOR_GRAPH + share, f"batch size {batch}")
            if batch in self.known_batches:
                p50 = self.known_batches[batch]
                self.batch_medians += [] if p50 is None else [(batch, p50)]
                continue
            skip_reason = skip_reason or self._skip_reason(batch, patience_ms)
            if skip_reason is not None:
                yield _failure_message("batch", batch, skip_reason[0], f"{NOT_TRIED}: {skip_reason[1]}.")
                continue
            yield {"begin": ["batch", batch]}
            with self._span(schema.PROFILE_POINT, batch) as active_span:
                message = self._run_guarded("batch", batch, partial(self._measure_batch, batch))
                active_span.set(**_span_attributes(message))
            if "batch" in message:
                self.batch_medians.append((batch, message["batch"]["latency"]["p50"]["value"]))
            elif message["failure"]["reason"] == "out_of_memory":
                self.too_large = batch
            elif message["failure"]["reason"] == "device_lost":
                skip_reason = ("device_lost", f"the device failed at batch {batch}")
            yield message

    def _skip_reason(self, batch: int, patience_ms: float) -> tuple[str, str] | None:
        """Why this batch size need not be tried: reason and message; None if it must be."""
        if self.too_large is not None and batch >= self.too_large:
            return "out_of_memory", f"batch {self.too_large} was out of memory"
        if self.batch_medians:
            last, p50 = self.batch_medians[-1]
            run_count = max(LEAST_RUNS, int(self.arguments["repeats"]))
            if p50 * batch / last * run_count > patience_ms:
                return (
                    "time_limit",
                    f"{'three' if run_count == LEAST_RUNS else run_count} runs would take too long for the time budget",
                )
        return None

    def measure_nodes(self, export: Callable[[], Any]) -> Iterator[Message]:
        """Times of every operation, at the traced batch and at every size that ran."""
        wanted = {
            int(self.arguments["traced_batch"]),
            *(batch for batch, _ in self.batch_medians),
        } - self.known_nodes
        if self.device_lost or not wanted:
            return
        self.progress(SHARE_FOR_BATCHES, "timing every operation")
        yield {"begin": ["nodes", min(wanted)]}
        annotator: list[RuntimeAnnotator] = []

        def prepare() -> Message:
            exported = export()
            with foreign_code("moving the operations to the device"):
                annotator.append(RuntimeAnnotator(exported, self.opened.torch_device))
            return {}

        message = self._run_guarded("nodes", min(wanted), prepare)
        if message:
            yield message
            return
        for batch in sorted(wanted):
            yield {"begin": ["nodes", batch]}
            with self._span(schema.PROFILE_NODES, batch) as active_span:
                message = self._run_guarded("nodes", batch, partial(self._measure_nodes, annotator[0], batch))
                active_span.set(**_span_attributes(message))
            yield message

    def _span(self, name: str, batch: int) -> AbstractContextManager[ActiveSpan]:
        device = self.arguments["device"]
        return span(
            name,
            model=self.arguments["source"],
            device=device["name"],
            slice=device["profile"],
            batch_size=batch,
        )

    def _run_guarded(self, kind: str, batch: int, work: Callable[[], Message]) -> Message:
        """The result of the work, or the failure of this point."""
        try:
            return work()
        except CompileFault as fault:
            # A failure to compile at any size is reported once.
            if not self.batch_medians:
                raise
            return _failure_message(kind, batch, "failed", str(fault))
        except InputFault as fault:
            self.device_lost = "CUDA error" in str(fault)
            return _failure_message(kind, batch, "device_lost" if self.device_lost else "failed", str(fault))
        except (MemoryError, RuntimeError, OSError) as fault:
            if not is_out_of_memory(fault):
                raise
            if self.opened.torch_device == "cuda":
                torch.cuda.empty_cache()
            return _failure_message(kind, batch, "out_of_memory", "Out of memory.")

    def remeasure(self) -> Iterator[Message]:
        """A second round of every point, with all the others between; more if a point is unsteady."""
        for number, (batch, measurement) in enumerate(self.measured_batches.items()):
            if self.device_lost:
                return
            share = (1 - SHARE_FOR_NODES) * number / len(self.measured_batches)
            self.progress(SHARE_FOR_NODES + share, f"timing batch size {batch} again")
            yield {"begin": ["look", batch]}
            message = self._run_guarded("look", batch, partial(self._remeasure_batch, batch, measurement))
            if "batch" in message:  # else the first round counts
                yield message

    def _measure_batch(self, batch: int) -> Message:
        args, kwargs = self._device_inputs(batch)
        arguments = self.arguments
        # A compiled model is compiled for every batch size: once, so all its rounds are measured at once.
        blocks = (
            self._block_count if arguments["compile_mode"] else self._block_count - self._block_count // 2
        )
        model = (
            compile_model(self.model, arguments["compile_mode"]) if arguments["compile_mode"] else self.model
        )
        seen: list[tuple[bool, int]] = []
        with foreign_code(f"forward at batch {batch}"), raise_compile_faults(batch):
            first_round = self._time_round(
                model,
                args,
                kwargs,
                blocks,
                unsteady=COMPILATION_RUNS if arguments["compile_mode"] else 0,
                look=lambda outcome: seen.append((all_finite(outcome), _used_bytes())),
            )
            ((finite, used),) = seen
            grew = _used_bytes() - used
            peak = self._peak(model, args, kwargs)
            self._trace(model, batch, args, kwargs)
        content = {
            "batch_size": batch,
            "peak": peak,
            "finite": finite,
            "grew_bytes": grew if grew > max(LEAK_BYTES, LEAK_SHARE * used) else 0,
        }
        measurement = _BatchMeasurement(content, [first_round])
        if not arguments["compile_mode"]:
            self.measured_batches[batch] = measurement
        return _batch_message(measurement)

    @property
    def _block_count(self) -> int:
        return int(self.arguments["repeats"])

    def _remeasure_batch(self, batch: int, measurement: _BatchMeasurement) -> Message:
        """The point with the blocks of another round. Skipped if its runs take more than its time."""
        blocks = self._block_count // 2
        is_slow = min(map(min, measurement.rounds[0].blocks)) > 1000 * self.budget_s
        if blocks and not is_slow:
            measurement.rounds.append(self._extra_round(batch, blocks))
        while unsteady_reason(measurement.rounds) and len(measurement.rounds) < MAX_ROUNDS:
            time.sleep(min(BETWEEN_ROUNDS_S, self.budget_s))
            measurement.rounds.append(self._extra_round(batch, max(1, blocks)))
        return _batch_message(measurement)

    def _extra_round(self, batch: int, blocks: int) -> TimingRound:
        args, kwargs = self._device_inputs(batch)
        with foreign_code(f"forward at batch {batch}"):
            return self._time_round(self.model, args, kwargs, blocks, least_runs=blocks)

    def _time_round(self, model: Any, args: Any, kwargs: Any, blocks: int, **options: Any) -> TimingRound:
        """A round of this many blocks of runs, in their share of the point's time."""
        arguments = self.arguments
        block_starts_s: list[float] = []
        before = read_cpu_time()
        runs = time_runs(
            model,
            args,
            kwargs,
            self.budget_s * blocks / self._block_count,
            self.opened.torch_device,
            cuda_graph=bool(arguments["cuda_graphs"]),
            repeats=blocks,
            seed=int(arguments["seed"]),
            copies=HostCopies(args, kwargs) if arguments["host_copies"] else None,
            block_starts_s=block_starts_s,
            **options,
        )
        # A GPU's computation does not wait for cores.
        stolen_share = (
            read_cpu_time().stolen_share_since(before) if self.opened.torch_device == "cpu" else 0.0
        )
        return TimingRound(runs, stolen_share, tuple(block_starts_s))

    def _device_inputs(self, batch: int) -> tuple[Any, Any]:
        """The client's inputs on the device, cast like the model."""
        torch.manual_seed(int(self.arguments["seed"]))
        host_inputs = example_arguments(self.client, batch)
        device_inputs: tuple[Any, Any] = to_device(
            host_inputs, torch.device(self.opened.torch_device), _dtype(self.arguments)
        )
        return device_inputs

    def _peak(self, model: Any, args: Any, kwargs: Any) -> Message | None:
        """The measured peak of another run and its parts, in bytes; None if that run does not fit."""
        from torchsplit_core.profiling.measuring.peak_memory import measure_peak

        try:
            return asdict(measure_peak(model, args, kwargs))
        except (MemoryError, RuntimeError) as error:
            # The times are taken; a memory measurement, which needs memory, must not lose them.
            if is_out_of_memory(error):
                return None
            raise

    def _trace(self, model: Any, batch: int, args: Any, kwargs: Any) -> None:
        """One run under torch.profiler as a file for chrome://tracing or Perfetto, if requested."""
        folder = self.arguments["torch_trace"]
        if not folder:
            return
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self.opened.torch_device == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities, record_shapes=True) as profiler, torch.inference_mode():
            model(*args, **kwargs)
        profiler.export_chrome_trace(str(Path(folder) / f"{self.arguments['trace_name']}-batch{batch}.json"))

    def _measure_nodes(self, annotator: RuntimeAnnotator, batch: int) -> Message:
        args, kwargs = self._device_inputs(batch)
        with foreign_code(f"operation by operation at batch {batch}"):
            timings = annotator.annotate(args, kwargs, self.budget_s, int(self.arguments["seed"]))
        return {
            "nodes": {
                "batch_size": batch,
                "runs_ms": annotator.runs_ms,
                "items": [
                    {
                        "id": item.id,
                        "least_ms": item.least_ms,
                        "mean_ms": item.mean_ms,
                        "deviation_ms": item.deviation_ms,
                        "most_ms": item.most_ms,
                        "output_bytes": item.output_bytes,
                        "device": item.device,
                    }
                    for item in timings
                ],
                "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
        }


def _span_attributes(message: Message) -> dict[str, Any]:
    """Attributes of a point's span: how it ended."""
    if "failure" in message:
        reason = message["failure"]["reason"]
        return {"outcome": {"out_of_memory": "out of memory"}.get(reason, "failed")}
    if "nodes" in message:
        return {
            "outcome": "ok",
            "nodes": len(message["nodes"]["items"]),
            "runs": len(message["nodes"]["runs_ms"]),
        }
    batch = message["batch"]
    figures = {f"{name}_ms": batch["latency"][name]["value"] for name in ("p50", "p95", "p99")}
    return {"outcome": "ok", "runs": batch["latency"]["runs"], **figures}


def _batch_message(measurement: _BatchMeasurement) -> Message:
    """A point with the figures of all its rounds."""
    blocks = undisturbed_blocks(measurement.rounds)
    summary = summarise(blocks)
    return {
        "batch": {
            **measurement.content,
            "latency": asdict(summary.latency),
            "mean_ms": summary.mean_ms,
            "mean_low_ms": summary.mean_low_ms,
            "mean_high_ms": summary.mean_high_ms,
            "repeats": len(blocks),
            "blocks_ms": [fmean(block) for block in blocks],
            "unsteady": unsteady_reason(measurement.rounds),
            "looks": len(measurement.rounds),
            "course": segment_rounds(measurement.rounds),
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
    }


def _failure_message(kind: str, batch: int, reason: str, message: str) -> Message:
    return {"failure": {"kind": kind, "batch_size": batch, "reason": reason, "message": message}}


def _export(client: SplitClient, model: Any, arguments: Mapping[str, Any]) -> Any:
    """The program from the exporter, with a free batch."""
    batch = int(arguments["traced_batch"])
    dtype, host = _dtype(arguments), torch.device("cpu")
    args, kwargs = to_device(example_arguments(client, batch), host, dtype)
    # What differs at another batch size follows the batch.
    other = to_device(example_arguments(client, batch + 1), host, dtype)
    with foreign_code("export"):
        return _import_function(arguments["exporter"])(model, args, kwargs, other)


def _dtype(arguments: Mapping[str, Any]) -> torch.dtype | None:
    """The requested dtype; None for the model's own."""
    dtype: torch.dtype | None = getattr(torch, arguments["dtype"]) if arguments["dtype"] else None
    return dtype


def _import_function(path: str) -> Any:
    """The function "module:function"; functions of packages above are known by name only."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _used_bytes() -> int:
    """Memory of this process: pages of the host, or what torch's allocator holds on the GPU."""
    if torch.cuda.is_initialized():
        return int(torch.cuda.memory_allocated())
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _environment(opened: OpenedDevice, arguments: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """What a reader needs to judge or repeat the figures."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "seed": int(arguments["seed"]),
        "repeats": int(arguments["repeats"]),
        "eval_mode": True,
        "dtype": arguments["dtype"] or "the model's own",
        "compile": arguments["compile_mode"] or "eager",
        "cuda_graphs": bool(arguments["cuda_graphs"]),
        "host_copies": "included" if arguments["host_copies"] else "not included",
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **opened.facts,
    }

"""Measures a model on one device of this host: end to end over a batch grid, and operation by operation.

The model is foreign code and runs in a limited child process, which reports every point when it is done. A child that
hangs or dies costs only its current point: the next child continues after it. Importing this module does not load
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.isolation import ChildFault, Limits, printable, run_limited, schema_reader
from torchsplit_core.model_source import ModelSource, parse_source
from torchsplit_core.profiling.measured_model import MeasuredModel, build_measured_model
from torchsplit_core.profiling.measuring.grids import (
    MOST_BATCH_SIZES,
    check_batch_sizes,
    check_sequence_lengths,
    is_count,
)
from torchsplit_core.profiling.measuring.messages import parse_message
from torchsplit_core.profiling.points import (
    CompileMode,
    DType,
    MeasuredPoint,
    MeasurementLog,
    MeasurementSettings,
)
from torchsplit_core.telemetry import handed_on
from torchsplit_core.values import Device, InputFault, Progress, ignore_progress
from torchsplit_core.values.errors import quoted, suggestion

TRACED_BATCH = 2
"""The batch of a graph that is traced while measuring; the same as tracing's."""
MOST_DEATHS = 3
"""Children that may die before the rest of a grid is abandoned."""
BUILD_S = 600.0
"""Wall time for building, exporting and moving a model, in addition to its points."""

MOST_REPEATS = 100
MOST_PROCESSES = 16
CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")

Keep = Callable[[MeasuredPoint], None]


def measure(
    source: str,
    graph: TorchGraph | None,
    device: Device,
    *,
    exporter: str,
    describer: str,
    batch_sizes: Sequence[int] | None = None,
    trust: bool = False,
    settings: MeasurementSettings | None = None,
    processes: int = 1,
    known: Iterable[MeasuredPoint] = (),
    keep: Keep = lambda point: None,
    on_graph: Callable[[TorchGraph], object] = lambda graph: None,
    progress: Progress = ignore_progress,
    memory_bytes: int | None = None,
) -> MeasuredModel:
    """The graph (traced if none is given), rows, node shares, failures and environment of a model on a device.

    throughput = batch / mean of a run, with its 90 % interval; latency_ms = p95 of the runs. With several `processes`,
    which need a graph, this many run at once: throughputs are added, latency is over all their runs, operations are not
    timed, and it is not an error if no batch size could be measured.

    Args:
        exporter: "module:function", called in the child: (model, args, kwargs, other) → program, where other is (args,
            kwargs) of one row more. It must export as `graph` was exported, so that node names agree.
        describer: "module:function", called in the child: (program, batch) → the contract's graph.
        batch_sizes: None takes those of the model's client.
        known: points measured before on this device and software, of any model; those of this model are reused.
        keep: gets each new point as it comes; `on_graph` a new graph.

    Raises InputFault for an invalid grid or budget, a model that cannot be built or exported, or one without figures at
    any batch size.
    """
    settings = settings or MeasurementSettings()
    sizes = None if batch_sizes is None else check_batch_sizes(batch_sizes)
    check_settings(settings, device)
    # The child has its own working directory, so a relative path must be made absolute.
    parsed = parse_source(source, trust=trust)
    known, functions = tuple(known), (exporter, describer)
    log = MeasurementLog(graph, [])
    receiver = _MessageReceiver(log, keep, on_graph, progress)
    for _ in range(MOST_DEATHS + 1):
        if log.graph is not None:
            _add_known_points(log, known)
        try:
            with handed_on() as (carried, folders):
                module = "child" if processes == 1 else "concurrent_processes"
                run_limited(
                    f"torchsplit_core.profiling.measuring.{module}:measure_in_child",
                    _child_arguments(parsed.text, device, sizes, trust, settings, functions, log, known)
                    | {"telemetry": carried, "processes": processes},
                    limits=_limits(device, len(sizes or ()) or MOST_BATCH_SIZES, settings, memory_bytes),
                    progress=receiver.advance,
                    subject=f"profile of {source}",
                    read=schema_reader(None),
                    receive=receiver.receive,
                    read_part=parse_message,
                    environment=_child_environment(device, settings),
                    readable=parsed.files,
                    writable=(*folders, *((settings.torch_trace,) if settings.torch_trace else ())),
                )
        except ChildFault as fault:
            receiver.record_death(fault)
            continue
        break
    if (
        log.graph is None
    ):  # a child that begins a point has reported its graph, unless the model's code forged the message
        raise InputFault(
            f"profile of {source}",
            "ended without the model's graph",
            "Have the model's code write only to file descriptors that it opened.",
        )
    _add_known_points(log, known)
    sizes = sizes or log.batch_sizes
    if device.kind == "cpu":
        _measure_resident_memory(parsed, device, sizes, trust, settings, log, keep, memory_bytes)
    measured_model = build_measured_model(log.graph, device, sizes, settings, log, processes)
    if not measured_model.rows and processes == 1:
        reasons = " ".join(failure.message for failure in measured_model.failures)
        raise InputFault(
            source,
            f"gives no figure on {device.name} at batch {', '.join(map(str, sizes))}: {reasons}",
            "Choose smaller batch sizes, or mend what the model reports.",
        )
    return measured_model


def _measure_resident_memory(
    parsed: ModelSource,
    device: Device,
    sizes: Sequence[int],
    trust: bool,
    settings: MeasurementSettings,
    log: MeasurementLog,
    keep: Keep,
    memory_bytes: int | None,
) -> None:
    """Add to each point without it the memory of a process that serves the model, and that process's rounds.

    If that process dies, the points keep the memory of their tensors, and a note says so.
    """
    missing = {
        point.batch_size: point
        for point in log.points
        if point.kind == "batch" and point.batch_size in sizes and "held_bytes" not in point.content
    }

    def receive(part: tuple[str, Any]) -> None:
        _, content = part
        point = missing.pop(int(content["batch_size"]))
        added = {"held_bytes": int(content["bytes"]), "held_course": content["course"]}
        # Additions do not change when the point was measured.
        _add_point(log, replace(point, content={**point.content, **added}), keep)

    if not missing:
        return
    arguments = {
        "source": parsed.text, "trust": trust, "device": asdict(device), "batch_sizes": sorted(missing),
        "dtype": settings.dtype, "seed": settings.seed, "sequence_length": settings.sequence_length,
        "point_budget_s": settings.point_budget_s,
    }  # fmt: skip
    try:
        run_limited(
            "torchsplit_core.profiling.measuring.resident_memory:measure_resident_in_child",
            arguments,
            limits=_limits(device, len(missing), settings, memory_bytes),
            subject=f"memory of {parsed.text}",
            read=schema_reader(None),
            receive=receive,
            read_part=parse_message,
            environment=_child_environment(device, settings),
            readable=parsed.files,
        )
    except InputFault as fault:
        log.environment["held_fault"] = printable(f"{fault.problem}.")
    if missing:
        log.environment.setdefault("held_fault", "memory did not suffice for it.")


@dataclass(frozen=True)
class _MessageReceiver:
    """Collects the child's messages, point by point, in `log`."""

    log: MeasurementLog
    keep: Keep
    on_graph: Callable[[TorchGraph], object]
    progress: Progress

    def advance(self, share: float, text: str) -> None:
        """Keep the progress from going back when a child is restarted."""
        self.log.share = max(self.log.share, share)
        self.progress(self.log.share, text)

    def receive(self, message: tuple[str, Any]) -> None:
        """One message: its kind and content."""
        kind, content = message
        if kind == "graph":
            self.log.graph = content
            self.on_graph(content)
        elif kind == "batch_sizes":
            self.log.batch_sizes = tuple(content)
        elif kind == "environment":
            self.log.environment |= content
        elif kind == "begin":
            self.log.current_point = (str(content[0]), int(content[1]))
        elif kind == "failure":
            _add_failure(self.log, content, self.keep)
        else:
            _add_point(
                self.log, MeasuredPoint.from_message(_architecture_hash(self.log), kind, content), self.keep
            )

    def record_death(self, fault: ChildFault) -> None:
        """Mark the point at which the child died as failed, unless an earlier round of it succeeded.

        Raises the fault if the child died before any point.
        """
        if self.log.current_point is None:
            raise fault
        kind, batch = self.log.current_point
        if kind == "look":
            return
        message = f"{fault.problem}. {fault.remedy}"
        content = {"kind": kind, "batch_size": batch, "reason": fault.kind, "message": message}
        _add_failure(self.log, content, self.keep)


def _add_point(log: MeasurementLog, point: MeasuredPoint, keep: Keep) -> None:
    log.current_point = None
    log.points[:] = [
        other for other in log.points if (other.kind, other.batch_size) != (point.kind, point.batch_size)
    ]
    log.points.append(point)
    keep(point)


def _add_failure(log: MeasurementLog, content: dict[str, Any], keep: Keep) -> None:
    """Add a failure of this measurement; running out of memory is a result, and kept like a figure."""
    log.current_point = None
    content = content | {"message": printable(str(content["message"]))}
    log.failures.append(content)
    if content["reason"] == "out_of_memory":
        keep(MeasuredPoint.from_message(_architecture_hash(log), "failure", content))


def _add_known_points(log: MeasurementLog, known: Sequence[MeasuredPoint]) -> None:
    """Points of this model that were measured before and not again."""
    measured = {(point.kind, point.batch_size) for point in log.points}
    for point in known:
        if point.architecture_hash != _architecture_hash(log):
            continue
        if point.kind != "failure" and (point.kind, point.batch_size) not in measured:
            log.points.append(point)
            if point.kind == "batch":
                log.taken_over.add(point.batch_size)
        elif point.kind == "failure" and dict(point.content) not in log.failures:
            log.failures.append(dict(point.content))


def _architecture_hash(log: MeasurementLog) -> str:
    return log.graph.architecture_hash if log.graph else ""


def _child_arguments(
    source: str,
    device: Device,
    sizes: Sequence[int] | None,
    trust: bool,
    settings: MeasurementSettings,
    functions: tuple[str, str],
    log: MeasurementLog,
    known: Sequence[MeasuredPoint],
) -> dict[str, Any]:
    """The child's arguments, with known points of every model: only the child can tell which model this is."""
    known_by_hash: dict[str, dict[str, Any]] = {}
    for point in (*known, *log.points):
        entry = known_by_hash.setdefault(
            point.architecture_hash, {"batch": {}, "nodes": [], "out_of_memory": []}
        )
        if point.kind == "batch":
            entry["batch"][str(point.batch_size)] = point.content["latency"]["p50"]["value"]
        elif point.kind == "nodes":
            entry["nodes"].append(point.batch_size)
        elif point.content["kind"] == "batch":
            entry["out_of_memory"].append(point.batch_size)
    for failure in log.failures:
        entry = known_by_hash.setdefault(
            _architecture_hash(log), {"batch": {}, "nodes": [], "out_of_memory": []}
        )
        if failure["kind"] == "nodes":
            entry["nodes"].append(failure["batch_size"])
        else:
            entry["batch"].setdefault(str(failure["batch_size"]), None)
            if failure["reason"] == "out_of_memory":
                entry["out_of_memory"].append(failure["batch_size"])
    return {
        "source": source,
        "trust": trust,
        "device": asdict(device),
        "batch_sizes": sizes and list(sizes),
        "point_budget_s": settings.point_budget_s,
        "cuda_graphs": settings.cuda_graphs,
        "dtype": settings.dtype,
        "compile_mode": settings.compile_mode,
        "repeats": settings.repeats,
        "seed": settings.seed,
        "host_copies": settings.host_copies,
        "sequence_length": settings.sequence_length,
        "torch_trace": settings.torch_trace,
        "trace_name": device.id.replace(":", "-")
        + (f"-length{settings.sequence_length}" if settings.sequence_length else ""),
        "exporter": functions[0],
        "describe": None if log.graph else functions[1],
        "architecture_hash": _architecture_hash(log),
        "traced_batch": log.graph.traced_batch if log.graph else TRACED_BATCH,
        "known": known_by_hash,
    }


def _limits(device: Device, points: int, settings: MeasurementSettings, memory_bytes: int | None) -> Limits:
    """Time for building, exporting and every point at worst; CUDA maps more than it uses."""
    wall_s = BUILD_S + (2 * points + 2) * settings.limit_s
    if device.kind != "cpu":
        return Limits(wall_s=wall_s, cpu_s=None, memory_bytes=None, silent_s=settings.limit_s)
    if memory_bytes is None:
        return Limits(wall_s=wall_s, cpu_s=None, silent_s=settings.limit_s)
    return Limits(wall_s=wall_s, cpu_s=None, silent_s=settings.limit_s, memory_bytes=memory_bytes)


COMPILE_ENVIRONMENT = {
    # The compiler may use only one process, because its memory is limited.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    # The cache ends with the child: compiling headers in advance would cost more than it saves.
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
}


def _child_environment(device: Device, settings: MeasurementSettings) -> dict[str, str]:
    """The child sees only the device it measures, and compiles in its own process."""
    visible = {"CUDA_VISIBLE_DEVICES": device.uuid or ""}
    return visible | (COMPILE_ENVIRONMENT if settings.compile_mode else {})


def check_settings(settings: MeasurementSettings, device: Device) -> None:
    """Raise InputFault for numbers out of range, unknown words, and GPU options on a processor."""
    _check_number("time per point", settings.point_budget_s, 0.01, 600, " s", "2")
    if settings.point_limit_s is not None:
        _check_number("time limit per point", settings.point_limit_s, 1, 86400, " s", "120")
    for where, wanted, why in (
        ("CUDA graphs", settings.cuda_graphs, "which has none"),
        ("host copies", settings.host_copies, "which reads the host's memory without a copy"),
    ):
        if wanted and device.kind == "cpu":
            raise InputFault(
                where,
                f"are asked for on the processor {device.name}, {why}",
                "Leave them off, or choose a GPU.",
            )
    if settings.cuda_graphs and settings.compile_mode in CUDA_GRAPH_MODES:
        raise InputFault(
            "CUDA graphs",
            f"are asked for with --compile {settings.compile_mode}, which captures CUDA graphs of its own",
            "Leave --cuda-graphs off, or use --compile default.",
        )
    _check_choices(settings)
    _check_processes(settings)
    if settings.sequence_length is not None:
        check_sequence_lengths((settings.sequence_length,))


def _check_number(where: str, number: float, least: float, most: float, unit: str, example: str) -> None:
    if not number >= least:  # also NaN
        problem = f"is {number:g}{unit}, below the least value {least:g}{unit}"
    elif number > most:
        problem = f"is {number:g}{unit}, above the largest value {most:,g}{unit}"
    else:
        return
    raise InputFault(where, problem, f"Give for example {example}.")


def _check_processes(settings: MeasurementSettings) -> None:
    """Raise InputFault for invalid numbers of processes, and for options that need a single process."""
    for count in settings.processes:
        if not is_count(count, MOST_PROCESSES):
            raise InputFault(
                "processes",
                f"{quoted(count)} is no whole number from 1 to {MOST_PROCESSES}",
                "Give for example 1,2.",
            )
    several = max(settings.processes, default=1)
    if several > 1 and (settings.cuda_graphs or settings.host_copies):
        what = "CUDA graphs" if settings.cuda_graphs else "host copies"
        raise InputFault(
            "processes",
            f"are {several} at once, with {what}, which one process alone can be measured with",
            "Leave one of the two off.",
        )


def _check_choices(settings: MeasurementSettings) -> None:
    """Raise InputFault for an unknown dtype or mode, and for repeats or a seed out of range."""
    for name, value, words in (
        ("dtype", settings.dtype, get_args(DType)),
        ("compile", settings.compile_mode, get_args(CompileMode)),
    ):
        if value not in words:
            raise InputFault(
                name, f"{quoted(value)} is unknown", suggestion(value, filter(None, words), "values")
            )
    for name, number, least, most in (
        ("repeats", settings.repeats, 1, MOST_REPEATS),
        ("seed", settings.seed, 0, 2**32 - 1),
    ):
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise InputFault(
                name,
                f"is {quoted(number)}, not a whole number from {least} to {most:,}",
                f"Give for example {max(least, 3)}.",
            )

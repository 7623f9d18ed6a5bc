"""Measure a model on one device of this host: end to end over a batch grid, and operation by operation.

The model is foreign code and runs in a limited child process, which tells of every point as it is done. A
child that hangs or dies costs the point it was at: the next child goes on behind it. Importing this file
does not load torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from torchsplit_core.graph.serialization import graph_from_dict
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.isolation import ChildFault, Limits, printable, run_limited
from torchsplit_core.model_source import parse_source
from torchsplit_core.profiling.points import CompileMode, DType, Heard, KeptPoint, Settings
from torchsplit_core.profiling.rows import Found, shape_findings
from torchsplit_core.telemetry import handed_on
from torchsplit_core.values import Device, InputFault, Progress, ignore_progress

LARGEST_MEASURED_BATCH = 4096
MOST_BATCH_SIZES = 16
LARGEST_SEQUENCE_LENGTH = 1_048_576
MOST_SEQUENCE_LENGTHS = 16
TRACED_BATCH = 2
"""The batch of a graph that is made while measuring; the same as tracing's."""
MOST_DEATHS = 3
"""Children that may die before the rest of a grid is left alone."""
BUILD_S = 600.0
"""Wall time for building, exporting and moving a model, beside its points."""

MOST_REPEATS = 100
MOST_PROCESSES = 16
CAPTURING = ("reduce-overhead", "max-autotune")

Keep = Callable[[KeptPoint], None]


def measure(
    source: str,
    graph: TorchGraph | None,
    device: Device,
    *,
    exporter: str,
    describer: str,
    batch_sizes: Sequence[int] = (1, 2, 4),
    trust: bool = False,
    settings: Settings | None = None,
    processes: int = 1,
    known: Iterable[KeptPoint] = (),
    keep: Keep = lambda point: None,
    hear_graph: Callable[[TorchGraph], object] = lambda graph: None,
    progress: Progress = ignore_progress,
    memory_bytes: int | None = None,
) -> Found:
    """The graph (made where none is given), rows, node shares, failures and environment of a model on a device.

    `exporter` and `describer` name functions ("module:function") that the child calls. The first exports a model:
    (model, args, kwargs, other), other being (args, kwargs) of one row more; it has to export as what traced
    `graph` did, so that node names agree. The second makes the contract's graph of that: (program, batch).
    `known` are points of this device and software measured before, of any model: those of this model are
    taken over, not measured again. `keep` gets each new point as it comes, `hear_graph` a new graph.
    throughput = batch / p50 with a 90 % interval of the median, latency_ms = p95 of the runs. With several
    `processes` (a graph is needed then) so many run at once: throughputs are added, latency is over all their
    runs, operations are not timed, and no figure at any batch size is no fault.
    Raises InputFault for a bad grid or budget, a model that cannot be built or exported, or one that gives no
    figure at any batch size.
    """
    settings = settings or Settings()
    sizes = check_batch_sizes(batch_sizes)
    check_settings(settings, device)
    # The child has a working directory of its own, so a relative path has to be made absolute here.
    parsed = parse_source(source, trust=trust)
    known, functions = tuple(known), (exporter, describer)
    heard = Heard(graph, [])
    listener = _Listener(heard, keep, hear_graph, progress)
    for _ in range(MOST_DEATHS + 1):
        if heard.graph is not None:
            _take_known(heard, known)
        try:
            with handed_on() as (carried, folders):
                run_limited(
                    f"torchsplit_core.profiling.measuring.{'child' if processes == 1 else 'crowd'}:measure_in_child",
                    _arguments(parsed.text, device, sizes, trust, settings, functions, heard, known)
                    | {"telemetry": carried, "processes": processes},
                    limits=_limits(device, len(sizes), settings, memory_bytes),
                    progress=listener.advance,
                    subject=f"profile of {source}",
                    receive=listener.receive,
                    environment=_environment(device, settings),
                    readable=parsed.files,
                    writable=(*folders, *((settings.torch_trace,) if settings.torch_trace else ())),
                )
        except ChildFault as fault:
            listener.died(fault)
            continue
        break
    assert heard.graph is not None  # a child that begins a point has told its graph
    _take_known(heard, known)
    found = shape_findings(heard.graph, device, sizes, settings, heard, processes)
    if not found.rows and processes == 1:
        raise InputFault(
            f"profile of {source}",
            list(sizes),
            f"at least one batch size runs on {device.name}",
            " ".join(failure.message for failure in found.failures) or "Use smaller ones.",
        )
    return found


@dataclass(frozen=True)
class _Listener:
    """What the child tells, point by point, goes into `heard`."""

    heard: Heard
    keep: Keep
    hear_graph: Callable[[TorchGraph], object]
    progress: Progress

    def advance(self, share: float, text: str) -> None:
        """A child that is started again does not go back."""
        self.heard.share = max(self.heard.share, share)
        self.progress(self.heard.share, text)

    def receive(self, part: dict[str, Any]) -> None:
        """One message: {kind: content}."""
        ((kind, content),) = part.items()
        if kind == "graph":
            self.heard.graph = graph_from_dict(content)
            self.hear_graph(self.heard.graph)
        elif kind == "environment":
            self.heard.environment |= content
        elif kind == "begin":
            self.heard.begun = (str(content[0]), int(content[1]))
        elif kind == "failure":
            _take_failure(self.heard, content, self.keep)
        else:
            _take(self.heard, KeptPoint.made(_identity(self.heard), kind, content), self.keep)

    def died(self, fault: ChildFault) -> None:
        """The point that the child died of has failed. Raises the fault where it died before any."""
        if self.heard.begun is None:
            raise fault
        kind, batch = self.heard.begun
        message = f"{fault.problem}. {fault.remedy}"
        content = {"kind": kind, "batch_size": batch, "reason": fault.kind, "message": message}
        _take_failure(self.heard, content, self.keep)


def _take(heard: Heard, point: KeptPoint, keep: Keep) -> None:
    heard.begun = None
    heard.points.append(point)
    keep(point)


def _take_failure(heard: Heard, content: dict[str, Any], keep: Keep) -> None:
    """A failure of this measurement; being out of memory is a finding, and kept like a figure."""
    heard.begun = None
    content = content | {"message": printable(str(content["message"]))}
    heard.failures.append(content)
    if content["reason"] == "out_of_memory":
        keep(KeptPoint.made(_identity(heard), "failure", content))


def _take_known(heard: Heard, known: Sequence[KeptPoint]) -> None:
    """Points of this model that were measured before and not again now."""
    have = {(point.kind, point.batch_size) for point in heard.points}
    for point in known:
        if point.architecture_hash != _identity(heard):
            continue
        if point.kind != "failure" and (point.kind, point.batch_size) not in have:
            heard.points.append(point)
            if point.kind == "batch":
                heard.taken_over.add(point.batch_size)
        elif point.kind == "failure" and dict(point.content) not in heard.failures:
            heard.failures.append(dict(point.content))


def _identity(heard: Heard) -> str:
    return heard.graph.architecture_hash if heard.graph else ""


def _arguments(
    source: str,
    device: Device,
    sizes: Sequence[int],
    trust: bool,
    settings: Settings,
    functions: tuple[str, str],
    heard: Heard,
    known: Sequence[KeptPoint],
) -> dict[str, Any]:
    """What the child is told. It learns which points are known of every model: it alone can tell which this is."""
    table: dict[str, dict[str, Any]] = {}
    for point in (*known, *heard.points):
        entry = table.setdefault(point.architecture_hash, {"batch": {}, "nodes": [], "out_of_memory": []})
        if point.kind == "batch":
            entry["batch"][str(point.batch_size)] = point.content["latency"]["p50"]["value"]
        elif point.kind == "nodes":
            entry["nodes"].append(point.batch_size)
        elif point.content["kind"] == "batch":
            entry["out_of_memory"].append(point.batch_size)
    for failure in heard.failures:
        entry = table.setdefault(_identity(heard), {"batch": {}, "nodes": [], "out_of_memory": []})
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
        "batch_sizes": list(sizes),
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
        "describe": None if heard.graph else functions[1],
        "architecture_hash": _identity(heard),
        "traced_batch": heard.graph.traced_batch if heard.graph else TRACED_BATCH,
        "known": table,
    }


def _limits(device: Device, points: int, settings: Settings, memory_bytes: int | None) -> Limits:
    """Time for building, exporting and every point at its worst; CUDA maps more than it uses."""
    wall_s = BUILD_S + (points + 2) * settings.limit_s
    if device.kind != "cpu":
        return Limits(wall_s=wall_s, cpu_s=None, memory_bytes=None, silent_s=settings.limit_s)
    if memory_bytes is None:
        return Limits(wall_s=wall_s, cpu_s=None, silent_s=settings.limit_s)
    return Limits(wall_s=wall_s, cpu_s=None, silent_s=settings.limit_s, memory_bytes=memory_bytes)


COMPILING = {
    # It has one process, and its memory is limited.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    # Its cache ends with it: headers compiled ahead would cost more than they save.
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
}


def _environment(device: Device, settings: Settings) -> dict[str, str]:
    """The child sees the one device it measures, and nothing else of the GPUs; it compiles in its own process."""
    visible = {"CUDA_VISIBLE_DEVICES": device.uuid or ""}
    return visible | (COMPILING if settings.compile_mode else {})


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


def check_sequence_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    """The lengths in their order, each once; InputFault for none, too many, or one out of range."""
    rule = f"1 to {MOST_SEQUENCE_LENGTHS} whole numbers from 1 to {LARGEST_SEQUENCE_LENGTH:,} are measured"
    distinct = tuple(dict.fromkeys(lengths))
    for length in distinct:
        proper = isinstance(length, int) and not isinstance(length, bool)
        if not proper or not 1 <= length <= LARGEST_SEQUENCE_LENGTH:
            raise InputFault("sequence lengths", length, rule, "For example 128,512.")
    if not 1 <= len(distinct) <= MOST_SEQUENCE_LENGTHS:
        raise InputFault("sequence lengths", list(distinct), rule, "For example 128,512.")
    return distinct


def check_settings(settings: Settings, device: Device) -> None:
    """InputFault for numbers out of range, words that are none, and what only a GPU can do on a processor."""
    if not 0.01 <= settings.point_budget_s <= 600:
        raise InputFault(
            "time per point", settings.point_budget_s, "it is 0.01 to 600 seconds", "For example 2."
        )
    if settings.point_limit_s is not None and not 1 <= settings.point_limit_s <= 86400:
        raise InputFault(
            "time limit per point", settings.point_limit_s, "it is 1 to 86,400 seconds", "For example 120."
        )
    if settings.cuda_graphs and device.kind == "cpu":
        raise InputFault(
            "CUDA graphs", device.name, "the device is a GPU", "Leave them off, or choose a GPU."
        )
    if settings.host_copies and device.kind == "cpu":
        raise InputFault(
            "host copies",
            device.name,
            "the device is a GPU; a processor reads the host's memory without a copy",
            "Leave them off, or choose a GPU.",
        )
    if settings.cuda_graphs and settings.compile_mode in CAPTURING:
        raise InputFault(
            "CUDA graphs",
            settings.compile_mode,
            "a mode of torch.compile that captures CUDA graphs of its own stands alone",
            "Leave --cuda-graphs off, or use --compile default.",
        )
    _check_choices(settings)
    _check_processes(settings)
    if settings.sequence_length is not None:
        check_sequence_lengths((settings.sequence_length,))


def _check_processes(settings: Settings) -> None:
    """InputFault for numbers of processes that are none, and for what is measured one process at a time."""
    for count in settings.processes:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_PROCESSES:
            rule = f"numbers of processes are whole numbers from 1 to {MOST_PROCESSES}"
            raise InputFault("processes", count, rule, "For example 1,2.")
    several = max(settings.processes, default=1)
    if several > 1 and (settings.cuda_graphs or settings.host_copies):
        what = "CUDA graphs" if settings.cuda_graphs else "host copies"
        raise InputFault(
            "processes", several, f"{what} are measured one process at a time", "Leave one of the two off."
        )


def _check_choices(settings: Settings) -> None:
    """InputFault for a dtype or mode that is none, and for repeats or a seed out of range."""
    for name, value, words in (
        ("dtype", settings.dtype, get_args(DType)),
        ("compile", settings.compile_mode, get_args(CompileMode)),
    ):
        if value not in words:
            known = ", ".join(word for word in words if word)
            raise InputFault(name, value, f"it is one of {known}", "Leave it out for the model as it is.")
    for name, number, least, most in (
        ("repeats", settings.repeats, 1, MOST_REPEATS),
        ("seed", settings.seed, 0, 2**32 - 1),
    ):
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            rule = f"it is a whole number from {least} to {most:,}"
            raise InputFault(name, number, rule, f"For example {max(least, 3)}.")

"""Reads Triton's two result tables as profiles: Model Analyzer's metrics-model-inference.csv and perf_analyzer -f.

Sources of the formats: triton-inference-server/model_analyzer, docs/reference/metrics.md, model_analyzer/result/
result_table_manager.py (the headers) and its golden CSV files; triton-inference-server/client,
src/c++/perf_analyzer/report_writer.cc (the headers, latencies in µs) and docs/perf_analyzer.md.
`triton_runs` chooses among the runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from torchsplit_core.tables.cell_parsing import CellFault
from torchsplit_core.tables.import_result import Imported, group_profiles, report_bad_rows
from torchsplit_core.tables.record_fields import RecordFields, column_layout, read_records
from torchsplit_core.tables.row_parsing import LARGEST_BATCH, LARGEST_PROCESSES
from torchsplit_core.tables.sheet import Sheet, read_sheet
from torchsplit_core.tables.triton_runs import (
    TritonRun,
    choose_runs,
    describe_runs,
    profile_row,
    resolve_slice,
)
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.units import GIB, MB

LATENCIES = ("p95", "p99", "p90", "avg")
"""Columns that can serve as the contract's 95th percentile, the best first."""

MEGABYTE_IN_GIB = MB / GIB
"""Model Analyzer divides perf_analyzer's bytes by 1,000,000 (its record/types and perf_analyzer.py)."""

_INSTANCES = re.compile(r"([0-9]{1,5}) ?[/:] ?(GPU|CPU)", re.IGNORECASE)


def is_model_analyzer(header: Sequence[str]) -> bool:
    """Whether this is the header of Model Analyzer's inference table."""
    return {"Model", "Batch", "Throughput (infer/sec)"} <= set(header)


def is_perf_analyzer(header: Sequence[str]) -> bool:
    """Whether this is the header of a table of perf_analyzer -f."""
    return "Inferences/Second" in header and bool({"Concurrency", "Request Rate"} & set(header))


def read_model_analyzer(
    text: str,
    *,
    gpu_type: str = "A100-80GB",
    slice_name: str | None = None,
    origin: str = "the file",
    skip_bad: bool = False,
) -> Imported:
    """Profiles of Model Analyzer's metrics-model-inference.csv, one per model.

    The file does not name the GPU or slice it was measured on, so the caller gives `gpu_type` and `slice_name` (None:
    the whole GPU). Processes are the instances of the Instance Group. Raises InputFault for another file, runs at a
    fixed request rate, an unknown GPU or slice, and bad rows (all in one).
    """
    sheet = _read_triton_sheet(
        text, origin, "Model Analyzer's metrics-model-inference.csv", is_model_analyzer
    )
    latency = _latency_column(sheet.header, "{} Latency (ms)")
    grouped = "Instance Group" in sheet.header

    def read(fields: RecordFields) -> TritonRun:
        if "," in fields.text("Model") and "," in fields.text("Batch"):
            raise CellFault(
                f"names several models, {quoted(fields.text('Model'))}, that were measured together",
                "Analyze each model on its own.",
                "Model",
            )
        megabytes = fields.optional("GPU Memory Usage (MB)")
        return TritonRun(
            model=fields.name("Model"),
            batch_size=fields.count("Batch", LARGEST_BATCH),
            instances=fields.read("Instance Group", _parse_instances) if grouped else 1,
            concurrency=fields.count("Concurrency", LARGEST_PROCESSES),
            throughput_rps=fields.positive("Throughput (infer/sec)"),
            latency_ms=fields.positive(latency) if latency else None,
            memory_gib=None if megabytes is None else megabytes * MEGABYTE_IN_GIB,
        )

    imported = _import_runs(sheet, read, latency, {}, gpu_type, slice_name, origin, skip_bad=skip_bad)
    if grouped:
        return imported
    notes = ("the file has no Instance Group: every model is read as one instance", *imported.notes)
    return Imported(imported.profiles, notes, imported.refused)


def read_perf_analyzer(
    text: str,
    *,
    model: str | None,
    batch_size: int | None,
    instances: int = 1,
    gpu_type: str = "A100-80GB",
    slice_name: str | None = None,
    origin: str = "the file",
    skip_bad: bool = False,
) -> Imported:
    """The profile of one perf_analyzer -f table; its latencies are in microseconds.

    The file names neither `model`, `batch_size` (-b), the `instances` of the model on the server, nor the GPU.
    Raises InputFault if model or batch size is None, and for another file, runs at a fixed request rate, an unknown
    GPU or slice, and bad rows (all in one).
    """
    sheet = _read_triton_sheet(text, origin, "a table of perf_analyzer -f", is_perf_analyzer)
    for what, value, remedy in (
        ("model", model, "Give the model's name (--model NAME)."),
        ("batch size", batch_size, "Give perf_analyzer's -b (--batch-size N; its default is 1)."),
    ):
        if value is None:
            raise InputFault(origin, f"names no {what}: perf_analyzer -f writes none", remedy)
    latency = _latency_column(sheet.header, "{} latency")

    def read(fields: RecordFields) -> TritonRun:
        return TritonRun(
            model=fields.name("model"),
            batch_size=fields.count("batch size", LARGEST_BATCH),
            instances=fields.count("instances", LARGEST_PROCESSES),
            concurrency=fields.count("Concurrency", LARGEST_PROCESSES),
            throughput_rps=fields.positive("Inferences/Second"),
            latency_ms=fields.positive(latency) / 1000 if latency else None,
            memory_gib=_parse_gpu_memory(fields.text("Max GPU Memory Usage")),
        )

    given = {"model": str(model), "batch size": str(batch_size), "instances": str(instances)}
    return _import_runs(sheet, read, latency, given, gpu_type, slice_name, origin, skip_bad=skip_bad)


def _read_triton_sheet(text: str, origin: str, what: str, fits: Callable[[Sequence[str]], bool]) -> Sheet:
    sheet = read_sheet(text, origin)
    header = sheet.header
    if not fits(header):
        if "GPU UUID" in header or "GPU Memory Usage (MB)" in header:
            raise InputFault(
                origin,
                f"is not {what}, but looks like metrics-model-gpu.csv",
                "Pass metrics-model-inference.csv beside it.",
            )
        raise InputFault(
            origin, f"is not {what}: its header is {quoted(', '.join(header))}", "Check the file."
        )
    if "Concurrency" not in header:
        raise InputFault(
            origin,
            "has runs at a fixed request rate, which tell what the server was sent, not what it can serve",
            "Measure with --concurrency-range, from the number of instances on.",
        )
    if twice := next((name for name in header if name and header.count(name) > 1), None):
        raise InputFault(f"{origin}: header", f"names {quoted(twice)} twice", "Rename or remove one.")
    if not sheet.records:
        raise InputFault(origin, "has a header but no rows", "Add the measurements.")
    return sheet


def _latency_column(header: Sequence[str], form: str) -> str | None:
    """The column used as p95; None if the file has no latency."""
    by_name = {item.lower(): item for item in header}
    wanted = (by_name.get(form.format(percentile).lower()) for percentile in LATENCIES)
    return next((column for column in wanted if column is not None), None)


def _import_runs(
    sheet: Sheet,
    read: Callable[[RecordFields], TritonRun],
    latency_column: str | None,
    given: Mapping[str, str],
    gpu_type: str,
    slice_name: str | None,
    origin: str,
    *,
    skip_bad: bool,
) -> Imported:
    profile = resolve_slice(gpu_type, slice_name)
    layout = column_layout(sheet, defaults=given)
    runs, bad = read_records(sheet.records, layout, read)
    left_out = report_bad_rows(bad, len(runs), origin, skip_bad=skip_bad)
    chosen = choose_runs(runs)
    profiles = group_profiles([(run.model, profile_row(run, gpu_type, profile)) for run in chosen], origin)
    return Imported(profiles, describe_runs(runs, chosen, latency_column) + left_out, tuple(bad))


def _parse_instances(text: str) -> int:
    """Number of instances in `1:GPU` or `2/GPU` (older releases). Raises CellFault for instances on the CPU."""
    groups = [(int(number), kind.upper()) for number, kind in _INSTANCES.findall(text)]
    if not groups:
        raise CellFault(f"is {quoted(text)}, not COUNT:GPU or COUNT/GPU", "Correct the cell.")
    if any(number for number, kind in groups if kind == "CPU"):
        raise CellFault(
            f"is {quoted(text)}, with instances on the CPU", "Measure with instances on GPUs alone."
        )
    total = sum(number for number, _ in groups)
    if not 1 <= total <= LARGEST_PROCESSES:
        limit = (
            "below the least number 1" if total < 1 else f"above the greatest number {LARGEST_PROCESSES:,}"
        )
        raise CellFault(f"names {total} instances, {limit}", "Correct the cell.")
    return total


def _parse_gpu_memory(text: str) -> float | None:
    """`GPU-8557…:872415232;` (bytes) → GiB; None unless exactly one GPU is named."""
    byte_counts = re.findall(r":([0-9]{1,15});", text)
    return int(byte_counts[0]) / GIB if len(byte_counts) == 1 else None

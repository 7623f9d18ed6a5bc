"""The columns of a profile table, and the mapping from a user's file to them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchsplit_core.values import InputFault, quoted, suggestion


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, its meaning, whether every table needs it, and its aliases (lower case, joined by _)."""

    name: str
    meaning: str
    required: bool = False
    aliases: tuple[str, ...] = ()


COLUMNS: tuple[Column, ...] = (
    Column(
        "model", "the model's name", True, ("model_name", "name", "network", "net", "workload", "model_id")
    ),
    Column(
        "compute_slices",
        "compute slices of the MIG slice (1, 2, 3, 4, 7)",
        False,
        ("compute_slice", "slices", "slice", "gpc", "gpcs", "mig_slices", "num_slices", "slice_size"),
    ),
    Column(
        "profile",
        "the MIG profile, for example 3g.40gb; empty: the whole GPU without MIG",
        False,
        ("mig_profile", "mig", "mig_slice", "slice_profile", "mig_instance", "gi_profile", "partition"),
    ),
    Column("batch_size", "requests in one batch", True, ("batch", "bs", "batchsize", "batch_sizes", "b")),
    Column(
        "processes",
        "processes on the slice (default 1)",
        False,
        ("procs", "process", "num_processes", "nproc", "process_count", "instances", "instance_count"),
    ),
    Column(
        "throughput_rps",
        "requests/s of the slice over all its processes; 0: the memory did not suffice",
        True,
        (
            *("throughput", "rps", "qps", "tput", "requests_per_second", "requests_s", "requests_per_s"),
            *("req_s", "throughput_requests_s", "throughput_infer_sec", "throughput_req_s", "queries_s"),
            *("inferences_second", "inferences_per_second", "infer_sec", "samples_s", "images_s", "ips"),
        ),
    ),
    Column(
        "latency_ms",
        "p95 service time of one batch in ms, without queueing",
        False,
        (
            *("p95_latency_ms", "latency_p95_ms", "p95_ms", "latency_ms_p95", "p95_latency", "latency_p95"),
            *("p95", "lat_ms", "latency", "lat", "batch_latency_ms", "batch_time_ms", "time_ms"),
        ),
    ),
    Column(
        "memory_gib",
        "peak memory of one instance in GiB",
        False,
        ("memory", "mem_gib", "mem", "peak_memory_gib", "peak_gib"),
    ),
    Column("gpu_type", "the GPU's catalogue name", False, ("gpu", "gpu_name", "gpu_model", "accelerator")),
    Column("basis", "measured, emulated or estimated (default measured)"),
    Column("low_rps", "lower end of the throughput's 90 % interval"),
    Column("high_rps", "upper end of the throughput's 90 % interval"),
    Column("stage", "the part of the model (default whole)"),
    Column("device", "the device's key in the profile's environment"),
    Column("sequence_length", "tokens of each request (default: not told)"),
    Column("timed_runs", "runs behind the percentiles"),
    *(
        Column(f"timed_{percentile}{end}_ms", f"{percentile} of the runs in ms{meaning}")
        for percentile in ("p50", "p95", "p99")
        for end, meaning in (("", ""), ("_low", ", lower end"), ("_high", ", upper end"))
    ),
    *(
        Column(f"memory_{part}_gib", f"{part} at the peak in GiB")
        for part in ("weights", "activations", "transient", "context")
    ),
    Column("memory_parts_basis", "measured or estimated"),
    Column("pace_cv", "cv of the device's slow and fast periods"),
    Column("pace_s", "mean seconds of such a period"),
    Column("pace_drift_cv", "cv of the device's speed from one minute to another"),
    Column("failure_reason", "why a throughput is 0 (default out_of_memory)"),
    Column("failure_message", "what was said when it failed"),
)

NAMES = tuple(column.name for column in COLUMNS)


def normalize_header(header: str) -> str:
    """A header's words in lower case, joined by _: `Throughput (req/s)` → throughput_req_s."""
    return re.sub(r"[^a-z0-9]+", "_", header.lower()).strip("_")


def guess_mapping(header: Sequence[str]) -> dict[str, str]:
    """Map our columns to the file's by name and alias; each column of the file is used at most once.

    Units are not guessed: the user must convert a latency in s or µs and memory in MB.
    """
    by_plain: dict[str, str] = {}
    for item in header:
        if item:
            by_plain.setdefault(normalize_header(item), item)
    mapping = {column.name: by_plain[column.name] for column in COLUMNS if column.name in by_plain}
    used = set(mapping.values())
    for column in COLUMNS:
        if column.name in mapping:
            continue
        matched = next(
            (by_plain[word] for word in column.aliases if by_plain.get(word) not in (None, *used)), ""
        )
        if matched:
            mapping[column.name] = matched
            used.add(matched)
    return mapping


def resolve_mapping(
    header: Sequence[str], mapping: Mapping[str, str] | None, given: Sequence[str], origin: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The mapping from our columns to the file's, and notes on what was guessed.

    `mapping` overrides the guess; an empty value in it leaves a column out. `given` are columns whose value the
    caller supplies. Raises InputFault if `mapping` names a column that is not ours or not in the file, the header
    has a used column twice, or a required column is missing.
    """
    explicit = dict(mapping or {})
    for ours, theirs in explicit.items():
        if ours not in NAMES:
            raise InputFault(
                "mapping", f"unknown profile column {quoted(ours)}", suggestion(ours, NAMES, "columns")
            )
        if theirs and theirs not in header:
            raise InputFault(
                f"{origin}: mapping of {ours}",
                f"the file has no column {quoted(theirs)}",
                suggestion(theirs, filter(None, header), "columns"),
            )
    taken = {theirs for theirs in explicit.values() if theirs}
    guessed = {
        ours: theirs
        for ours, theirs in guess_mapping(header).items()
        if ours not in explicit and theirs not in taken
    }
    chosen = {**guessed, **{ours: theirs for ours, theirs in explicit.items() if theirs}}
    for ours, theirs in chosen.items():
        if header.count(theirs) > 1:
            raise InputFault(
                f"{origin}: header",
                f"names {quoted(theirs)}, the column of {ours}, {header.count(theirs)} times",
                "Rename or remove all but one.",
            )
    missing = [
        column.name
        for column in COLUMNS
        if column.required and column.name not in chosen and column.name not in given
    ]
    if missing:
        raise InputFault(
            f"{origin}: header",
            f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}",
            f"Name the file's own columns in a mapping ({missing[0]}=…). {describe_columns(header)}",
        )
    spelt = tuple(f"{theirs!r} as {ours}" for ours, theirs in guessed.items() if ours != theirs)
    return chosen, (f"read {', '.join(spelt)}",) if spelt else ()


def describe_columns(header: Sequence[str]) -> str:
    """A sentence that lists the first twenty columns of a file."""
    shown = ", ".join(repr(item) for item in header[:20] if item)
    return f"The file has {shown}{' …' if len(header) > 20 else ''}."

"""Parses a record of a profile table into a row, or into a failure if the throughput is 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

from torchsplit_core.tables import cell_parsing
from torchsplit_core.tables.cell_parsing import CellFault
from torchsplit_core.tables.record_fields import RecordFields
from torchsplit_core.tables.slice_parsing import choose_slice
from torchsplit_core.values import (
    FailureReason,
    LatencyPercentiles,
    MemoryParts,
    Pace,
    Percentile,
    ProfileFailure,
    ProfileRow,
)
from torchsplit_core.values.profile import BASES, Basis

LARGEST_BATCH = 1_000_000
LARGEST_PROCESSES = 10_000
LARGEST_LENGTH = 10_000_000
"""A larger cell is an error: a throughput in the wrong column, or two figures without a delimiter."""


@dataclass(frozen=True, slots=True)
class ParsedProfileRow:
    """A record as a row or failure of the contract, with what the notes on the file must mention.

    `ambiguous_slice` names the slice chosen for an ambiguous number; `derived_latency`: the latency was computed from
    the throughput.
    """

    line: int
    model: str
    entry: ProfileRow | ProfileFailure
    ambiguous_slice: str = ""
    derived_latency: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Identifies the point; a table may have each key only once."""
        entry = self.entry
        basis = entry.basis if isinstance(entry, ProfileRow) else "measured"
        return (
            *(self.model, entry.stage, entry.gpu_type, entry.profile, entry.batch_size, entry.processes),
            *(basis, entry.device, entry.sequence_length),
        )


def parse_row(fields: RecordFields) -> ParsedProfileRow:
    """Parse the record. Raises CellFault at the first bad cell."""
    model = fields.name("model")
    stage = fields.name("stage") if fields.has("stage") else "whole"
    gpu_type = fields.name("gpu_type")
    chosen = choose_slice(gpu_type, fields.text("profile"), fields.text("compute_slices"))
    if (
        chosen is None
        and "compute_slices" in fields.layout.index_of
        and "profile" not in fields.layout.index_of
    ):
        raise CellFault("is empty", "Give the slice.", "compute_slices")
    profile = chosen.name if chosen else None
    ambiguous_slice = (
        f"{chosen.name}, not {' or '.join(chosen.alternatives)}" if chosen and chosen.alternatives else ""
    )
    batch_size = fields.count("batch_size", LARGEST_BATCH)
    processes = fields.count("processes", LARGEST_PROCESSES) if fields.has("processes") else 1
    device = fields.name("device") if fields.has("device") else None
    length = fields.count("sequence_length", LARGEST_LENGTH) if fields.has("sequence_length") else None
    throughput = fields.not_negative("throughput_rps")
    if throughput == 0:
        failure = ProfileFailure(
            stage=stage,
            gpu_type=gpu_type,
            profile=profile,
            batch_size=batch_size,
            processes=processes,
            reason=_reason(fields),
            message=cell_parsing.unescape_formula(fields.text("failure_message"))
            or "throughput 0 in the table",
            device=device,
            sequence_length=length,
        )
        return ParsedProfileRow(fields.record.line, model, failure, ambiguous_slice)
    derived_latency = not fields.has("latency_ms")
    low, high = _interval(fields, throughput)
    row = ProfileRow(
        stage=stage,
        gpu_type=gpu_type,
        profile=profile,
        batch_size=batch_size,
        processes=processes,
        throughput_rps=throughput,
        latency_ms=latency_of(batch_size, processes, throughput)
        if derived_latency
        else fields.positive("latency_ms"),
        low_rps=low,
        high_rps=high,
        memory_gib=fields.optional("memory_gib"),
        basis=cast(Basis, fields.word("basis", BASES, "measured")),
        device=device,
        percentiles_ms=_percentiles(fields),
        memory_parts_gib=_memory_parts(fields),
        sequence_length=length,
        pace=_pace(fields),
    )
    return ParsedProfileRow(fields.record.line, model, row, ambiguous_slice, derived_latency)


def describe_point(entry: ProfileRow | ProfileFailure) -> str:
    """The name of a model's point in messages."""
    processes = f"{entry.processes} process{'es' if entry.processes > 1 else ''}"
    return f"{entry.profile or 'the whole GPU'} at batch size {entry.batch_size} with {processes}"


def latency_of(batch_size: int, processes: int, throughput_rps: float) -> float:
    """Time of one batch in ms on a slice that runs `processes` batches at once."""
    return 1000 * batch_size * processes / throughput_rps


def _interval(fields: RecordFields, throughput: float) -> tuple[float | None, float | None]:
    low, high = fields.optional("low_rps"), fields.optional("high_rps")
    remedy = "Correct the interval, or leave it out."
    if low is not None and low > throughput:
        raise CellFault(f"is {low:g}, above the throughput of {throughput:g}", remedy, "low_rps")
    if high is not None and high < throughput:
        raise CellFault(f"is {high:g}, below the throughput of {throughput:g}", remedy, "high_rps")
    return low, high


def _reason(fields: RecordFields) -> FailureReason:
    known = cast(tuple[str, ...], get_args(FailureReason))
    return cast(FailureReason, fields.word("failure_reason", known, "out_of_memory"))


def _percentiles(fields: RecordFields) -> LatencyPercentiles | None:
    if not fields.has("timed_runs"):
        return None
    runs = fields.count("timed_runs", int(cell_parsing.LARGEST_VALUE))
    p50, p95, p99 = (
        Percentile(
            fields.not_negative(f"timed_{name}_ms"),
            fields.optional(f"timed_{name}_low_ms"),
            fields.optional(f"timed_{name}_high_ms"),
        )
        for name in ("p50", "p95", "p99")
    )
    return LatencyPercentiles(runs, p50, p95, p99)


def _pace(fields: RecordFields) -> Pace | None:
    if not fields.has("pace_s"):
        return None
    return Pace(
        fields.not_negative("pace_cv"), fields.positive("pace_s"), fields.not_negative("pace_drift_cv")
    )


def _memory_parts(fields: RecordFields) -> MemoryParts | None:
    if not fields.has("memory_parts_basis"):
        return None
    basis = fields.word("memory_parts_basis", ("measured", "estimated"), "")
    weights, activations, transient, context = (
        fields.not_negative(f"memory_{part}_gib")
        for part in ("weights", "activations", "transient", "context")
    )
    return MemoryParts(
        weights, activations, transient, context, "measured" if basis == "measured" else "estimated"
    )

"""Writes rows as CSV, and profiles as a table from which `read_profile_csv` reads the same rows and failures.

A table of profiles omits what it cannot hold: the environment, the operations' shares and the architecture hash.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchsplit_core.hardware import catalogue, gpu_type
from torchsplit_core.tables.cell_parsing import escape_formula
from torchsplit_core.tables.columns import NAMES, guess_mapping
from torchsplit_core.tables.import_result import PREFIX
from torchsplit_core.tables.sheet import read_sheet
from torchsplit_core.values import LatencyPercentiles, MemoryParts, Pace, Profile, ProfileFailure, ProfileRow

_NUMBER = re.compile(r"[+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][+-]?\d+)?")
LEADING_COLUMNS = (
    *("model", "compute_slices", "batch_size", "processes", "throughput_rps", "latency_ms"),
    *("gpu_type", "profile", "basis"),
)
"""Columns that are always written: those of the measured library in its order, then GPU type, profile and basis."""


def rows_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, digits: int = 6) -> str:
    """A header and the rows, comma-separated, lines ending in a newline.

    Floats have `digits` significant digits, booleans are "yes" or "no", None and missing cells are empty. A row must
    not have other columns. Texts are escaped as in `lists_csv`.
    """

    def cells(row: Mapping[str, Any]) -> list[Any]:
        if others := row.keys() - set(columns):
            raise ValueError(f"the columns have no {', '.join(sorted(others))}")
        return [_cell(row.get(name), digits) for name in columns]

    return lists_csv(columns, map(cells, rows))


def lists_csv(header: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A header and the rows, comma-separated, lines ending in a newline; None is an empty cell.

    A text that a spreadsheet would run as a formula gets an apostrophe before it, but not a number written as text.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    for row in (header, *rows):
        writer.writerow([_escape_cell(cell) for cell in row])
    return text.getvalue()


def _cell(value: Any, digits: int) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{digits}g}" if isinstance(value, float) else value


def _escape_cell(cell: Any) -> Any:
    return escape_formula(cell) if isinstance(cell, str) and not _NUMBER.fullmatch(cell) else cell


def write_profile_csv(profiles: Sequence[Profile]) -> str:
    """A header and every row and failure of the profiles, comma-separated, lines ending in a newline.

    A failure is a row of throughput 0 with its reason. Texts are escaped as in `lists_csv`. Columns that no row uses
    are left out, except LEADING_COLUMNS.
    """
    records = [
        record
        for name, profile in zip(table_names(profiles), profiles, strict=True)
        for record in (
            *(_row(name, row) for row in profile.rows),
            *(_failure(name, failure) for failure in profile.failures),
        )
    ]
    used = {column for record in records for column, cell in record.items() if cell}
    columns = [*LEADING_COLUMNS, *(name for name in NAMES if name in used and name not in LEADING_COLUMNS)]
    return rows_csv(columns, ({name: record.get(name, "") for name in columns} for record in records))


def table_names(profiles: Sequence[Profile]) -> tuple[str, ...]:
    """A unique model name for each profile: its source, without `import:` or `library:` if that stays unique."""
    short = [profile.source.removeprefix(PREFIX).removeprefix("library:") for profile in profiles]
    sources = [profile.source for profile in profiles]
    names: list[str] = []
    for at, name in enumerate(short):
        chosen = name if short.count(name) == 1 else sources[at]
        while chosen in names:
            chosen += "-2"
        names.append(chosen)
    return tuple(names)


def _figure(value: float | None) -> str:
    return "" if value is None else repr(value)


def _compute_slices(gpu_type: str, profile: str | None) -> str:
    """The profile's compute slices; "" if the GPU type or profile is unknown."""
    gpu = catalogue().get(gpu_type)
    counts = [item.compute_slices for item in gpu.profiles if item.name == profile] if gpu else []
    return str(counts[0]) if counts else ""


def _point(name: str, entry: ProfileRow | ProfileFailure) -> dict[str, str]:
    return {
        "model": name,
        "compute_slices": _compute_slices(entry.gpu_type, entry.profile),
        "batch_size": str(entry.batch_size),
        "processes": str(entry.processes),
        "profile": entry.profile or "",
        "gpu_type": entry.gpu_type,
        "stage": entry.stage,
        "device": entry.device or "",
        "sequence_length": "" if entry.sequence_length is None else str(entry.sequence_length),
    }


def _row(name: str, row: ProfileRow) -> dict[str, str]:
    return {
        **_point(name, row),
        "throughput_rps": _figure(row.throughput_rps),
        "latency_ms": _figure(row.latency_ms),
        "memory_gib": _figure(row.memory_gib),
        "basis": row.basis,
        "low_rps": _figure(row.low_rps),
        "high_rps": _figure(row.high_rps),
        **(_percentiles(row.percentiles_ms) if row.percentiles_ms else {}),
        **(_memory_parts(row.memory_parts_gib) if row.memory_parts_gib else {}),
        **(_pace(row.pace) if row.pace else {}),
    }


def _failure(name: str, failure: ProfileFailure) -> dict[str, str]:
    return {
        **_point(name, failure),
        "throughput_rps": "0",
        "failure_reason": failure.reason,
        "failure_message": failure.message,
    }


def _percentiles(latency: LatencyPercentiles) -> dict[str, str]:
    cells = {"timed_runs": str(latency.runs)}
    for name, value in (("p50", latency.p50), ("p95", latency.p95), ("p99", latency.p99)):
        cells[f"timed_{name}_ms"] = _figure(value.value)
        cells[f"timed_{name}_low_ms"] = _figure(value.low)
        cells[f"timed_{name}_high_ms"] = _figure(value.high)
    return cells


def _pace(pace: Pace) -> dict[str, str]:
    return {
        "pace_cv": _figure(pace.cv),
        "pace_s": _figure(pace.seconds),
        "pace_drift_cv": _figure(pace.drift_cv),
    }


def _memory_parts(parts: MemoryParts) -> dict[str, str]:
    return {
        "memory_weights_gib": _figure(parts.weights),
        "memory_activations_gib": _figure(parts.activations),
        "memory_transient_gib": _figure(parts.transient),
        "memory_context_gib": _figure(parts.context),
        "memory_parts_basis": parts.basis,
    }


ESTIMATED_COLUMNS = (
    *("gpu_type", "profile", "throughput_rps", "latency_ms", "memory_gib"),
    *("low_rps", "high_rps", "basis"),
)
"""Columns of an estimated row; `estimate --to` appends those that a table lacks."""


def estimated_records(
    text: str, profiles: Sequence[Profile], rows: Sequence[Sequence[ProfileRow]], origin: str
) -> tuple[tuple[str, ...], tuple[Mapping[str, str | float | int | None], ...]]:
    """A header and one record per row: the table's own columns first, then those of `ESTIMATED_COLUMNS` that it lacks.
    compute_slices and profile are None for a whole GPU; columns that an estimate does not have stay empty."""
    header = read_sheet(text, origin).header
    column_of = guess_mapping(header)
    more = tuple(name for name in ESTIMATED_COLUMNS if name not in column_of)
    columns = (*header, *more)
    records = []
    for name, known in zip(table_names(profiles), rows, strict=True):
        for row in known:
            cells = _estimated_record(name, row)
            records.append(
                {
                    column_of.get(ours, ours): cell
                    for ours, cell in cells.items()
                    if column_of.get(ours, ours) in columns
                }
            )
    return columns, tuple(records)


def format_records(columns: Sequence[str], records: Sequence[Mapping[str, str | float | int | None]]) -> str:
    """A header and the records, comma-separated; figures have nine significant digits."""
    return rows_csv(columns, records, digits=9)


def _estimated_record(name: str, row: ProfileRow) -> dict[str, str | float | int | None]:
    slices = None if row.profile is None else gpu_type(row.gpu_type).profile(row.profile).compute_slices
    return {
        "model": name,
        "compute_slices": slices,
        "batch_size": row.batch_size,
        "processes": row.processes,
        "gpu_type": row.gpu_type,
        "profile": row.profile,
        "stage": row.stage,
        "sequence_length": row.sequence_length,
        "throughput_rps": row.throughput_rps,
        "latency_ms": row.latency_ms,
        "memory_gib": row.memory_gib,
        "low_rps": row.low_rps,
        "high_rps": row.high_rps,
        "basis": row.basis,
    }

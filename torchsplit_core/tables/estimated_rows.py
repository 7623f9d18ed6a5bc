"""`torchsplit estimate MEASURED.csv --to TYPE`: estimated rows in the columns of the table that they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchsplit_core.hardware import gpu_type
from torchsplit_core.tables.columns import guess_mapping
from torchsplit_core.tables.sheet import read_sheet
from torchsplit_core.tables.write_csv import rows_csv, table_names
from torchsplit_core.values import Profile, ProfileRow

ADDED = (
    *("gpu_type", "profile", "throughput_rps", "latency_ms", "memory_gib"),
    *("low_rps", "high_rps", "basis"),
)
"""Columns that say what an estimated row is: appended where the table has none of that kind."""


def rows_like(
    text: str, profiles: Sequence[Profile], rows: Sequence[Sequence[ProfileRow]], origin: str
) -> tuple[tuple[str, ...], tuple[Mapping[str, str | float | int | None], ...]]:
    """The header and the records of each profile's rows: the table's own columns first, then those of `ADDED` that it
    lacks. A whole GPU has no compute_slices and no profile; other columns of the table stay empty."""
    header = read_sheet(text, origin).header
    spelt = guess_mapping(header)
    more = tuple(name for name in ADDED if name not in spelt)
    columns = (*header, *more)
    records = []
    for name, known in zip(table_names(profiles), rows, strict=True):
        for row in known:
            cells = _cells(name, row)
            records.append(
                {
                    spelt.get(ours, ours): cell
                    for ours, cell in cells.items()
                    if spelt.get(ours, ours) in columns
                }
            )
    return columns, tuple(records)


def rows_text(columns: Sequence[str], records: Sequence[Mapping[str, str | float | int | None]]) -> str:
    """The records comma-separated, a header first; figures with nine significant digits."""
    return rows_csv(columns, records, digits=9)


def _cells(name: str, row: ProfileRow) -> dict[str, str | float | int | None]:
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

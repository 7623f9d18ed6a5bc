"""Reads profiles from a user's table: `model, compute_slices, batch_size, …, throughput_rps, latency_ms`.

The columns are those of the measured library (`COLUMNS`); other names are guessed and noted, or mapped by the user.
A throughput of 0 is out of memory and becomes a failure. One fault lists all rows that cannot be read.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from torchsplit_core.tables.cell_parsing import BadCell
from torchsplit_core.tables.columns import resolve_mapping
from torchsplit_core.tables.import_result import Imported, group_profiles, report_bad_rows
from torchsplit_core.tables.record_fields import column_layout, read_records
from torchsplit_core.tables.row_parsing import ParsedProfileRow, describe_point, latency_of, parse_row
from torchsplit_core.tables.sheet import read_sheet
from torchsplit_core.tables.slice_parsing import check_gpu_type, known_gpu
from torchsplit_core.values import InputFault, ProfileRow

ODD_LATENCY_RATIO = 20.0
"""Median ratio of latencies to batch · processes / throughput from which on (or below its inverse) a unit is wrong."""


def read_profile_csv(
    text: str,
    *,
    mapping: Mapping[str, str] | None = None,
    gpu_type: str = "A100-80GB",
    origin: str = "the file",
    skip_bad: bool = False,
    model: str | None = None,
    slice_name: str | None = None,
    batch_size: int | None = None,
) -> Imported:
    """Profiles of a delimited text, one per model, with sources `import:MODEL`.

    `mapping` maps our columns to the file's. `gpu_type` (a catalogue name, or CPU), `model`, `slice_name` and
    `batch_size` are used if the file has no such column. A missing latency becomes 1000 · batch · processes /
    throughput in ms. `skip_bad` leaves out bad rows and names them in the notes.
    Raises InputFault for a text that is no table, an unknown GPU type or column, and bad rows (all in one).
    """
    check_gpu_type(gpu_type)
    sheet = read_sheet(text, origin)
    defaults = {"gpu_type": gpu_type}
    if model is not None:
        defaults["model"] = model
    if slice_name is not None:
        defaults["profile"] = slice_name
    if batch_size is not None:
        defaults["batch_size"] = str(batch_size)
    chosen, notes = resolve_mapping(sheet.header, mapping, tuple(defaults), origin)
    if slice_name is not None and ("profile" in chosen or "compute_slices" in chosen):
        # A row with an empty slice ran on the whole GPU; a default would assign it to a slice.
        del defaults["profile"]
        notes += (f"the slice {slice_name} is not used: the file names its slices",)
    if not sheet.records:
        raise InputFault(origin, "has a header but no rows", "Add the measurements.")
    layout = column_layout(sheet, chosen, defaults)
    parsed, bad = read_records(sheet.records, layout, parse_row)
    rows: list[ParsedProfileRow] = []
    first: dict[tuple[object, ...], ParsedProfileRow] = {}
    repeated_rows = 0
    for read in parsed:
        known = first.setdefault(read.key, read)
        if known is read:
            rows.append(read)
        elif known.entry == read.entry:
            repeated_rows += 1
        else:
            bad.append(_contradiction(read, known.line))
    bad.sort(key=lambda cell: cell.line)
    left_out = report_bad_rows(bad, len(rows), origin, skip_bad=skip_bad)
    notes += _notes(rows, repeated_rows)
    profiles = group_profiles([(row.model, row.entry) for row in rows], origin)
    return Imported(profiles, notes + left_out, tuple(bad))


def _contradiction(row: ParsedProfileRow, line: int) -> BadCell:
    return BadCell(
        row.line,
        "",
        f"has other figures than line {line} for {row.model} on {describe_point(row.entry)}",
        "Keep one of them, or their median.",
    )


def _notes(rows: Sequence[ParsedProfileRow], repeated_rows: int) -> tuple[str, ...]:
    notes = []
    derived = sum(row.derived_latency for row in rows)
    if derived:
        notes.append(
            f"{derived} of {len(rows)} rows have no latency: it is taken as 1000 · batch · processes / throughput, "
            "a mean and no 95th percentile"
        )
    chose = dict.fromkeys(row.ambiguous_slice for row in rows if row.ambiguous_slice)
    if chose:
        notes.append(
            f"slices given as a number were read as the one with the least memory: {'; '.join(chose)}"
        )
    failed = sum(not isinstance(row.entry, ProfileRow) for row in rows)
    if failed:
        notes.append(
            "1 row has throughput 0 and is kept as a failure, not as a row of zeros"
            if failed == 1
            else f"{failed} rows have throughput 0 and are kept as failures, not as rows of zeros"
        )
    if repeated_rows:
        singular = repeated_rows == 1
        subject = "row repeats" if singular else "rows repeat"
        notes.append(f"{repeated_rows} {subject} an earlier one and {'was' if singular else 'were'} left out")
    unknown = dict.fromkeys(row.entry.gpu_type for row in rows if not known_gpu(row.entry.gpu_type))
    if unknown:
        notes.append(f"not in the catalogue, so no plan can use it: {', '.join(unknown)}")
    ratios = [
        row.entry.latency_ms / latency_of(row.entry.batch_size, row.entry.processes, row.entry.throughput_rps)
        for row in rows
        if isinstance(row.entry, ProfileRow) and not row.derived_latency
    ]
    if ratios and not 1 / ODD_LATENCY_RATIO < statistics.median(ratios) < ODD_LATENCY_RATIO:
        notes.append(
            f"latencies are about {statistics.median(ratios):.3g} times batch · processes / throughput: "
            "check that they are in ms, and throughputs in requests/s"
        )
    return tuple(notes)

"""Reads the input of `torchsplit estimate`: samples from the measured table, queries from the query table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchsplit_core.curves import Query, Sample
from torchsplit_core.tables.cell_parsing import CellFault
from torchsplit_core.tables.columns import describe_columns, resolve_mapping
from torchsplit_core.tables.import_result import report_bad_rows
from torchsplit_core.tables.record_fields import ColumnLayout, RecordFields, column_layout, read_records
from torchsplit_core.tables.row_parsing import LARGEST_BATCH, LARGEST_PROCESSES
from torchsplit_core.tables.sheet import Sheet
from torchsplit_core.tables.slice_parsing import parse_slice_size
from torchsplit_core.values import InputFault, quoted, suggestion
from torchsplit_core.values.profile import BASES


def read_samples(
    sheet: Sheet, origin: str, *, skip_bad: bool
) -> tuple[tuple[Sample, ...], frozenset[str], tuple[str, ...]]:
    """The measured rows, the GPU types they name, and notes.

    Leaves out and counts estimated rows, and failures other than out of memory, which say nothing about other rows.
    Raises InputFault for a table without a column for the slice or without a measured row, and for bad rows.
    """
    mapping, notes = resolve_mapping(sheet.header, None, (), origin)
    layout = _layout(sheet, mapping, origin)
    gpu_types = _gpu_types(sheet, layout)
    rows, bad = read_records(sheet.records, layout, lambda fields: _sample(fields, gpu_types))
    samples = [sample for sample in rows if sample is not None]
    left_out = len(rows) - len(samples)
    notes += report_bad_rows(bad, len(samples), origin, skip_bad=skip_bad)
    if left_out:
        notes += (
            f"{left_out} rows are no measurements (estimated, or failed for another reason than memory)",
        )
    if not samples:
        raise InputFault(origin, "has no measured row", "Measure some rows first.")
    return tuple(samples), gpu_types, notes


def read_queries(
    sheet: Sheet, origin: str, samples: Sequence[Sample], gpu_types: frozenset[str]
) -> tuple[tuple[Query, ...], ColumnLayout, tuple[str, ...]]:
    """One query per record, in order, the table's layout and notes. Raises InputFault for bad rows."""
    mapping, notes = resolve_mapping(sheet.header, None, ("throughput_rps",), origin)
    layout = _layout(sheet, mapping, origin)
    if len(gpu_types) > 1 and "gpu_type" not in mapping:
        raise InputFault(
            f"{origin}: header",
            f"has no gpu_type, and the measured rows are of several ({', '.join(sorted(gpu_types))})",
            "Add the column gpu_type.",
        )
    has_run: dict[str, bool] = {}
    for sample in samples:
        has_run[sample.model] = has_run.get(sample.model, False) or sample.throughput_rps > 0
    queries, bad = read_records(
        sheet.records, layout, lambda fields: _checked_query(fields, has_run, gpu_types)
    )
    report_bad_rows(bad, len(queries), origin, skip_bad=None)
    return tuple(queries), layout, notes


def _layout(sheet: Sheet, mapping: Mapping[str, str], origin: str) -> ColumnLayout:
    if "compute_slices" not in mapping and "profile" not in mapping:
        raise InputFault(
            f"{origin}: header",
            "has neither compute_slices nor profile",
            f"Add one: the slice of every row. {describe_columns(sheet.header)}",
        )
    if not sheet.records:
        raise InputFault(origin, "has a header but no rows", "Add the rows.")
    return column_layout(sheet, mapping)


def _gpu_types(sheet: Sheet, layout: ColumnLayout) -> frozenset[str]:
    return frozenset(
        filter(None, (RecordFields(record, layout).text("gpu_type") for record in sheet.records))
    )


def _query(fields: RecordFields, gpu_types: frozenset[str]) -> Query:
    """The row as a query. Its model name includes the stage, and the GPU type if several were measured."""
    column = "compute_slices" if fields.has("compute_slices") else "profile"
    if not fields.has(column):
        raise CellFault("is empty", "Give the slice.", "compute_slices")
    parts = [fields.name("model")]
    if fields.has("stage") and fields.text("stage") != "whole":
        parts.append(fields.name("stage"))
    if len(gpu_types) > 1:
        parts.append(fields.name("gpu_type"))
    return Query(
        model=" · ".join(parts),
        size=fields.read(column, parse_slice_size),
        batch_size=fields.count("batch_size", LARGEST_BATCH),
        processes=fields.count("processes", LARGEST_PROCESSES) if fields.has("processes") else 1,
    )


def _sample(fields: RecordFields, gpu_types: frozenset[str]) -> Sample | None:
    """The row as a measured throughput (0: out of memory); None if it is estimated or failed for another reason."""
    row = _query(fields, gpu_types)
    rate = fields.not_negative("throughput_rps")
    latency = fields.positive("latency_ms") if rate and fields.has("latency_ms") else None
    if fields.word("basis", BASES, "measured") == "estimated":
        return None
    if rate == 0 and fields.has("failure_reason") and fields.text("failure_reason") != "out_of_memory":
        return None
    return Sample(row.model, row.size, row.batch_size, row.processes, rate, latency)


def _checked_query(fields: RecordFields, has_run: Mapping[str, bool], gpu_types: frozenset[str]) -> Query:
    query = _query(fields, gpu_types)
    if len(gpu_types) == 1 and fields.has("gpu_type") and fields.text("gpu_type") not in gpu_types:
        raise CellFault(
            f"is {quoted(fields.text('gpu_type'))}, but every measured row is of {', '.join(gpu_types)}",
            "Measure one row on this GPU type.",
            "gpu_type",
        )
    if query.model not in has_run:
        raise CellFault(
            f"is {quoted(query.model)}, of which no row was measured",
            f"{suggestion(query.model, has_run, 'models')} Or measure one row of it.",
            "model",
        )
    if not has_run[query.model]:
        raise CellFault(
            f"is {quoted(query.model)}, whose measured rows all ran out of memory",
            "Measure one row of it that fits.",
            "model",
        )
    return query

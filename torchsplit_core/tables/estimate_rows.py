"""The rows of `torchsplit estimate`: records of the measured table to samples, records of the query to queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchsplit_core.curves import Query, Sample
from torchsplit_core.tables.cells import BadCell, CellFault
from torchsplit_core.tables.columns import columns_of, resolve_mapping
from torchsplit_core.tables.fields import Fields, Layout, layout_of, read_record
from torchsplit_core.tables.imported import settle_bad_rows
from torchsplit_core.tables.rows import LARGEST_BATCH, LARGEST_PROCESSES
from torchsplit_core.tables.sheet import Sheet
from torchsplit_core.tables.slices import compute_share
from torchsplit_core.values import InputFault, quoted, suggestion
from torchsplit_core.values.profile import BASES


def measured_samples(
    sheet: Sheet, origin: str, *, skip_bad: bool
) -> tuple[tuple[Sample, ...], frozenset[str], tuple[str, ...]]:
    """The measured rows, the GPU types they name, and notes.

    Rows of basis estimated are no measurements, and of failures only out of memory says anything of other rows:
    the others are left out and counted. Raises InputFault for a table without a slice or a row, and for bad rows.
    """
    mapping, notes = resolve_mapping(sheet.header, None, (), origin)
    layout = _layout(sheet, mapping, origin)
    gpu_types = _gpu_types(sheet, layout)
    found: list[Sample] = []
    bad: list[BadCell] = []
    left_out = 0
    for record in sheet.records:
        read = read_record(record, layout, lambda fields: _sample(fields, gpu_types))
        if isinstance(read, BadCell):
            bad.append(read)
        elif read is None:
            left_out += 1
        else:
            found.append(read)
    notes += settle_bad_rows(bad, len(found), origin, skip_bad=skip_bad)
    if left_out:
        notes += (
            f"{left_out} rows are no measurements (estimated, or failed for another reason than memory)",
        )
    if not found:
        raise InputFault(origin, "has no measured row", "Measure some rows first.")
    return tuple(found), gpu_types, notes


def asked_queries(
    sheet: Sheet, origin: str, samples: Sequence[Sample], gpu_types: frozenset[str]
) -> tuple[tuple[Query, ...], Layout, tuple[str, ...]]:
    """A query for every record, in their order, the table's layout and notes. Raises InputFault for bad rows."""
    mapping, notes = resolve_mapping(sheet.header, None, ("throughput_rps",), origin)
    layout = _layout(sheet, mapping, origin)
    if len(gpu_types) > 1 and "gpu_type" not in mapping:
        raise InputFault(
            f"{origin}: header",
            f"has no gpu_type, and the measured rows are of several ({', '.join(sorted(gpu_types))})",
            "Add the column gpu_type.",
        )
    ran: dict[str, bool] = {}
    for sample in samples:
        ran[sample.model] = ran.get(sample.model, False) or sample.throughput_rps > 0
    queries: list[Query] = []
    bad: list[BadCell] = []
    for record in sheet.records:
        read = read_record(record, layout, lambda fields: _asked(fields, ran, gpu_types))
        if isinstance(read, BadCell):
            bad.append(read)
        else:
            queries.append(read)
    settle_bad_rows(bad, len(queries), origin, skip_bad=None)
    return tuple(queries), layout, notes


def _layout(sheet: Sheet, mapping: Mapping[str, str], origin: str) -> Layout:
    if "compute_slices" not in mapping and "profile" not in mapping:
        raise InputFault(
            f"{origin}: header",
            "has neither compute_slices nor profile",
            f"Add one: the slice of every row. {columns_of(sheet.header)}",
        )
    if not sheet.records:
        raise InputFault(origin, "has a header but no rows", "Add the rows.")
    return layout_of(sheet, mapping)


def _gpu_types(sheet: Sheet, layout: Layout) -> frozenset[str]:
    return frozenset(filter(None, (Fields(record, layout).text("gpu_type") for record in sheet.records)))


def _query(fields: Fields, gpu_types: frozenset[str]) -> Query:
    """What the row is of. The model's name carries the stage, and the GPU type where several were measured."""
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
        size=fields.read(column, compute_share),
        batch_size=fields.count("batch_size", LARGEST_BATCH),
        processes=fields.count("processes", LARGEST_PROCESSES) if fields.has("processes") else 1,
    )


def _sample(fields: Fields, gpu_types: frozenset[str]) -> Sample | None:
    """The row as a measurement of throughput, or of where the memory ends; None where it is neither."""
    row = _query(fields, gpu_types)
    rate = fields.not_negative("throughput_rps")
    latency = fields.positive("latency_ms") if rate and fields.has("latency_ms") else None
    if fields.word("basis", BASES, "measured") == "estimated":
        return None
    if rate == 0 and fields.has("failure_reason") and fields.text("failure_reason") != "out_of_memory":
        return None
    return Sample(row.model, row.size, row.batch_size, row.processes, rate, latency)


def _asked(fields: Fields, ran: Mapping[str, bool], gpu_types: frozenset[str]) -> Query:
    query = _query(fields, gpu_types)
    if len(gpu_types) == 1 and fields.has("gpu_type") and fields.text("gpu_type") not in gpu_types:
        raise CellFault(
            f"is {quoted(fields.text('gpu_type'))}, but every measured row is of {', '.join(gpu_types)}",
            "Measure one row on this GPU type.",
            "gpu_type",
        )
    if query.model not in ran:
        raise CellFault(
            f"is {quoted(query.model)}, of which no row was measured",
            f"{suggestion(query.model, ran, 'models')} Or measure one row of it.",
            "model",
        )
    if not ran[query.model]:
        raise CellFault(
            f"is {quoted(query.model)}, whose measured rows all ran out of memory",
            "Measure one row of it that fits.",
            "model",
        )
    return query

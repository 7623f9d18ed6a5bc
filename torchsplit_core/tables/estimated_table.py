"""`torchsplit estimate`: estimates the rows of a query table from a table of measured rows.

`torchsplit_core.curves` predicts; this module keeps the rows in order, writes the table and summarises the errors.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchsplit_core.curves import (
    Estimate,
    FitError,
    ModelCurves,
    Outlier,
    Query,
    Sample,
    fit_model,
    outliers,
)
from torchsplit_core.tables.cell_parsing import BadCell
from torchsplit_core.tables.estimate_input import read_queries, read_samples
from torchsplit_core.tables.record_fields import ColumnLayout, read_record
from torchsplit_core.tables.sheet import Sheet, read_sheet
from torchsplit_core.tables.write_csv import lists_csv
from torchsplit_core.values import InputFault

ESTIMATE_COLUMNS = ("throughput_rps", "latency_ms", "low_rps", "high_rps", "basis")
"""Columns appended to the query's; a query column of the same name is renamed `given_NAME`."""

DIGITS = 9
"""Significant digits written: more than a measurement has, few enough to hide binary rounding."""


QUERIES_AT_ONCE = 4096
"""Queries predicted in one call, which needs memory for each pair of a query and a measured row."""


@dataclass(frozen=True, slots=True)
class QueryErrors:
    """Errors of the estimates relative to the query's own throughputs, and how many of these lie in their interval."""

    rows: int
    median_error: float
    p90_error: float
    inside_interval: int


@dataclass(frozen=True, slots=True)
class EstimatedTable:
    """The query's rows, unchanged and in order, with an estimate for each.

    `errors` has the leave-one-out error of every measured model that ran and has more than one row; `outliers` are the
    measured rows far from their prediction; `query_errors` is None if the query has no throughputs of its own (the
    estimates do not use them).
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    estimates: tuple[Estimate, ...]
    errors: Mapping[str, FitError]
    outliers: tuple[Outlier, ...]
    query_errors: QueryErrors | None
    notes: tuple[str, ...]

    def csv_text(self) -> str:
        """The table, comma-separated, lines ending in a newline; latency is empty for out of memory."""
        rows = (
            (
                *row,
                *("" if value is None else f"{value:.{DIGITS}g}" for value in _rounded_figures(estimate)),
                estimate.basis,
            )
            for row, estimate in zip(self.rows, self.estimates, strict=True)
        )
        return lists_csv((*self.header, *ESTIMATE_COLUMNS), rows)

    def json_text(self) -> str:
        """A JSON list with one object per row; the query's cells are strings, the estimates numbers."""
        rows = [
            dict(
                zip(
                    (*self.header, *ESTIMATE_COLUMNS),
                    (*row, *_rounded_figures(estimate), estimate.basis),
                    strict=True,
                )
            )
            for row, estimate in zip(self.rows, self.estimates, strict=True)
        ]
        return json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @property
    def summary(self) -> str:
        """One line: rows by basis, and how well the curves predict the measured rows."""
        counts = {
            basis: sum(estimate.basis == basis for estimate in self.estimates)
            for basis in ("estimated", "measured", "out_of_memory")
        }
        sentences = [
            f"{len(self.rows)} rows: "
            + ", ".join(f"{count} {basis.replace('_', ' ')}" for basis, count in counts.items())
        ]
        if self.errors:
            middle = statistics.median(error.median for error in self.errors.values())
            worst = max(self.errors, key=lambda name: self.errors[name].median)
            sentences.append(f"leave-one-out error of the measured rows: median {middle:.1%}")
            if len(self.errors) > 1:
                sentences[-1] += (
                    f" over {len(self.errors)} models, largest {self.errors[worst].median:.1%} ({worst})"
                )
        sentences.append(f"measured rows far off: {len(self.outliers)}")
        if self.query_errors is not None:
            sentences.append(
                f"against the query's own throughputs: median error {self.query_errors.median_error:.1%}, p90 "
                f"{self.query_errors.p90_error:.1%}, {self.query_errors.inside_interval} of "
                f"{self.query_errors.rows} inside their interval"
            )
        return "; ".join(sentences)


def estimate_table(
    measured_text: str,
    query_text: str,
    *,
    measured_origin: str = "the measured table",
    query_origin: str = "the query",
    skip_bad: bool = False,
) -> EstimatedTable:
    """Estimate every row of the query from the measured rows; both tables have the columns of `COLUMNS`.

    A measured throughput of 0 is out of memory. Raises InputFault for tables that cannot be read; `skip_bad` leaves
    out and notes bad measured rows, but never rows of the query.
    """
    samples, gpu_types, notes = read_samples(
        read_sheet(measured_text, measured_origin), measured_origin, skip_bad=skip_bad
    )
    sheet = read_sheet(query_text, query_origin)
    queries, layout, query_notes = read_queries(sheet, query_origin, samples, gpu_types)
    curves = _fit_models(samples)
    estimates = _estimate_queries(curves, queries)
    return EstimatedTable(
        header=_renamed_header(sheet.header, query_origin),
        rows=tuple(_padded(record.cells, layout.width) for record in sheet.records),
        estimates=estimates,
        errors={name: fit.leave_one_out() for name, fit in curves.items() if len(fit.samples) > 1},
        outliers=outliers(samples),
        query_errors=_query_errors(sheet, layout, estimates),
        notes=(*notes, *(f"query: {note}" for note in query_notes)),
    )


def _padded(cells: Sequence[str], width: int) -> tuple[str, ...]:
    """As many cells as the header has: a row may end early or have a trailing delimiter."""
    return (*cells[:width], *("",) * (width - len(cells)))


def _renamed_header(header: Sequence[str], origin: str) -> tuple[str, ...]:
    for name in ESTIMATE_COLUMNS:
        if name in header and f"given_{name}" in header:
            raise InputFault(
                f"{origin}: header",
                f"has both {name} and given_{name}, the name under which its {name} is written",
                "Rename one of the two columns.",
            )
    return tuple(f"given_{name}" if name in ESTIMATE_COLUMNS else name for name in header)


def _fit_models(samples: Sequence[Sample]) -> dict[str, ModelCurves]:
    """Fit each model with a row that ran, once for both the estimates and their errors."""
    by_model: dict[str, list[Sample]] = {}
    for sample in samples:
        by_model.setdefault(sample.model, []).append(sample)
    return {
        model: fit_model(rows)
        for model, rows in by_model.items()
        if any(row.throughput_rps > 0 for row in rows)
    }


def _estimate_queries(curves: Mapping[str, ModelCurves], queries: Sequence[Query]) -> tuple[Estimate, ...]:
    """One estimate per query, in order."""
    indices: dict[str, list[int]] = {}
    for index, query in enumerate(queries):
        indices.setdefault(query.model, []).append(index)
    estimates: dict[int, Estimate] = {}
    for model, at in indices.items():
        for start in range(0, len(at), QUERIES_AT_ONCE):
            part = at[start : start + QUERIES_AT_ONCE]
            estimates.update(
                zip(part, curves[model].estimates([queries[index] for index in part]), strict=True)
            )
    return tuple(estimates[index] for index in range(len(queries)))


def _query_errors(sheet: Sheet, layout: ColumnLayout, estimates: Sequence[Estimate]) -> QueryErrors | None:
    """Compare the rows of basis estimated with the query's own throughputs above 0; None if there are none."""
    if "throughput_rps" not in layout.index_of:
        return None
    errors = []
    inside = 0
    for record, estimate in zip(sheet.records, estimates, strict=True):
        given = read_record(record, layout, lambda fields: fields.positive("throughput_rps"))
        if isinstance(given, BadCell) or estimate.basis != "estimated":
            continue
        errors.append(abs(estimate.throughput_rps / given - 1))
        inside += estimate.low_rps <= given <= estimate.high_rps
    if not errors:
        return None
    p90 = sorted(errors)[min(len(errors) - 1, int(0.9 * len(errors)))]
    return QueryErrors(len(errors), statistics.median(errors), p90, inside)


def _rounded_figures(estimate: Estimate) -> tuple[float | None, ...]:
    """Throughput, latency, low and high, rounded alike so that low ≤ throughput ≤ high still holds."""
    return tuple(
        None if value is None else float(f"{value:.{DIGITS}g}")
        for value in (estimate.throughput_rps, estimate.latency_ms, estimate.low_rps, estimate.high_rps)
    )

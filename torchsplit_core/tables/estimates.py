"""`torchsplit estimate`: measured rows and rows asked for, as tables; the asked rows come back with their figures.

The curves do the predicting (`torchsplit_core.curves`); here are the order, the writing, and what is said of it.
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
from torchsplit_core.tables.cells import BadCell
from torchsplit_core.tables.estimate_rows import asked_queries, measured_samples
from torchsplit_core.tables.fields import Layout, read_record
from torchsplit_core.tables.sheet import Sheet, read_sheet
from torchsplit_core.tables.write_csv import lists_csv
from torchsplit_core.values import InputFault

ADDED = ("throughput_rps", "latency_ms", "low_rps", "high_rps", "basis")
"""The columns appended to the query's own. One of its own with such a name is kept as `given_NAME`."""

DIGITS = 9
"""Significant digits written: more than a measurement has, and few enough to hide the binary fraction."""


QUERIES_AT_ONCE = 4096
"""A prediction takes memory for each pair of a query and a measured row."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Estimates beside throughputs that the query itself has: relative errors, and how many in their interval."""

    rows: int
    median_error: float
    p90_error: float
    inside: int


@dataclass(frozen=True, slots=True)
class EstimatedTable:
    """The query's rows in their order, cells as they were, and an estimate for each.

    `errors` has the leave-one-out error of every measured model with more than one row that ran; `outliers` the
    measured rows far off; `judged` is None where the query has no throughputs of its own (they take no part in
    the estimate).
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    estimates: tuple[Estimate, ...]
    errors: Mapping[str, FitError]
    outliers: tuple[Outlier, ...]
    judged: Judged | None
    notes: tuple[str, ...]

    def csv_text(self) -> str:
        """The table, comma-separated, lines ending in a newline; latency is empty for out of memory."""
        rows = (
            (
                *row,
                *("" if value is None else f"{value:.{DIGITS}g}" for value in _figures(found)),
                found.basis,
            )
            for row, found in zip(self.rows, self.estimates, strict=True)
        )
        return lists_csv((*self.header, *ADDED), rows)

    def json_text(self) -> str:
        """The same as a JSON list, one object a row; the query's own cells are text, what is added are numbers."""
        rows = [
            dict(zip((*self.header, *ADDED), (*row, *_figures(found), found.basis), strict=True))
            for row, found in zip(self.rows, self.estimates, strict=True)
        ]
        return json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @property
    def summary(self) -> str:
        """One line: how many rows of which basis, and how well the curves know the measured rows."""
        counts = {
            basis: sum(found.basis == basis for found in self.estimates)
            for basis in ("estimated", "measured", "out_of_memory")
        }
        said = [
            f"{len(self.rows)} rows: "
            + ", ".join(f"{count} {basis.replace('_', ' ')}" for basis, count in counts.items())
        ]
        if self.errors:
            middle = statistics.median(error.median for error in self.errors.values())
            worst = max(self.errors, key=lambda name: self.errors[name].median)
            said.append(f"leave-one-out error of the measured rows: median {middle:.1%}")
            if len(self.errors) > 1:
                said[-1] += (
                    f" over {len(self.errors)} models, largest {self.errors[worst].median:.1%} ({worst})"
                )
        said.append(f"measured rows far off: {len(self.outliers)}")
        if self.judged is not None:
            said.append(
                f"against the query's own throughputs: median error {self.judged.median_error:.1%}, p90 "
                f"{self.judged.p90_error:.1%}, {self.judged.inside} of {self.judged.rows} inside their interval"
            )
        return "; ".join(said)


def estimate_table(
    measured_text: str,
    query_text: str,
    *,
    measured_origin: str = "the measured table",
    query_origin: str = "the query",
    skip_bad: bool = False,
) -> EstimatedTable:
    """An estimate for every row of the query, from the measured rows; columns as in `COLUMNS`.

    A measured throughput of 0 is out of memory. Raises InputFault for tables that cannot be read; with
    `skip_bad`, bad measured rows are left out and noted, never rows of the query.
    """
    samples, gpu_types, notes = measured_samples(
        read_sheet(measured_text, measured_origin), measured_origin, skip_bad=skip_bad
    )
    sheet = read_sheet(query_text, query_origin)
    queries, layout, said = asked_queries(sheet, query_origin, samples, gpu_types)
    curves = _fitted(samples)
    found = _answered(curves, queries)
    return EstimatedTable(
        header=_kept_header(sheet.header, query_origin),
        rows=tuple(_padded(record.cells, layout.width) for record in sheet.records),
        estimates=found,
        errors={name: fit.leave_one_out() for name, fit in curves.items() if len(fit.samples) > 1},
        outliers=outliers(samples),
        judged=_judge(sheet, layout, found),
        notes=(*notes, *(f"query: {note}" for note in said)),
    )


def _padded(cells: Sequence[str], width: int) -> tuple[str, ...]:
    """As many cells as the header has: a row may end early, and a trailing delimiter is no cell."""
    return (*cells[:width], *("",) * (width - len(cells)))


def _kept_header(header: Sequence[str], origin: str) -> tuple[str, ...]:
    for name in ADDED:
        if name in header and f"given_{name}" in header:
            raise InputFault(
                f"{origin}: header",
                f"has both {name} and given_{name}, the name under which its {name} is written",
                "Rename one of the two columns.",
            )
    return tuple(f"given_{name}" if name in ADDED else name for name in header)


def _fitted(samples: Sequence[Sample]) -> dict[str, ModelCurves]:
    """The curves of every model of which a row ran: fitted once, for the estimates and for their error."""
    by_model: dict[str, list[Sample]] = {}
    for sample in samples:
        by_model.setdefault(sample.model, []).append(sample)
    return {
        model: fit_model(rows)
        for model, rows in by_model.items()
        if any(row.throughput_rps > 0 for row in rows)
    }


def _answered(curves: Mapping[str, ModelCurves], queries: Sequence[Query]) -> tuple[Estimate, ...]:
    """An estimate for each query, in their order."""
    indices: dict[str, list[int]] = {}
    for index, query in enumerate(queries):
        indices.setdefault(query.model, []).append(index)
    answers: dict[int, Estimate] = {}
    for model, at in indices.items():
        for start in range(0, len(at), QUERIES_AT_ONCE):
            part = at[start : start + QUERIES_AT_ONCE]
            answers.update(
                zip(part, curves[model].estimates([queries[index] for index in part]), strict=True)
            )
    return tuple(answers[index] for index in range(len(queries)))


def _judge(sheet: Sheet, layout: Layout, estimates: Sequence[Estimate]) -> Judged | None:
    """Against throughputs above 0 in the query's own column, for the rows that were estimated."""
    if "throughput_rps" not in layout.at:
        return None
    errors = []
    inside = 0
    for record, found in zip(sheet.records, estimates, strict=True):
        given = read_record(record, layout, lambda fields: fields.positive("throughput_rps"))
        if isinstance(given, BadCell) or found.basis != "estimated":
            continue
        errors.append(abs(found.throughput_rps / given - 1))
        inside += found.low_rps <= given <= found.high_rps
    if not errors:
        return None
    p90 = sorted(errors)[min(len(errors) - 1, int(0.9 * len(errors)))]
    return Judged(len(errors), statistics.median(errors), p90, inside)


def _figures(found: Estimate) -> tuple[float | None, ...]:
    """Throughput, latency and the interval, rounded alike so that low ≤ throughput ≤ high stays."""
    return tuple(
        None if value is None else float(f"{value:.{DIGITS}g}")
        for value in (found.throughput_rps, found.latency_ms, found.low_rps, found.high_rps)
    )

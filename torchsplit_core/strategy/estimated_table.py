"""`torchsplit estimate-training`: takes rows of trainings and adds the predicted step to each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

from torchsplit_core.strategy.accuracy import FamilyError, StepComparison, family_errors, format_errors
from torchsplit_core.strategy.cost_model.estimate import estimate
from torchsplit_core.strategy.cost_model.interval import Offset, calibrated
from torchsplit_core.strategy.table_input.cell_values import number
from torchsplit_core.strategy.table_input.errors import RowError
from torchsplit_core.strategy.table_input.parsed_row import ParsedRow, read_row
from torchsplit_core.tables import Sheet, read_sheet
from torchsplit_core.tables.write_csv import lists_csv
from torchsplit_core.values import InputFault
from torchsplit_core.values.training import StepEstimate
from torchsplit_core.values.units import GIB

ADDED_COLUMNS = ("predicted_iter_s", "low_s", "high_s", "predicted_peak_gib", "fits")
"""The appended columns. An input column of the same name becomes `given_NAME`."""
REQUIRED_COLUMNS = (
    "model",
    "params_b",
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "vocab",
    "seq_len",
    "gpu",
    "n_gpus",
    "tp",
    "pp",
    "dp",
    "cp",
    "sharding",
    "recompute",
    "precision",
    "global_batch",
    "micro_batch",
    "framework",
)
"""Columns that a table must have; their cells may be empty. Optional columns: `active_params_b`, `ep`, `vpp`, `date`,
`set`, `task`."""
DIGITS = 6
"""Significant digits written."""


@dataclass(frozen=True, slots=True)
class TrainingTable:
    """The rows in their order, each with its prediction (None if impossible) or the reason why it has none.

    `errors` is empty if the table has no measured seconds (`iter_s`), which the prediction never uses.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    estimates: tuple[StepEstimate | None, ...]
    reasons: tuple[str, ...]
    errors: tuple[FamilyError, ...]
    memory_errors: tuple[float, ...]

    def csv_text(self) -> str:
        """The table, comma-separated, lines ending in a newline; empty cells for rows without a prediction."""
        rows = ((*row, *_cells(step)) for row, step in zip(self.rows, self.estimates, strict=True))
        return lists_csv((*self.header, *ADDED_COLUMNS), rows)

    def json_text(self) -> str:
        """The table as a JSON list of objects: its cells as text, added values as numbers or null."""
        entries = []
        for row, step in zip(self.rows, self.estimates, strict=True):
            entry: dict[str, object] = dict(zip(self.header, row, strict=True))
            entry.update(
                dict.fromkeys(ADDED_COLUMNS)
                if step is None
                else dict(zip(ADDED_COLUMNS, _figures(step), strict=True))
            )
            entries.append(entry)
        return json.dumps(entries, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @property
    def summary(self) -> list[str]:
        """Lines of text: rows predicted, and the errors if seconds or peaks were measured."""
        predicted = sum(step is not None for step in self.estimates)
        summary_lines = [f"{len(self.rows)} rows: {predicted} predicted, {len(self.rows) - predicted} not"]
        summary_lines += format_errors(self.errors)
        if self.memory_errors:
            ordered = sorted(self.memory_errors)
            summary_lines.append(
                f"peak memory: {len(ordered)} rows, error median {ordered[len(ordered) // 2]:.1%}"
            )
        return summary_lines


def estimate_table(
    text: str, known_text: str = "", *, origin: str = "the table", known_origin: str = "the measured rows"
) -> TrainingTable:
    """Predict the step of every row of the table.

    `known_text`: the user's measured rows (the same columns with `iter_s`), whose offset applies to rows of the same
    framework and GPU. Raises InputFault for a text that is no table, for a missing column, and for known rows
    without a usable measurement.
    """
    sheet = _check_columns(read_sheet(text, origin), origin)
    offsets = (
        _offsets(_check_columns(read_sheet(known_text, known_origin), known_origin), known_origin)
        if known_text
        else {}
    )
    estimates: list[StepEstimate | None] = []
    reasons: list[str] = []
    steps: list[StepComparison] = []
    memory: list[float] = []
    for line, cells in _records(sheet):
        step: StepEstimate | None = None
        try:
            row = read_row(cells)
            step = predict(row, offsets.get(_offset_key(cells, row)))
        except (RowError, InputFault) as fault:
            reasons.append(f"line {line}: {fault}")
        estimates.append(step)
        if step is None:
            continue
        if (seconds := measured(cells, "iter_s")) is not None:
            steps.append(_step(cells, row, step, seconds))
        if (peak := measured(cells, "peak_mem_gib")) is not None:
            memory.append(abs(step.memory.total / GIB / peak - 1))
    return TrainingTable(
        header=_output_header(sheet.header),
        rows=tuple(_padded(record.cells, len(sheet.header)) for record in sheet.records),
        estimates=tuple(estimates),
        reasons=tuple(reasons),
        errors=family_errors(steps),
        memory_errors=tuple(memory),
    )


def predict(row: ParsedRow, offset: Offset | None = None) -> StepEstimate:
    """The estimate of a parsed row."""
    return estimate(row.model, row.device, row.cluster, row.choices, row.job, row.software, offset=offset)


def measured(cells: Mapping[str, str], column: str) -> float | None:
    """A measured value above 0, or None if the cell has none."""
    try:
        return number(cells, column)
    except RowError:
        return None


def family_name(cells: Mapping[str, str]) -> str:
    """The family that a row's errors count in: framework, set and GPU."""
    parts = (cells.get("framework") or "no framework", cells.get("set") or "", cells.get("gpu") or "")
    return " · ".join(part.strip() for part in parts if part.strip())


def _step(cells: Mapping[str, str], row: ParsedRow, step: StepEstimate, seconds: float) -> StepComparison:
    work = ("model", "seq_len", "n_gpus", "global_batch", "precision")
    group = (family_name(cells), *(cells.get(name, "") for name in work))
    return StepComparison(family_name(cells), group, seconds, step.seconds, step.low_s, step.high_s)


def _offset_key(cells: Mapping[str, str], row: ParsedRow) -> tuple[str, str]:
    return " ".join((cells.get("framework") or "").lower().split()), row.device.name


def _offsets(sheet: Sheet, origin: str) -> dict[tuple[str, str], Offset]:
    ratios: dict[tuple[str, str], list[float]] = {}
    for line, cells in _records(sheet):
        seconds = measured(cells, "iter_s")
        if seconds is None:
            continue
        try:
            row = read_row(cells)
            ratios.setdefault(_offset_key(cells, row), []).append(log(seconds / predict(row).seconds))
        except (RowError, InputFault) as fault:
            raise InputFault(
                f"{origin}, line {line}",
                f"is measured, but its step cannot be estimated: {fault}",
                "Correct the row or leave it out.",
            ) from None
    if not ratios:
        raise InputFault(origin, "has no row with iter_s", "Fill iter_s, the measured seconds of a step.")
    return {key: calibrated(tuple(values)) for key, values in ratios.items()}


def _check_columns(sheet: Sheet, origin: str) -> Sheet:
    missing = [name for name in REQUIRED_COLUMNS if name not in sheet.header]
    if missing:
        raise InputFault(
            f"{origin}, header", f"lacks {', '.join(missing)}", "Add these columns; their cells may be empty."
        )
    twice = sorted({name for name in sheet.header if sheet.header.count(name) > 1})
    if twice:
        raise InputFault(f"{origin}, header", f"names {', '.join(twice)} twice", "Rename or remove one.")
    return sheet


def _records(sheet: Sheet) -> list[tuple[int, dict[str, str]]]:
    width = len(sheet.header)
    return [
        (record.line, dict(zip(sheet.header, _padded(record.cells, width), strict=True)))
        for record in sheet.records
    ]


def _padded(cells: Sequence[str], width: int) -> tuple[str, ...]:
    """As many cells as the header has: a row may end early, and a trailing delimiter adds no cell."""
    return (*cells[:width], *("",) * (width - len(cells)))


def _output_header(header: Sequence[str]) -> tuple[str, ...]:
    names = tuple(f"given_{name}" if name in ADDED_COLUMNS else name for name in header)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputFault("header", f"names {', '.join(twice)} twice", "Rename or remove one.")
    return names


def _figures(step: StepEstimate) -> tuple[float | bool, ...]:
    """Seconds with their interval, GiB, whether it fits; rounded alike so that low ≤ seconds ≤ high holds."""
    numbers = (step.seconds, step.low_s, step.high_s, step.memory.total / GIB)
    return (*(float(f"{value:.{DIGITS}g}") for value in numbers), step.fits)


def _cells(step: StepEstimate | None) -> tuple[str, ...]:
    if step is None:
        return ("",) * len(ADDED_COLUMNS)
    *numbers, fits = _figures(step)
    return (*(f"{value:.{DIGITS}g}" for value in numbers), "true" if fits else "false")

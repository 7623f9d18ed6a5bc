"""`torchsplit estimate-serving`: rows of LLM serving with their predicted figures, in the same order."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from torchsplit_core.llm import EngineConstants
from torchsplit_core.serving_estimates.prediction import Correction, RowFigures, predict_row, text_pieces
from torchsplit_core.serving_estimates.row import (
    ESTIMATED,
    FIGURES,
    REQUIRED,
    ServingRow,
    is_estimated,
    read_row,
)
from torchsplit_core.tables import BadCell, Sheet, read_sheet
from torchsplit_core.tables.record_fields import column_layout, read_record
from torchsplit_core.tables.write_csv import lists_csv
from torchsplit_core.values import InputFault
from torchsplit_core.values.progress import Progress, ignore_progress

INTERVALS = tuple(f"{name}_mean_{end}_ms" for name in ("ttft", "itl", "e2e") for end in ("low", "high"))
ADDED = (*FIGURES, *INTERVALS, "kv_blocks", "basis", "note")
"""Columns that are written; those of the same name in the table become `given_NAME`, but kv_blocks, which stays."""
MOST_ROWS = 2000
"""Chosen: a row takes seconds."""
DIGITS = 6
STEP_DEVIATIONS, FIRST_TOKEN_DEVIATIONS = (0.03, 0.07), (0.045, 0.2)
"""Standard deviations of the logarithms of step times and of times to the first token between two stages of one
experiment, and between experiments of one kind: from the rows of examples/llm_serving.csv."""


@dataclass(frozen=True, slots=True)
class EstimatedServing:
    """A row of the table: its cells, and its figures or the reason why it has none. `known_rows` calibrated it."""

    cells: Mapping[str, str]
    figures: RowFigures | None
    reason: str
    known_rows: int


@dataclass(frozen=True, slots=True)
class KnownRow:
    """What a row with figures says: the logarithm of its measured over its predicted time per token, of its times to
    the first token beside that, and its pieces of text a token; None where it has no such figure.
    """

    place: int
    row: ServingRow
    step: float
    first_token: float | None
    pieces: float | None


@dataclass(frozen=True, slots=True)
class ServingEstimates:
    """The rows in their order; `header` are the columns as written."""

    header: tuple[str, ...]
    rows: tuple[EstimatedServing, ...]

    def records(self) -> list[dict[str, object]]:
        """For each row its columns: cells as text, figures as numbers, None where there is none."""
        return [{name: _cell(row, name) for name in self.header} for row in self.rows]

    def csv_text(self) -> str:
        """The table, comma-separated, lines ending in a newline."""
        records = self.records()
        return lists_csv(self.header, ([_text(record[name]) for name in self.header] for record in records))

    def json_text(self) -> str:
        """The table as a JSON list of objects."""
        return json.dumps(self.records(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @property
    def summary(self) -> str:
        predicted = sum(row.figures is not None for row in self.rows)
        known = sum(row.known_rows > 0 for row in self.rows)
        return f"{len(self.rows)} rows: {predicted} predicted, {known} of them beside known rows"


def estimate_serving(
    text: str,
    *,
    origin: str = "the table",
    folder: Path | None = None,
    constants: EngineConstants | None = None,
    progress: Progress = ignore_progress,
) -> ServingEstimates:
    """Predict every row of a table; files that rows name stand in `folder` or the current one.

    Rows of an experiment are its stages in order. Rows with figures calibrate the others of their model, GPU, tensor-
    parallel size and precision. Raises InputFault for a text that is no table, one without rows or a column of
    REQUIRED, and for too many rows; a row at fault has its reason instead of figures.
    """
    known = constants or EngineConstants()
    sheet = _checked(read_sheet(text, origin), origin)
    rows = _read_rows(sheet, folder or Path(), known)
    known_rows = []
    for place, row in enumerate(rows):
        if isinstance(row, ServingRow) and row.figures:
            progress(place / len(rows) / 2, f"row {place + 1} of {len(rows)}, from sizes alone")
            said = known_row(rows, place, known)
            known_rows += [] if said is None else [said]
    estimated = []
    for place, row in enumerate(rows):
        progress((1 + place / len(rows)) / 2, f"row {place + 1} of {len(rows)}")
        cells = _cells(sheet, place)
        if isinstance(row, str):
            estimated.append(EstimatedServing(cells, None, row, 0))
            continue
        change = _correction(row, place, known_rows, known)
        figures = _predicted(row, _earlier(rows, place), change, known, intervals=True)
        reason = figures if isinstance(figures, str) else ""
        estimated.append(
            EstimatedServing(cells, None if isinstance(figures, str) else figures, reason, change.rows)
        )
    return ServingEstimates(_header(sheet.header), tuple(estimated))


def read_rows(text: str, folder: Path, *, origin: str = "the table") -> list[ServingRow | str]:
    """Each row of a table, or why it can not be predicted. Raises InputFault as `estimate_serving` does."""
    return _read_rows(_checked(read_sheet(text, origin), origin), folder, EngineConstants())


def _checked(sheet: Sheet, origin: str) -> Sheet:
    stand_ins = {
        "model": "config",
        "rate_rps": "requests",
        "question_tokens": "requests",
        "output_tokens": "requests",
    }
    missing = [
        name
        for name in REQUIRED
        if name not in sheet.header and stand_ins.get(name, name) not in sheet.header
    ]
    if missing:
        raise InputFault(
            f"{origin}: header", f"has no {', '.join(missing)}", f"Give the columns {', '.join(REQUIRED)}."
        )
    if repeated := [name for name in sheet.header if name and sheet.header.count(name) > 1]:
        raise InputFault(f"{origin}: header", f"names {repeated[0]} twice", "Rename or remove one.")
    if not sheet.records:
        raise InputFault(origin, "has no row below its header", "Give one stage of an experiment a line.")
    if len(sheet.records) > MOST_ROWS:
        raise InputFault(
            origin,
            f"has {len(sheet.records):,} rows, more than {MOST_ROWS:,}: each is simulated",
            "Split it into smaller files.",
        )
    return sheet


def _read_rows(sheet: Sheet, folder: Path, constants: EngineConstants) -> list[ServingRow | str]:
    """Each row, or why it can not be predicted."""
    layout = column_layout(sheet)
    rows: list[ServingRow | str] = []
    for record in sheet.records:
        try:
            row = read_record(record, layout, lambda fields: read_row(fields, folder, constants))
        except InputFault as fault:
            rows.append(str(fault))
            continue
        rows.append(f"{row.column}: {row.problem}. {row.remedy}" if isinstance(row, BadCell) else row)
    return rows


def _earlier(rows: Sequence[ServingRow | str], place: int) -> list[ServingRow]:
    """The stages of the row's experiment before it, of the same engine."""
    row = rows[place]
    if not isinstance(row, ServingRow) or not row.experiment:
        return []
    return [
        other
        for other in rows[:place]
        if isinstance(other, ServingRow) and (other.experiment, other.key) == (row.experiment, row.key)
    ]


def _predicted(
    row: ServingRow,
    earlier: Sequence[ServingRow],
    change: Correction,
    constants: EngineConstants,
    *,
    intervals: bool,
) -> RowFigures | str:
    """The figures, or why there are none."""
    try:
        return predict_row(row, earlier, change, intervals=intervals, constants=constants)
    except InputFault as fault:
        return str(fault)


def known_row(rows: Sequence[ServingRow | str], place: int, constants: EngineConstants) -> KnownRow | None:
    """What the row at this place says of rows of its kind; None where its figures, or those from sizes, say nothing."""
    row = rows[place]
    if not isinstance(row, ServingRow):
        return None
    measured = time_per_token(row, row.figures, constants)
    if measured is None:
        return None
    figures = _predicted(row, _earlier(rows, place), Correction(), constants, intervals=False)
    predicted = None if isinstance(figures, str) else time_per_token(row, figures.values, constants)
    if isinstance(figures, str) or predicted is None:
        return None
    step = math.log(measured / predicted)
    ttft, expected = row.figures.get("ttft_mean_ms"), figures.values["ttft_mean_ms"]
    gap = row.figures.get("itl_mean_ms") if row.requests is None and "e2e_mean_ms" in row.figures else None
    return KnownRow(
        place,
        row,
        step,
        math.log(ttft / expected) - step if ttft and expected and figures.keeps_up else None,
        measured / gap if gap else None,
    )


def _correction(
    row: ServingRow, place: int, known_rows: Sequence[KnownRow], constants: EngineConstants
) -> Correction:
    """What the known rows of its kind say of a row, its own figures aside; stages of its own experiment most."""
    others = [known for known in known_rows if known.place != place and known.row.key == row.key]
    if not others:
        return Correction()
    apart = [0 if row.experiment and known.row.experiment == row.experiment else 1 for known in others]
    steps = [(known.step, STEP_DEVIATIONS[far]) for known, far in zip(others, apart, strict=True)]
    first_tokens = [
        (known.first_token, FIRST_TOKEN_DEVIATIONS[far])
        for known, far in zip(others, apart, strict=True)
        if known.first_token is not None
    ]
    pieces = [known.pieces for known in others if known.pieces is not None]
    return Correction(
        step=math.exp(_weighted(steps, constants.spread)),
        first_token=math.exp(_weighted(first_tokens, constants.first_token_spread)),
        pieces=fmean(pieces) if pieces else None,
        rows=len(steps),
    )


def _weighted(errors: Sequence[tuple[float, float]], prior: float) -> float:
    """The mean of errors with their standard deviations, beside one of 0 with `prior`: each by its precision."""
    weights = [1 / deviation**2 for _, deviation in errors]
    return sum(error * weight for (error, _), weight in zip(errors, weights, strict=True)) / (
        sum(weights) + 1 / prior**2
    )


def time_per_token(
    row: ServingRow, figures: Mapping[str, float | None], constants: EngineConstants
) -> float | None:
    """Milliseconds from one token to the next: of the response after its first token, else of the gaps; None where
    the figures have neither.
    """
    output = float(np.mean(row.requests.output_tokens)) if row.requests is not None else row.output_tokens
    whole, first = figures.get("e2e_mean_ms"), figures.get("ttft_mean_ms")
    if whole and first and output > 1 and whole > first:
        return (whole - first) / (output - 1)
    gap = figures.get("itl_mean_ms")
    return gap * text_pieces(row, constants) if gap else None


def _header(given: Sequence[str]) -> tuple[str, ...]:
    moved = [f"given_{name}" for name in given if name in ADDED and name != "kv_blocks"]
    first = [name for name in given if name not in ADDED and name not in moved]
    return (*first, *ADDED, *moved)


def _cells(sheet: Sheet, place: int) -> dict[str, str]:
    cells = sheet.records[place].cells
    return {name: cells[index] if index < len(cells) else "" for index, name in enumerate(sheet.header)}


def _cell(row: EstimatedServing, name: str) -> object:
    if name.startswith("given_") and name.removeprefix("given_") in row.cells:
        again = is_estimated(row.cells.get("basis", ""))
        return row.cells.get(name, "") if again else row.cells[name.removeprefix("given_")]
    if name == "note":
        return row.reason
    if name == "kv_blocks":
        return row.cells.get(name) or (None if row.figures is None else row.figures.kv_blocks)
    if name == "basis":
        beside = (
            f", beside {row.known_rows} known row{'s' if row.known_rows > 1 else ''}"
            if row.known_rows
            else ""
        )
        return None if row.figures is None else f"{ESTIMATED}{beside}"
    if name in ADDED:
        figures = {} if row.figures is None else {**row.figures.values, **row.figures.intervals}
        value = figures.get(name)
        return None if value is None else float(f"{value:.{DIGITS}g}")
    return row.cells.get(name, "")


def _text(value: object) -> str:
    return "" if value is None else f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)

"""Reads arrival times from a table: a column of seconds, or of timestamps as in public traces.

Azure's LLM inference traces have a column TIMESTAMP (2023-11-16 18:17:03.9799600) beside token counts.
"""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

from torchsplit_core.tables.cell_parsing import CellFault, parse_number
from torchsplit_core.tables.sheet import LARGEST_TABLE_BYTES, decode
from torchsplit_core.values import InputFault, quoted, system_reason

SECONDS = ("time_s", "times_s", "arrival_s", "time", "times", "arrival_time", "seconds", "t")
TIMESTAMPS = ("timestamp", "datetime", "date")
MODEL = "model"
"""Accepted column names, in any case; a table without a header has the times in its first column."""
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(\.\d{1,12})?(Z|[+-]\d\d:?\d\d)?")
_REMEDY = "Give a column time_s with seconds from 0, or timestamp with dates."


def read_arrival_times(path: str | Path) -> dict[str | None, tuple[float, ...]]:
    """`arrival_times` of a file. Raises InputFault also if the file cannot be read."""
    origin = str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST_TABLE_BYTES + 1)
    except OSError as error:
        raise InputFault(origin, f"cannot be read: {system_reason(error)}", "Check the path.") from error
    return arrival_times(data, origin)


def arrival_times(data: bytes, origin: str) -> dict[str | None, tuple[float, ...]]:
    """Arrival times in seconds by model; all under None if no column names a model.

    Timestamps become seconds since the first one in the table; numbers are already seconds. Rows keep their order.
    Raises InputFault if the table has no column of times, a cell is not a time, or times decrease.
    """
    text = decode(data, origin)
    try:
        rows = [row for row in csv.reader(io.StringIO(text)) if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise InputFault(origin, f"is not a table: {error}", _REMEDY) from error
    if not rows:
        raise InputFault(origin, "is empty", _REMEDY)
    header = [cell.strip().lower() for cell in rows[0]]
    column, first = _column(header, origin)
    repeated = next((name for name in (*SECONDS, *TIMESTAMPS, MODEL) if header.count(name) > 1), None)
    if repeated:
        raise InputFault(f"{origin}: header", f"names {quoted(repeated)} twice", "Rename or remove one.")
    model_column = header.index(MODEL) if first and MODEL in header else None
    times_by_model: dict[str | None, list[Fraction]] = {}
    for line, row in enumerate(rows[first:], first + 1):
        cell = row[column].strip() if column < len(row) else ""
        model = None if model_column is None else row[model_column].strip() if model_column < len(row) else ""
        where = f"{origin}: row {line}"
        times = times_by_model.setdefault(model, [])
        times.append(_seconds(cell, where))
        if times[-1] < 0:
            raise InputFault(where, f"the time {cell} is below 0", "Count from the first arrival.")
        if times[1:] and times[-1] < times[-2]:
            raise InputFault(
                where, f"the time {cell} is before that of the row above", "Sort the table by time."
            )
    if not times_by_model:
        raise InputFault(origin, "has a header but no arrivals", "Add a row for each arrival.")
    stamped = bool(_TIMESTAMP.fullmatch(rows[first][column].strip()))
    start = min(min(times) for times in times_by_model.values()) if stamped else Fraction(0)
    return {model: tuple(float(time - start) for time in times) for model, times in times_by_model.items()}


def _column(header: list[str], origin: str) -> tuple[int, int]:
    """Index of the column with the times, and of the first row of data."""
    for name in (*SECONDS, *TIMESTAMPS):
        if name in header:
            return header.index(name), 1
    if _TIMESTAMP.fullmatch(header[0].upper()) or re.fullmatch(r"[-+0-9.eE]+", header[0]):
        return 0, 0
    if len(header) == 1:
        return 0, 1
    raise InputFault(origin, f"has no column of times: its header is {quoted(', '.join(header))}", _REMEDY)


def _seconds(cell: str, where: str) -> Fraction:
    """Parse seconds; for a timestamp return seconds since 1970 (UTC if it has no zone)."""
    if match := _TIMESTAMP.fullmatch(cell):
        whole, part, zone = match.groups()
        try:
            moment = datetime.fromisoformat(whole + ("" if zone in (None, "Z") else zone))
        except ValueError as error:
            raise InputFault(
                where, f"{quoted(cell)} is no date of the calendar", "Correct the timestamp."
            ) from error
        since = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
        return Fraction(since) + Fraction(f"0{part}" if part else "0")
    try:
        number = parse_number(cell, decimal_comma=False)
    except CellFault as fault:
        raise InputFault(
            where, f"{quoted(cell)} is neither seconds nor a timestamp", "Correct the cell."
        ) from fault
    # Of an exponent such as 1e-999999999 Fraction would write out every digit.
    return Fraction(cell) if number else Fraction(0)

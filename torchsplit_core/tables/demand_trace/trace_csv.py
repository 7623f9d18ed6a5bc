"""Reads a trace of demand: a column time_s, and one of requests/s for each service; every so many seconds a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torchsplit_core.tables.cell_parsing import CellFault, is_missing, parse_number
from torchsplit_core.tables.sheet import Record, Sheet, read_sheet
from torchsplit_core.values import InputFault, quoted

TIME = "time_s"
DAY_S = 86_400
LEAST_STEP_S = 60
MOST_DAYS = 62
"""Days of a trace: over more of them one day no longer stands for all."""

Rate = float | None
"""Requests/s; None: a hole."""


@dataclass(frozen=True, slots=True)
class DemandTrace:
    """Requests/s of services by name, one for each moment: `first_s` + k · `step_s` seconds since a midnight (UTC)."""

    first_s: int
    step_s: int
    rates: dict[str, tuple[Rate, ...]]

    @property
    def moments(self) -> int:
        """How many, holes included."""
        return len(next(iter(self.rates.values())))

    @property
    def days(self) -> float:
        """How long it is."""
        return self.moments * self.step_s / DAY_S


def read_demand_trace(text: str, origin: str = "the trace") -> DemandTrace:
    """The trace of a table. Moments without a row and empty cells are holes.

    The step is the least difference of two times: whole minutes, of which a day has a whole number. Raises InputFault
    for a table that is none, a cell that is no rate, times that fall or stand twice, and a trace of more than 62 days.
    """
    sheet = read_sheet(text, origin)
    columns = _columns(sheet, origin)
    at = sheet.header.index(TIME)
    times = [_time(record, at, sheet, origin) for record in sheet.records]
    if len(times) < 2:
        raise InputFault(origin, f"has {len(times)} rows of demand", "Give a row for each moment of a day.")
    _check_times(times, sheet.records, origin)
    step = min(late - early for early, late in pairwise(times))
    _check_step(times, step, sheet.records, origin)
    moments = (times[-1] - times[0]) // step + 1
    if moments * step > MOST_DAYS * DAY_S:
        raise InputFault(
            origin,
            f"covers {moments * step / DAY_S:.4g} days, and a day of demand is made of at most {MOST_DAYS}",
            "Give the days that are like those to plan for.",
        )
    rates: dict[str, list[Rate]] = {name: [None] * moments for name in columns}
    for time, record in zip(times, sheet.records, strict=True):
        for name, number in columns.items():
            rates[name][(time - times[0]) // step] = _rate(record, number, name, sheet, origin)
    return DemandTrace(times[0], step, {name: tuple(values) for name, values in rates.items()})


def _columns(sheet: Sheet, origin: str) -> dict[str, int]:
    """The services' columns by name."""
    where = f"{origin}: header"
    if TIME not in sheet.header:
        raise InputFault(
            where,
            f"has no column {TIME}: it names {', '.join(map(quoted, sheet.header[:12]))}",
            "Name the column of seconds since a midnight time_s, and each other one after its model.",
        )
    names = [name for name in sheet.header if name != TIME]
    for name in sheet.header:
        if not name:
            raise InputFault(where, "has a column without a name", "Name each column after its model.")
        if sheet.header.count(name) > 1:
            raise InputFault(where, f"names {quoted(name)} twice", "Rename or remove one.")
    return {name: sheet.header.index(name) for name in names}


def _time(record: Record, column: int, sheet: Sheet, origin: str) -> int:
    text = record.cells[column] if column < len(record.cells) else ""
    where = f"{origin}: line {record.line}, {TIME}"
    try:
        seconds = parse_number(text, decimal_comma=sheet.decimal_comma)
    except CellFault as fault:
        raise InputFault(where, fault.problem, fault.remedy) from fault
    if seconds < 0 or seconds != int(seconds):
        raise InputFault(where, f"is {text}, not a whole number of seconds", "Count from a midnight, UTC.")
    return int(seconds)


def _check_times(times: Sequence[int], records: Sequence[Record], origin: str) -> None:
    for (early, late), record in zip(pairwise(times), records[1:], strict=True):
        if late <= early:
            what = f"{late} stands twice" if late == early else f"falls from {early} to {late}"
            raise InputFault(
                f"{origin}: line {record.line}, {TIME}", what, "Sort the rows by time, each once."
            )


def _check_step(times: Sequence[int], step: int, records: Sequence[Record], origin: str) -> None:
    if step < LEAST_STEP_S or step % 60 or DAY_S % step or times[0] % 60:
        raise InputFault(
            f"{origin}: {TIME}",
            f"goes from {times[0]} in steps of {step} s, which are no whole minutes of a day",
            "Give a row a minute, or every 10 minutes, beginning at a full minute.",
        )
    for time, record in zip(times, records, strict=True):
        if (time - times[0]) % step:
            raise InputFault(
                f"{origin}: line {record.line}, {TIME}",
                f"is {time}, between two steps of {step} s from {times[0]} on",
                "Give the rows at equal steps; some may be missing.",
            )


def _rate(record: Record, column: int, name: str, sheet: Sheet, origin: str) -> Rate:
    text = record.cells[column] if column < len(record.cells) else ""
    if is_missing(text):
        return None
    where = f"{origin}: line {record.line}, {name}"
    try:
        rate = parse_number(text, decimal_comma=sheet.decimal_comma)
    except CellFault as fault:
        raise InputFault(where, fault.problem, fault.remedy) from fault
    if rate < 0:
        raise InputFault(where, f"is {text}, below 0", "Give requests/s, or leave the cell empty.")
    return rate

"""Reads the demand of several models at the same moments from a table: time_s, and a column of requests/s a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchsplit_core.tables.cell_parsing import CellFault, parse_number
from torchsplit_core.tables.sheet import Record, Sheet, decode, read_sheet
from torchsplit_core.values import InputFault, quoted, suggestion, system_reason

TIME = "time_s"


@dataclass(frozen=True, slots=True)
class JointDemand:
    """Requests/s by model at the same moments, `times_s` of them ascending."""

    times_s: tuple[float, ...]
    rates: dict[str, tuple[float, ...]]

    @property
    def gaps(self) -> int:
        """How many steps between moments are longer than the usual one by half or more."""
        steps = [later - before for before, later in zip(self.times_s, self.times_s[1:], strict=False)]
        usual = sorted(steps)[len(steps) // 2] if steps else 0.0
        return sum(step >= 1.5 * usual for step in steps)


def read_joint_demand(path: str | Path, models: Sequence[str]) -> JointDemand:
    """`joint_demand` of a file. Raises InputFault also if the file cannot be read."""
    origin = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputFault(origin, f"cannot be read: {system_reason(error)}", "Check the path.") from error
    return joint_demand(data, origin, models)


def joint_demand(data: bytes, origin: str, models: Sequence[str]) -> JointDemand:
    """The columns of these models in a table. Raises InputFault for a column that is missing or stands twice, a cell
    that is no rate, and times that do not rise.
    """
    sheet = read_sheet(decode(data, origin), origin)
    columns = {name: _column(sheet, name, origin) for name in (TIME, *models)}
    if not sheet.records:
        raise InputFault(origin, "has a header and no rows", "Add a row for each moment.")
    times: list[float] = []
    rates: dict[str, list[float]] = {name: [] for name in models}
    for record in sheet.records:
        times.append(_number(sheet, record, columns[TIME], TIME, origin))
        if times[1:] and times[-1] <= times[-2]:
            raise InputFault(
                f"{origin}: line {record.line}, {TIME}",
                f"is {times[-1]:g}, and the row above has {times[-2]:g}",
                "Sort the table by time, one row a moment.",
            )
        for name in models:
            rates[name].append(_number(sheet, record, columns[name], name, origin))
    return JointDemand(tuple(times), {name: tuple(column) for name, column in rates.items()})


def _column(sheet: Sheet, name: str, origin: str) -> int:
    places = [number for number, title in enumerate(sheet.header) if title == name]
    if len(places) > 1:
        raise InputFault(f"{origin}: header", f"names {quoted(name)} twice", "Rename or remove one.")
    if not places:
        remedy = "Give the seconds of each row in a column time_s."
        if name != TIME:
            known = [title for title in sheet.header if title != TIME]
            remedy = f"{suggestion(name, known, 'columns')} A column of every model holds its requests/s."
        raise InputFault(f"{origin}: header", f"has no column {quoted(name)}", remedy)
    return places[0]


def _number(sheet: Sheet, record: Record, column: int, name: str, origin: str) -> float:
    where = f"{origin}: line {record.line}, {name}"
    try:
        number = parse_number(
            record.cells[column] if column < len(record.cells) else "", decimal_comma=sheet.decimal_comma
        )
    except CellFault as fault:
        raise InputFault(where, fault.problem, fault.remedy) from fault
    if number < 0:
        raise InputFault(where, f"is {number:g}, below the least value 0", "Give a number of 0 or more.")
    return number

"""The windows of a request as rows of a table, and back. No streamlit in here."""

from __future__ import annotations

import datetime
import math
import zoneinfo
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchsplit_core.values import DemandWindow, InputFault, PlanRequest

NAME, START, END = "window", "from (UTC)", "to (UTC)"
NIGHT_SHARE = 0.4
"""Of the demand, at night, in the first table: to be changed."""

Row = dict[str, Any]


def rows_of(request: PlanRequest) -> list[Row]:
    """A row for each window with the rate of every model, requests/s; without windows a day and a night to begin
    with."""
    first = request.models[0].demand_windows
    if not first:
        return [
            {NAME: "day", START: "07:00", END: "22:00"}
            | {model.name: model.demand_rps for model in request.models},
            {NAME: "night", START: "22:00", END: "07:00"}
            | {model.name: NIGHT_SHARE * model.demand_rps for model in request.models},
        ]
    rates = {
        (model.name, window.name): window.rate_rps(request.plan_demand_at)
        for model in request.models
        for window in model.demand_windows
    }
    return [
        {NAME: window.name, START: window.start, END: window.end}
        | {model.name: rates[model.name, window.name] for model in request.models}
        for window in first
    ]


def with_windows(request: PlanRequest, rows: Sequence[Mapping[str, Any]]) -> PlanRequest:
    """The request with the windows of these rows. Minima of windows of the same name stay, and so do means beside 95th
    percentiles whose planned rate is unchanged.

    Raises InputFault for a cell that is empty or no number; what the windows are together is checked where they are
    planned.
    """
    models = []
    for model in request.models:
        before = {window.name: window for window in model.demand_windows}
        windows = []
        for number, row in enumerate(rows, 1):
            where = f"row {number}"
            name = _text(row.get(NAME), f"{where}: {NAME}")
            start, end = _text(row.get(START), f"{where}: {START}"), _text(row.get(END), f"{where}: {END}")
            rate = _rate(row.get(model.name), f"{where}: {model.name}")
            known = before.get(name)
            if known is not None and known.rate_rps(request.plan_demand_at) == rate:
                windows.append(replace(known, start=start, end=end))
            else:
                minimum = None if known is None else known.min_throughput_rps
                windows.append(DemandWindow(name, start, end, rate, minimum))
        models.append(replace(model, demand_windows=tuple(windows)))
    return replace(request, models=tuple(models))


def _text(value: object, where: str) -> str:
    if isinstance(value, datetime.time):
        return value.strftime("%H:%M")
    text = "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value).strip()
    if not text:
        raise InputFault(where, "is empty", "Fill it, or delete the row.")
    return text


def _rate(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        shown = (
            "is empty" if value is None or (isinstance(value, float) and math.isnan(value)) else "is no rate"
        )
        raise InputFault(where, shown, "Write requests/s: 0 or more.")
    return float(value)


def local_span(window: DemandWindow, zone: str | None, on: datetime.date) -> str | None:
    """The window in another time zone on a date, as 08:00–23:00; None where the zone is not known or is UTC.

    A day of 23 or 25 hours moves its windows by an hour: they are UTC.
    """
    if not zone:
        return None
    try:
        place = zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        return None
    first, length = window.minutes
    start = datetime.datetime.combine(on, datetime.time(first // 60, first % 60), datetime.UTC)
    ends = [moment.astimezone(place) for moment in (start, start + datetime.timedelta(minutes=length))]
    if ends[0].utcoffset() == datetime.timedelta(0) == ends[1].utcoffset():
        return None
    return "–".join(f"{moment:%H:%M}" for moment in ends)


def zone_note(zone: str | None, on: datetime.date) -> str:
    """What the times of the windows are in the user's zone; "" where they are the same."""
    if not zone:
        return ""
    try:
        place = zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        return ""
    midnight = datetime.datetime.combine(on, datetime.time(), place)
    following = datetime.datetime.combine(on + datetime.timedelta(days=1), datetime.time(), place)
    hours = (following.astimezone(datetime.UTC) - midnight.astimezone(datetime.UTC)).total_seconds() / 3600
    if not midnight.utcoffset() and not following.utcoffset():
        return ""
    text = f"Local times are of {zone} today."
    if hours != 24:
        text += f" Today has {hours:g} hours there: windows are UTC, so by local clocks they move."
    return text


def minutes_of_day(window: DemandWindow) -> list[tuple[float, float]]:
    """The hours from midnight UTC that a window covers: two stretches where it passes midnight."""
    first, length = window.minutes
    start, end = first / 60, (first + length) / 60
    return [(start, end)] if end <= 24 else [(start, 24.0), (0.0, end - 24)]

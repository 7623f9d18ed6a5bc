"""Parses the times and durations of accounting tables."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from torchsplit_core.tables.cell_parsing import CellFault
from torchsplit_core.values import quoted

UNKNOWN = frozenset({"", "unknown", "none", "n/a", "invalid", "null"})
"""What stands for a time that has not come (compared in lower case)."""
_STAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(\.[0-9]{1,9})?)? ?"
    r"(Z|UTC|[+-][0-9]{2}:?[0-9]{2})?"
)
_EPOCH = re.compile(r"([0-9]{9,10})(\.[0-9]{1,9})?")
_EPOCH_MS = re.compile(r"[0-9]{12,13}")
_DURATION = re.compile(r"(?:([0-9]{1,5})-)?(?:([0-9]{1,4}):)?([0-9]{1,2}):([0-9]{1,2})(\.[0-9]{1,6})?")
_LATEST_S = 4_102_444_800
"""The year 2100: later times, and those before 1970, are mistakes."""


def is_unknown(text: str) -> bool:
    return text.lower() in UNKNOWN


def has_no_zone(text: str) -> bool:
    """Whether the time is a date without a zone; seconds since 1970 have none to lack."""
    match = _STAMP.fullmatch(text)
    return match is not None and match[4] is None


def parse_moment(text: str, zone: tzinfo, not_before: float | None = None) -> float:
    """Seconds since 1970 of a date and time (in `zone` if it names none), or of such seconds or milliseconds.

    Of an hour that the end of summer time repeats, the second one is taken if the first would lie before `not_before`.
    Raises CellFault.
    """
    if match := _EPOCH.fullmatch(text):
        return _checked(float(match[0]), text)
    if _EPOCH_MS.fullmatch(text):
        return _checked(int(text) / 1000, text)
    match = _STAMP.fullmatch(text)
    if match is None:
        raise CellFault(f"is {quoted(text)}, not a time", "Write it like 2026-03-02T08:15:00.")
    day, clock, part, offset = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock or '00:00'}")
        if offset in ("Z", "UTC"):
            moment = moment.replace(tzinfo=UTC)
        elif offset:
            hours, minutes = int(offset[1:3]), int(offset[-2:])
            behind = timedelta(hours=hours, minutes=minutes) * (-1 if offset[0] == "-" else 1)
            moment = moment.replace(tzinfo=UTC) - behind
        else:
            moment = moment.replace(tzinfo=zone)
        seconds = moment.timestamp() + float(part or 0)
        if not_before is not None and seconds < not_before:
            seconds = max(seconds, moment.replace(fold=1).timestamp() + float(part or 0))
    except (ValueError, OverflowError) as error:
        raise CellFault(f"is {quoted(text)}, no date of the calendar", "Correct the time.") from error
    return _checked(seconds, text)


def _checked(seconds: float, text: str) -> float:
    if not 0 <= seconds < _LATEST_S:
        raise CellFault(f"is {quoted(text)}, not between 1970 and 2100", "Correct the time.")
    return seconds


def parse_duration(text: str) -> float:
    """Seconds of Slurm's [DAYS-][HOURS:]MINUTES:SECONDS. Raises CellFault."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise CellFault(f"is {quoted(text)}, not a duration", "Write it like 1-02:30:00.")
    days, hours, minutes, seconds, part = match.groups()
    whole = int(days or 0) * 86400 + int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds)
    return whole + float(part or 0)

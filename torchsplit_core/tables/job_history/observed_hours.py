"""Which hours a history observed: holes are named, and never count as hours without jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from torchsplit_core.tables.job_history.records import DAY_S, HOUR_S, JobHistory
from torchsplit_core.values import InputFault

HOURS = 24
MOST_DAYS = 1100
"""Three years; a longer history is a mistaken date, or describes other demands than today's."""


@dataclass(frozen=True, slots=True)
class ObservedHours:
    """From the hour `first` up to the hour `beyond`, both since 1970 (UTC); `missing` days within have no row."""

    first: int
    beyond: int
    missing: tuple[int, ...]

    @property
    def hours(self) -> tuple[int, ...]:
        """The observed ones, ascending."""
        missing = set(self.missing)
        return tuple(hour for hour in range(self.first, self.beyond) if hour // HOURS not in missing)

    @property
    def description(self) -> str:
        """For example "from 2026-03-02 08:00 to 2026-03-16 00:00 UTC, 328 hours"."""
        first, beyond = (_utc(hour * HOUR_S).strftime("%Y-%m-%d %H:%M") for hour in (self.first, self.beyond))
        return f"from {first} to {beyond} UTC, {len(self.hours)} hours"

    @property
    def holes(self) -> tuple[str, ...]:
        """The missing days, neighbours joined: "2026-03-05", "2026-03-08 to 2026-03-10"."""
        runs: list[list[int]] = []
        for day in self.missing:
            if runs and runs[-1][-1] == day - 1:
                runs[-1].append(day)
            else:
                runs.append([day])
        names = ([_utc(day * DAY_S).strftime("%Y-%m-%d") for day in (run[0], run[-1])] for run in runs)
        return tuple(first if first == last else f"{first} to {last}" for first, last in names)


def observed_hours(
    history: JobHistory, begin: float | None = None, end: float | None = None
) -> ObservedHours:
    """The hours that lie whole between `begin` and `end` (seconds since 1970); without them from the hour of the first
    submission through that of the last one.

    A day (UTC) on which no job was submitted, started or ended is not observed. Raises InputFault if no hour is, or the
    history is longer than MOST_DAYS.
    """
    submitted = [job.submit for job in history.jobs]
    first = int(min(submitted) // HOUR_S) if begin is None else -int(-begin // HOUR_S)
    beyond = int(max(submitted) // HOUR_S) + 1 if end is None else int(end // HOUR_S)
    if beyond - first > MOST_DAYS * HOURS:
        raise InputFault(
            "history",
            f"goes from {_utc(first * HOUR_S):%Y-%m-%d} to {_utc(beyond * HOUR_S):%Y-%m-%d}, more than "
            f"{MOST_DAYS} days",
            "Correct the dates, or choose a part with --from and --to.",
        )
    days = {hour // HOURS for hour in history.events}
    missing = tuple(day for day in range(first // HOURS, -(-beyond // HOURS)) if day not in days)
    observed = ObservedHours(first, beyond, missing)
    if not observed.hours:
        raise InputFault("history", "has no whole observed hour", "Choose another --from or --to.")
    return observed


def _utc(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)

"""Reckons with jobs by the hour: arrivals, jobs in progress, GPUs held, durations; and what the GPUs did meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import fsum
from statistics import quantiles

from torchsplit_core.tables.job_history.job_classes import ClassKey, class_name
from torchsplit_core.tables.job_history.observed_hours import HOURS, ObservedHours
from torchsplit_core.tables.job_history.records import HOUR_S, GpuJob, GpuSample
from torchsplit_core.tables.write_csv import rows_csv

ALL = "(all)"
"""Stands for all classes together."""


@dataclass(frozen=True, slots=True)
class HourSeries:
    """Jobs of a class in each observed hour: submissions, and job-seconds and device-seconds from starts to ends.

    `device_s` None: the history does not say how many devices jobs hold.
    """

    arrivals: tuple[int, ...]
    job_s: tuple[float, ...]
    device_s: tuple[float, ...] | None

    @property
    def rates(self) -> tuple[float, ...]:
        """Submissions per second, of each hour."""
        return tuple(count / HOUR_S for count in self.arrivals)


def hour_series(jobs: Sequence[GpuJob], observed: ObservedHours) -> HourSeries:
    """The hours of a class. A job that has not ended is in progress up to the end of the observed time."""
    first, count = observed.first, observed.beyond - observed.first
    arrivals = [0] * count
    known = all(job.devices is not None for job in jobs)
    seconds = _Seconds(first, count), _Seconds(first, count)
    for job in jobs:
        hour = int(job.submit // HOUR_S) - first
        if 0 <= hour < count:
            arrivals[hour] += job.tasks
        if job.start is not None:
            end = observed.beyond * HOUR_S if job.end is None else job.end
            seconds[0].add(job.start, end, job.tasks)
            seconds[1].add(job.start, end, job.tasks * (job.device_count or 0))
    positions = [hour - first for hour in observed.hours]
    job_s, device_s = (
        tuple(totals[at] for at in positions) for totals in (part.totals() for part in seconds)
    )
    return HourSeries(tuple(arrivals[at] for at in positions), job_s, device_s if known else None)


class _Seconds:
    """Seconds of intervals by hour: the ends of each at once, the hours between them summed up at the end."""

    def __init__(self, first: int, count: int) -> None:
        self.begin, self.end = first * HOUR_S, (first + count) * HOUR_S
        self.partial = [0.0] * count
        self.changes = [0] * (count + 1)

    def add(self, start: float, end: float, weight: int) -> None:
        start, end = max(start, self.begin) - self.begin, min(end, self.end) - self.begin
        if end <= start:
            return
        first, last = int(start // HOUR_S), int(end // HOUR_S)
        if first == last:
            self.partial[first] += weight * (end - start)
            return
        self.partial[first] += weight * ((first + 1) * HOUR_S - start)
        self.changes[first + 1] += weight
        self.changes[last] -= weight
        if last < len(self.partial):
            self.partial[last] += weight * (end - last * HOUR_S)

    def totals(self) -> list[float]:
        whole, result = 0, []
        for partial, change in zip(self.partial, self.changes, strict=False):
            whole += change
            result.append(partial + whole * HOUR_S)
        return result


@dataclass(frozen=True, slots=True)
class HourRow:
    """A class at an hour of the day (UTC), over all days on which that hour was observed; None: not known.

    Means and p95 are over those days. `duration_s_mean`: from start to end, of the jobs submitted in that hour that
    have ended. `devices_held_mean`: GPUs, or slices where Slurm's GRES are slices. The last three are of DCGM's
    samples in those hours: shares of 1, and GiB of a GPU.
    """

    job_class: str
    hour: int
    observed_days: int
    jobs: int
    arrivals_per_s_mean: float | None
    arrivals_per_s_p95: float | None
    jobs_in_progress_mean: float | None
    jobs_in_progress_p95: float | None
    devices_held_mean: float | None
    duration_s_mean: float | None
    gpu_utilisation_mean: float | None
    sm_active_mean: float | None
    memory_gib_mean: float | None


COLUMNS = tuple(field.name for field in fields(HourRow))


def hour_rows(
    classes: Mapping[str, Sequence[GpuJob]],
    samples: Iterable[GpuSample],
    observed: ObservedHours,
    key: ClassKey,
) -> tuple[HourRow, ...]:
    """Rows of every class and of ALL, by hour of the day. Samples that name a job count for its class; all count for
    ALL, since which jobs shared a GPU is not known otherwise."""
    sampled = _samples_by_class(classes, samples, observed, key)
    everything = [job for jobs in classes.values() for job in jobs]
    return tuple(
        row
        for name, jobs in (*classes.items(), (ALL, everything))
        for row in _class_rows(name, jobs, observed, sampled)
    )


def _class_rows(
    name: str,
    jobs: Sequence[GpuJob],
    observed: ObservedHours,
    sampled: Mapping[tuple[str, int], Sequence[GpuSample]],
) -> Iterable[HourRow]:
    series, hours = hour_series(jobs, observed), observed.hours
    positions: dict[int, list[int]] = {hour: [] for hour in range(HOURS)}
    for at, hour in enumerate(hours):
        positions[hour % HOURS].append(at)
    seen = set(hours)
    submitted: dict[int, list[GpuJob]] = {hour: [] for hour in range(HOURS)}
    for job in jobs:
        if (hour := int(job.submit // HOUR_S)) in seen:
            submitted[hour % HOURS].append(job)
    for hour, days in positions.items():
        rates = [series.arrivals[at] / HOUR_S for at in days]
        in_progress = [series.job_s[at] / HOUR_S for at in days]
        held = None if series.device_s is None else [series.device_s[at] / HOUR_S for at in days]
        of_hour = sampled.get((name, hour), ())
        yield HourRow(
            name,
            hour,
            len(days),
            sum(series.arrivals[at] for at in days),
            mean(rates),
            p95(rates),
            mean(in_progress),
            p95(in_progress),
            mean(held or ()),
            mean_duration_s(submitted[hour]),
            mean([sample.utilisation for sample in of_hour if sample.utilisation is not None]),
            mean([sample.sm_active for sample in of_hour if sample.sm_active is not None]),
            mean([sample.memory_gib for sample in of_hour if sample.memory_gib is not None]),
        )


def _samples_by_class(
    classes: Mapping[str, Sequence[GpuJob]],
    samples: Iterable[GpuSample],
    observed: ObservedHours,
    key: ClassKey,
) -> dict[tuple[str, int], list[GpuSample]]:
    """Samples in observed hours by (class, hour of the day)."""
    classes_by_id = {
        job_id: class_name(job, key)
        for jobs in classes.values()
        for job in jobs
        for job_id in (job.job_id, job.raw_id)
        if job_id
    }
    seen = set(observed.hours)
    sampled: dict[tuple[str, int], list[GpuSample]] = {}
    for sample in samples:
        hour = int(sample.moment // HOUR_S)
        if hour in seen:
            sampled.setdefault((ALL, hour % HOURS), []).append(sample)
            if sample.job_id in classes_by_id:
                sampled.setdefault((classes_by_id[sample.job_id], hour % HOURS), []).append(sample)
    return sampled


def mean(values: Sequence[float]) -> float | None:
    """None of no values."""
    return fsum(values) / len(values) if values else None


def mean_duration_s(jobs: Iterable[GpuJob]) -> float | None:
    """Mean seconds from start to end of the jobs that have ended; None if none has."""
    return mean([job.end - job.start for job in jobs if job.start is not None and job.end is not None])


def p95(values: Sequence[float]) -> float | None:
    """The 95th percentile, linear between neighbours; None of no values."""
    if len(values) < 2:
        return values[0] if values else None
    return quantiles(values, n=20, method="inclusive")[-1]


def hours_csv(rows: Iterable[HourRow]) -> str:
    """The rows as CSV with a header; what is not known is an empty cell."""
    records = ({name: getattr(row, name) for name in COLUMNS} for row in rows)
    return rows_csv(COLUMNS, records)

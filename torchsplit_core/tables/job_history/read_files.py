"""Reads the files of a history: which table each is, every row, and each job and sample once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import TypeVar

from torchsplit_core.tables.columns import normalize_header
from torchsplit_core.tables.import_result import report_bad_rows
from torchsplit_core.tables.job_history import dcgm_samples, slurm_jobs
from torchsplit_core.tables.job_history.dcgm_samples import parse_sample
from torchsplit_core.tables.job_history.moments import has_no_zone
from torchsplit_core.tables.job_history.records import HOUR_S, GpuJob, GpuSample, JobHistory
from torchsplit_core.tables.job_history.slurm_jobs import parse_job
from torchsplit_core.tables.record_fields import ColumnLayout, RecordFields, column_layout, read_records
from torchsplit_core.tables.sheet import Sheet, read_sheet
from torchsplit_core.values import InputFault, quoted

Row = TypeVar("Row")
_REMEDY = (
    "Write it with sacct --parsable2 --format=JobID,JobName,User,Account,Partition,Submit,Start,End,Elapsed,State,"
    "AllocTRES, or give DCGM's samples with timestamp, gpu and a metric."
)


class _Collector:
    """Rows of all files so far."""

    def __init__(self, zone: tzinfo | None, skip_bad: bool) -> None:
        self.zone, self.skip_bad = zone or UTC, skip_bad
        self.jobs: dict[tuple[str, float], GpuJob] = {}
        self.samples: dict[tuple[float, tuple[str, str]], GpuSample] = {}
        self.events: set[int] = set()
        self.left_out: Counter[str] = Counter()
        self.repeated = 0
        self.zoneless = False
        self.notes: list[str] = []

    def read(self, text: str, origin: str) -> None:
        """Add the rows of a file. Raises InputFault."""
        sheet = read_sheet(text, origin)
        samples = _mapping(sheet.header, dcgm_samples.COLUMNS)
        jobs = _mapping(sheet.header, slurm_jobs.COLUMNS)
        if any(name in samples for name in dcgm_samples.METRICS):
            self._samples(sheet, _layout(sheet, samples, dcgm_samples.NEEDED, origin), origin)
        elif "id" in jobs:
            self._jobs(sheet, _layout(sheet, jobs, slurm_jobs.NEEDED, origin), origin)
        else:
            raise InputFault(
                origin,
                f"is neither a table of jobs nor of samples: its header is {quoted(', '.join(sheet.header))}",
                _REMEDY,
            )

    def _rows(
        self, sheet: Sheet, layout: ColumnLayout, origin: str, parse: Callable[[RecordFields], Row]
    ) -> list[Row]:
        if not sheet.records:
            raise InputFault(origin, "has a header but no rows", "Add its rows, or leave the file out.")
        rows, bad = read_records(sheet.records, layout, parse)
        notes = report_bad_rows(bad, len(rows), origin, skip_bad=self.skip_bad)
        self.notes += (f"{origin}: {note}" for note in notes)
        return rows

    def _jobs(self, sheet: Sheet, layout: ColumnLayout, origin: str) -> None:
        for row in self._rows(sheet, layout, origin, lambda fields: parse_job(fields, self.zone)):
            self.events.update(int(moment // HOUR_S) for moment in row.moments)
            self.zoneless |= row.zoneless
            job = row.job
            if job is None:
                self.left_out[row.why] += 1
                continue
            key = job.job_id, job.submit
            self.repeated += key in self.jobs
            self.jobs[key] = _latest(self.jobs.get(key), job)

    def _samples(self, sheet: Sheet, layout: ColumnLayout, origin: str) -> None:
        moment = layout.index_of["moment"]
        for sample in self._rows(sheet, layout, origin, lambda fields: parse_sample(fields, self.zone)):
            if sample is not None:
                self.samples[sample.moment, sample.device] = sample
        self.zoneless |= any(
            has_no_zone(record.cells[moment]) for record in sheet.records if record.cells[moment:]
        )


def read_history(
    texts: Sequence[tuple[str, str]], *, zone: tzinfo | None = None, skip_bad: bool = False
) -> JobHistory:
    """The history in files, each its origin and text. `zone` of times that name none; None: UTC, with a note.

    Of a job or sample that several files have, the latest state counts. Raises InputFault if a file is neither table,
    lacks a column or has bad rows (`skip_bad`: if it has no others), or no job asked for a GPU.
    """
    collector = _Collector(zone, skip_bad)
    for origin, text in texts:
        collector.read(text, origin)
    notes = collector.notes
    if not collector.jobs:
        raise InputFault(
            ", ".join(origin for origin, _ in texts),
            "has no job that asked for a GPU" + _reasons(collector.left_out),
            "Give a table of sacct with such jobs, with ReqTRES or AllocTRES.",
        )
    if collector.zoneless and zone is None:
        notes.append("times without a zone are taken as UTC; --time-zone says otherwise")
    for why, text in (
        ("no GPU", "asked for no GPU"),
        ("never started", "were cancelled before they started"),
    ):
        if collector.left_out[why]:
            notes.append(f"{collector.left_out[why]} jobs {text} and are left out")
    if collector.repeated:
        notes.append(f"{collector.repeated} rows repeat a job of another row; each job counts once")
    return JobHistory(
        tuple(sorted(collector.jobs.values(), key=lambda job: job.submit)),
        tuple(collector.samples.values()),
        frozenset(collector.events),
        tuple(notes),
    )


def _reasons(left_out: Mapping[str, int]) -> str:
    parts = [f"{why}: {count}" for why, count in left_out.items()]
    return f" (rows left out: {', '.join(parts)})" if parts else ""


def _latest(before: GpuJob | None, after: GpuJob) -> GpuJob:
    """Of two states of a job, the one that is further on: ended, else started."""
    if before is None:
        return after
    return max(before, after, key=lambda job: (job.end or 0.0, job.start or 0.0))


def _mapping(header: Sequence[str], columns: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Our columns → the header's; the first name of a column that the header has."""
    by_plain: dict[str, str] = {}
    for item in header:
        by_plain.setdefault(normalize_header(item), item)
    return {
        ours: by_plain[name]
        for ours, names in columns.items()
        for name in [next((name for name in names if name in by_plain), "")]
        if name
    }


def _layout(sheet: Sheet, mapping: Mapping[str, str], needed: Sequence[str], origin: str) -> ColumnLayout:
    known = {**slurm_jobs.COLUMNS, **dcgm_samples.COLUMNS}
    for name in needed:
        if name not in mapping:
            raise InputFault(f"{origin}: header", f"has no column {known[name][0]}", _REMEDY)
    return column_layout(sheet, mapping)

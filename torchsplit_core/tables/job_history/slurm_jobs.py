"""Reads jobs from what Slurm's `sacct` prints with `--parsable2` or as CSV; columns are known by the header."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import tzinfo

from torchsplit_core.tables.cell_parsing import CellFault, parse_name
from torchsplit_core.tables.job_history.moments import has_no_zone, is_unknown, parse_duration, parse_moment
from torchsplit_core.tables.job_history.records import GpuJob
from torchsplit_core.tables.record_fields import RecordFields
from torchsplit_core.values import quoted

COLUMNS = {
    "id": ("jobid",),
    "raw_id": ("jobidraw",),
    "job-name": ("jobname",),
    "user": ("user",),
    "account": ("account",),
    "partition": ("partition",),
    "submit": ("submit",),
    "start": ("start",),
    "end": ("end",),
    "elapsed": ("elapsed",),
    "state": ("state",),
    "allocated": ("alloctres", "allocgres"),
    "requested": ("reqtres", "reqgres"),
}
"""Ours → sacct's names, in lower case."""
LABELS = ("job-name", "user", "account", "partition")
NEEDED = ("id", "submit", "start", "end")

_STEP = re.compile(r"[^.]+\.[^.]+")
_ID = re.compile(r"([0-9]+)(?:_(?:[0-9]+|\[([^\]]*)\]))?(?:\+[0-9]+)?")
_TASKS = re.compile(r"([0-9]{1,8})(?:-([0-9]{1,8})(?::([0-9]{1,8}))?)?")
_DEVICE = re.compile(r"(?:gres[/:])?gpu(?:[:/]([^,:=()]+))?[=:]([0-9]{1,6})(?:\([^)]*\))?")
_GOING = ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "CONFIGURING", "COMPLETING", "RESIZING")
"""States of jobs that have not ended."""
MOST_TASKS = 4_000_001
"""Slurm's largest array (MaxArraySize)."""


@dataclass(frozen=True, slots=True)
class ReadJob:
    """A row: the job, or None for a step or a job that has nothing to count (`why`), and when something happened."""

    job: GpuJob | None
    why: str
    moments: tuple[float, ...]
    zoneless: bool


def parse_job(fields: RecordFields, zone: tzinfo) -> ReadJob:
    """The job of a row. Raises CellFault at the first bad cell."""
    text = fields.text("id")
    if _STEP.fullmatch(text):
        return ReadJob(None, "step", (), False)
    tasks = fields.read("id", _task_count)
    cells = [fields.text(name) for name in ("submit", "start", "end")]
    submit = fields.read("submit", lambda cell: parse_moment(cell, zone))
    start = _optional_moment(fields, "start", zone, submit)
    elapsed = None if is_unknown(fields.text("elapsed")) else fields.read("elapsed", parse_duration)
    state = fields.text("state").partition(" ")[0].upper()
    end = _optional_moment(fields, "end", zone, start)
    if state in _GOING:
        end = None
    elif end is None and start is not None and state:
        if elapsed is None:
            raise CellFault(
                f"is {quoted(fields.text('end'))}, and the job is {state}", "Give End or Elapsed.", "end"
            )
        end = start + elapsed
    if start is not None and end is not None and end < start:
        raise CellFault(
            f"is {fields.text('end')}, before the start at {fields.text('start')}", "Correct one.", "end"
        )
    moments = tuple(moment for moment in (submit, start, end) if moment is not None)
    zoneless = any(map(has_no_zone, cells))
    if state.startswith("CANCELLED") and elapsed == 0:
        start = None
    if start is None and (end is not None or state not in ("", *_GOING)):
        return ReadJob(None, "never started", moments, zoneless)
    devices = _devices(fields)
    if devices == ():
        return ReadJob(None, "no GPU", moments, zoneless)
    labels = {name: _label(fields, name) for name in LABELS if name in fields.layout.index_of}
    job = GpuJob(text, fields.text("raw_id"), submit, start, end, tasks, labels, devices)
    return ReadJob(job, "", moments, zoneless)


def _optional_moment(
    fields: RecordFields, column: str, zone: tzinfo, not_before: float | None
) -> float | None:
    if is_unknown(fields.text(column)):
        return None
    return fields.read(column, lambda cell: parse_moment(cell, zone, not_before))


def _label(fields: RecordFields, column: str) -> str:
    return fields.name(column) if fields.text(column) else ""


def _task_count(text: str) -> int:
    """How many jobs a row's id stands for: pending tasks of an array are one row, 7_[3-9,12%2]."""
    match = _ID.fullmatch(text)
    if match is None:
        raise CellFault(f"is {quoted(text)}, not a job's id", "Write it like 4711 or 4711_3.")
    if match[2] is None:
        return 1
    count = 0
    for part in match[2].partition("%")[0].split(","):
        tasks = _TASKS.fullmatch(part)
        if tasks is None:
            raise CellFault(
                f"is {quoted(text)}, whose tasks cannot be counted", "Set SLURM_BITSTR_LEN=0 for sacct."
            )
        first, last, step = int(tasks[1]), int(tasks[2] or tasks[1]), int(tasks[3] or 1)
        count += len(range(first, last + 1, max(step, 1)))
    if not 1 <= count <= MOST_TASKS:
        raise CellFault(f"stands for {count:,} tasks", f"Give 1 to {MOST_TASKS:,}.")
    return count


def _devices(fields: RecordFields) -> tuple[tuple[str, int], ...] | None:
    """GPUs or slices by type, as allocated, else as requested; None if the table has neither column.

    Slurm names the sum beside the types, gres/gpu:a100=2,gres/gpu=2: the sum counts only where no type is named.
    """
    known = [name for name in ("allocated", "requested") if name in fields.layout.index_of]
    if not known:
        return None
    text = next((fields.text(name) for name in known if fields.text(name)), "")
    matches = [match for part in text.split(",") if (match := _DEVICE.fullmatch(part.strip()))]
    devices = [(match[1] or "", int(match[2])) for match in matches if int(match[2])]
    typed = [(parse_name(name), count) for name, count in devices if name]
    if sum(count for _, count in typed) < sum(count for name, count in devices if not name):
        return tuple(device for device in devices if not device[0])
    return tuple(sorted(typed))

"""The spans of a job: a file beside its progress file, removed with it."""

from __future__ import annotations

from pathlib import Path

from torchsplit_core.telemetry import SpanTree, read_trace, span_tree
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.workspace.store import Store, Workspace


def trace_path(store: Store, job: str) -> Path:
    """Where a job's spans are, if it wrote any."""
    return store.root / "jobs" / f"{job}.spans.jsonl"


def job_spans(workspace: Workspace, job: str) -> SpanTree | None:
    """The spans of a job so far; None if it has written none. Raises InputFault for an unknown id or a bad file."""
    if job not in {record.id for record in workspace.job_records()}:
        raise InputFault("job", f"{quoted(job)} is not in this workspace", "Choose one of its jobs.")
    path = trace_path(workspace.store, job)
    if not path.is_file():
        return None
    spans, notes = read_trace(path)
    return span_tree(spans, notes) if spans else None

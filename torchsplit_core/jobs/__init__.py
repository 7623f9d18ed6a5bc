"""Background jobs of a workspace: start, monitor, cancel, resume."""

from torchsplit_core.jobs.fork_server import prepare
from torchsplit_core.jobs.recorded.spans import job_spans
from torchsplit_core.jobs.runner import (
    STOPPED_TEXT,
    JobStatus,
    cancel,
    end,
    log,
    newest,
    resume,
    running,
    start,
    status,
    statuses,
)

__all__ = [
    "STOPPED_TEXT",
    "JobStatus",
    "cancel",
    "end",
    "job_spans",
    "log",
    "newest",
    "prepare",
    "resume",
    "running",
    "start",
    "status",
    "statuses",
]

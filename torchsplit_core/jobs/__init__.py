"""Background jobs of a workspace: start, monitor, cancel, resume."""

from torchsplit_core.jobs.fork_server import prepare
from torchsplit_core.jobs.recorded.spans import job_spans
from torchsplit_core.jobs.runner import (
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

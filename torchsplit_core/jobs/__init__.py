"""Background jobs of a workspace: start, monitor, cancel, resume."""

from torchsplit_core.jobs.fork_server import prepare
from torchsplit_core.jobs.runner import JobStatus, cancel, end, log, resume, running, start, status, statuses

__all__ = [
    "JobStatus",
    "cancel",
    "end",
    "log",
    "prepare",
    "resume",
    "running",
    "start",
    "status",
    "statuses",
]

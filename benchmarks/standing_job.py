"""A job that waits until it is killed; it loads little, so that it may be killed at any moment of its start."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass

from torchsplit_core.jobs.job_kinds import JobKind, JobParameters
from torchsplit_core.values import Progress
from torchsplit_core.workspace.store import Workspace


@dataclass(frozen=True)
class Stand(JobParameters):
    """The job takes no parameters."""


def stand(workspace: Workspace, parameters: Stand, progress: Progress) -> None:
    """Start a process and wait."""
    child = subprocess.Popen(["sleep", "600"])
    progress(0.5, f"child {child.pid}")
    time.sleep(600)


KINDS = {"stand": JobKind("benchmarks.standing_job:stand", Stand)}

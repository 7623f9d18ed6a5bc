"""A job that runs until it is told to end."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.jobs.names import JobParameters


@dataclass(frozen=True)
class Hold(JobParameters):
    folder: str
    name: str

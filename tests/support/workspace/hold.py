"""Jobs that run until they are told to end."""

import time
from dataclasses import dataclass
from pathlib import Path

from torchsplit_core.jobs.job_kinds import JobKind, JobParameters
from torchsplit_core.values import Progress
from torchsplit_core.workspace.job_slots import release_slot_meanwhile
from torchsplit_core.workspace.store import Workspace


@dataclass(frozen=True)
class Hold(JobParameters):
    folder: str
    name: str


def hold(workspace: Workspace, parameters: Hold, progress: Progress) -> None:
    """Say that it began, and stand until its file is there."""
    folder = Path(parameters.folder)
    with (folder / "begun").open("a") as stream:
        stream.write(f"{parameters.name}\n")
    progress(0.5, "standing")
    while not (folder / parameters.name).exists():
        time.sleep(0.02)


def aside(workspace: Workspace, parameters: Hold, progress: Progress) -> None:
    """Stand like `hold`, with the slot given to others."""
    with release_slot_meanwhile():
        hold(workspace, parameters, progress)


KINDS = {name: JobKind(f"tests.support.workspace.hold:{name}", Hold) for name in ("hold", "aside")}

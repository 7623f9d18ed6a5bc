"""Training runs as jobs of a workspace: each has its folder in the store, or resumes in the folder it came from."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsplit_core.files import replace_file
from torchsplit_core.jobs.job_kinds import TrainOnParameters, TrainParameters, UploadedFile
from torchsplit_core.jobs.trace import read_upload
from torchsplit_core.training.monitor import read_launch
from torchsplit_core.training.stored_runs import folder_of_run, is_own
from torchsplit_core.values import InputFault, Progress, quoted
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace

_SOURCES = ".sources"


def train_job(workspace: Workspace, parameters: TrainParameters, progress: Progress) -> dict[str, Any]:
    """Start a run. Executes the source in the run's processes, with this user's rights."""
    source, trust = _source(workspace, parameters.source, parameters.file)
    path = folder_of_run(workspace, parameters.request)
    return _train(source, parameters.strategy, path, parameters.options, progress, trust=trust, resume=False)


def train_on_job(workspace: Workspace, parameters: TrainOnParameters, progress: Progress) -> dict[str, Any]:
    """Resume a run with the settings it was started with.

    Raises InputFault if those were not stored, and for a folder outside the workspace that is not trusted.
    """
    path = folder_of_run(workspace, parameters.request)
    launch = read_launch(path)
    if launch is None:
        raise InputFault(
            str(path),
            "lacks watch/launch.json, which says what the run was started with",
            "Go on with the run on the command line, by torchsplit train … --resume.",
        )
    is_own_run = is_own(workspace, path)
    if not is_own_run and not parameters.trust:
        raise InputFault(
            str(path),
            "is not trusted, and to resume a run executes the model that its folder names",
            "Tick the box, if the folder is your own.",
        )
    source, trust = launch.source, parameters.trust
    if is_own_run and parameters.file is not None:
        source, trust = _source(workspace, launch.source, parameters.file)
    options = launch.options if parameters.steps is None else replace(launch.options, steps=parameters.steps)
    return _train(source, launch.strategy, path, options, progress, trust=trust, resume=True)


def _source(workspace: Workspace, source: str, file: UploadedFile | None) -> tuple[str, bool]:
    """The source as ranks load it, and whether it is trusted. An upload is stored under its content's hash, so the
    source stays the same when the run resumes."""
    if file is None:
        if not source.startswith("sample:"):
            raise InputFault(
                "source", f"{quoted(source)} is neither a sample nor an upload", "Upload the file first."
            )
        return source, False
    name, content, trust = read_upload(workspace, file)
    path = workspace.runs / _SOURCES / hashlib.sha256(content).hexdigest()[:16] / name
    replace_file(path, content.decode("utf-8"))
    return f"{path}:{source.rpartition(':')[2]}", trust


def _train(
    source: str,
    strategy: RunStrategy,
    path: Path,
    options: RunOptions,
    progress: Progress,
    *,
    trust: bool,
    resume: bool,
) -> dict[str, Any]:
    from torchsplit_core import training

    try:
        summary = training.train(
            source, strategy, path, options=options, resume=resume, trust=trust, progress=progress
        )
    except KeyboardInterrupt:
        # Stopped by the page or a signal: the run has reported it and can be resumed.
        return {"stopped": True}
    return asdict(summary)

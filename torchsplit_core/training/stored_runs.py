"""The training runs of a workspace: their folders, and their steps as models, `run:NAME@step-N`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torchsplit_core.checkpoints.trained_run import TrainedStep, parse_run_source
from torchsplit_core.values import InputFault, quoted

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace

RUNS_SETTING = "runs"
"""The setting that lists a workspace's runs, newest last: `{"name", "path"}`, path null for runs in its own store."""
RUN_PREFIX = "run:"


def run_paths(workspace: Workspace) -> dict[str, Path]:
    """The folders of a workspace's runs by name, newest first."""
    entries = reversed(workspace.setting(RUNS_SETTING, []))
    return {
        entry["name"]: Path(entry["path"]) if entry["path"] else workspace.runs / entry["name"]
        for entry in entries
    }


def folder_of_run(workspace: Workspace, name: str) -> Path:
    """The folder of a run. Raises InputFault if the workspace has no such run."""
    path = run_paths(workspace).get(name)
    if path is None:
        raise InputFault("run", f"{quoted(name)} is not in this workspace", "Start it again.")
    return path


def is_own(workspace: Workspace, path: Path) -> bool:
    """Whether a run was started in this workspace: its folder lies in the workspace."""
    return path.parent == workspace.runs


def model_of_step(name: str, step: int) -> str:
    """The source that names a step of a run in a workspace."""
    return f"{RUN_PREFIX}{name}@step-{step}"


def trained_step(workspace: Workspace, source: str) -> TrainedStep | None:
    """The step that a workspace's source names; None for any other source.

    Raises InputFault if the run or its checkpoint is gone.
    """
    if not source.startswith(RUN_PREFIX):
        return None
    name, _, step = source.removeprefix(RUN_PREFIX).rpartition("@")
    return parse_run_source(f"{folder_of_run(workspace, name)}@{step}")

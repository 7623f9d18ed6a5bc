"""Training runs of a workspace: their folders, their states, and how to start, stop and resume them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import streamlit as st

from app.session import trust
from app.session.result_kind import RUN
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import (
    RUN_HERE,
    TRAIN,
    TRAIN_ON,
    TrainOnParameters,
    TrainParameters,
    UploadedFile,
)
from torchsplit_core.training.monitor import RunReader, RunView, send_request
from torchsplit_core.training.stored_runs import RUNS_SETTING, is_own, run_paths
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy
from torchsplit_core.workspace.store import JobRecord, Workspace

SAMPLE, FILE = "A sample", "A file of yours"
"""What a new run trains, as its form offers it."""


def path_of(workspace: Workspace, name: str) -> Path:
    """The folder of a run of `RUN.known`."""
    return run_paths(workspace)[name]


def view(workspace: Workspace, name: str) -> RunView | None:
    """Read the run; None before its processes begin. Raises InputFault where its folder is damaged."""
    path = path_of(workspace, name)
    if not (path / "events.jsonl").exists() and is_own(workspace, path):
        return None
    return _reader(str(path)).view()


@st.cache_resource(max_entries=256, show_spinner=False)
def _reader(path: str) -> RunReader:
    """The reader of a run, shared by all sessions."""
    return RunReader(path)


def active_jobs(workspace: Workspace, name: str) -> tuple[jobs.JobStatus, ...]:
    """The jobs of this workspace that train it now; of the door that trains, until the run's folder tells of itself."""
    active = jobs.running(workspace, RUN.job_kinds, name)
    if active or (path_of(workspace, name) / "events.jsonl").exists():
        return active
    return _door_jobs(workspace, name)


def _door_jobs(workspace: Workspace, name: str) -> tuple[jobs.JobStatus, ...]:
    """The running jobs that train this run as the first of their steps."""
    asked = [
        record.id
        for record in workspace.job_records()
        if record.name == RUN_HERE
        and isinstance(record.parameters, dict)
        and record.parameters.get("run") == name
    ]
    return tuple(status for status in jobs.running(workspace, (RUN_HERE,)) if status.id in asked)


def current_view(workspace: Workspace, name: str, view: RunView) -> RunView:
    """The view of a run; it says starting until the folder has an event of the job that works on it."""
    record = _last_job(workspace, name)
    if record is None:
        return view
    last_event_s = view.events[-1].time.timestamp() if view.events else 0.0
    if view.state != "starting" and last_event_s >= record.created:
        return view
    steps = (record.parameters.get("options") or record.parameters).get("steps")
    return view.starting(steps if isinstance(steps, int) else None)


def fault(workspace: Workspace, name: str) -> str | None:
    """Why the last job on a run failed; None where it did not."""
    record = _last_job(workspace, name)
    return None if record is None else jobs.status(workspace, record.id).fault


def _last_job(workspace: Workspace, name: str) -> JobRecord | None:
    return next(
        (
            record
            for record in workspace.job_records()
            if record.name in RUN.job_kinds
            and isinstance(record.parameters, dict)
            and record.parameters.get("request") == name
        ),
        None,
    )


def add_run(workspace: Workspace, source: str) -> str:
    """Enter a run of this source that a job begins; its name."""
    name = _free_name(workspace, source)
    # A run without a folder counts as removed.
    (workspace.runs / name).mkdir(parents=True)
    _add(workspace, name, None)
    return name


def start(
    workspace: Workspace, source: str, strategy: RunStrategy, options: RunOptions, file: UploadedFile | None
) -> str:
    """Start a run with a folder in the store; return its name."""
    name = add_run(workspace, source)
    jobs.start(workspace, f"Run {name}", TRAIN, TrainParameters(name, source, strategy, options, file))
    RUN.choose(workspace, name)
    return name


def wish_strategy(strategy: str, candidate: int, processes: int, precision: str) -> None:
    """Let the form of a new run begin with a candidate (from 1) of a stored strategy, and a file of the user's."""
    st.session_state["run-kind"] = FILE
    st.session_state["run-strategy"] = strategy
    st.session_state[f"run-candidate {strategy}"] = candidate
    st.session_state["run-processes"] = processes
    st.session_state["run-precision"] = precision


def stop(workspace: Workspace, name: str, view: RunView) -> None:
    """Ask a live run to end; end the job of a run that waits or only begins."""
    if view.alive:
        send_request(path_of(workspace, name), "stop")
    else:
        jobs.end(workspace, RUN.job_kinds, name)


def resume(
    workspace: Workspace, name: str, steps: int | None, file: UploadedFile | None, *, trust: bool
) -> None:
    """Resume a run from its newest checkpoint up to that step (None: its original last step)."""
    jobs.start(workspace, f"Run {name}", TRAIN_ON, TrainOnParameters(name, steps, file, trust))


def open_folder(workspace: Workspace, text: str) -> str:
    """Show a run whose folder is outside the store; return its name in this workspace.

    Raises InputFault where the folder has no run, and where others can reach this server: they must not read the
    files of the user who runs it.
    """
    if trust.is_refused():
        raise InputFault(
            "Folder",
            f"{quoted(text)} is not shown: others can reach this server, "
            "which shows the folders of its own workspaces alone",
            "Start the dashboard on your own machine.",
        )
    if not text.strip():
        raise InputFault("Folder", "is empty", "Type the path of a run's folder.")
    try:
        path = Path(text.strip()).expanduser()
        whole = path.is_absolute()
        path = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise InputFault("Folder", f"{quoted(text)} is not a path: {error}", "Correct it.") from error
    if not whole:
        raise InputFault("Folder", f"{quoted(text)} is not a whole path", "Begin it with a slash.")
    _reader(str(path)).view()
    already = next((name for name, known in run_paths(workspace).items() if known == path), None)
    if already is not None:
        RUN.choose(workspace, already)
        return already
    name = _free_name(workspace, path.name)
    _add(workspace, name, path)
    RUN.choose(workspace, name)
    return name


def remove(workspace: Workspace, name: str) -> None:
    """End the jobs of a run and forget it; this deletes its folder where the folder is in the store."""
    jobs.end(workspace, RUN.job_kinds, name)
    for status in _door_jobs(workspace, name):
        jobs.cancel(workspace, status.id)
    path = path_of(workspace, name)
    if is_own(workspace, path):
        shutil.rmtree(path, ignore_errors=True)
    remaining = [entry for entry in workspace.setting(RUNS_SETTING, []) if entry["name"] != name]
    workspace.set_setting(RUNS_SETTING, remaining)
    RUN.forget(workspace, name)


def _add(workspace: Workspace, name: str, path: Path | None) -> None:
    entries = [
        *workspace.setting(RUNS_SETTING, []),
        {"name": name, "path": None if path is None else str(path)},
    ]
    workspace.set_setting(RUNS_SETTING, entries)


def _free_name(workspace: Workspace, text: str) -> str:
    """A free name for a folder and an address: `sample:llama` becomes llama-1."""
    stem = re.sub(r"[^A-Za-z0-9_.@-]+", "-", text.removeprefix("sample:")).strip("-.")[:60] or "run"
    taken = {entry["name"] for entry in workspace.setting(RUNS_SETTING, [])}
    number = 1
    while f"{stem}-{number}" in taken or (workspace.runs / f"{stem}-{number}").exists():
        number += 1
    return f"{stem}-{number}"

"""Long work, for page and command line alike: started, watched, cancelled, and alive after a reload.

A job is a child process in a group of its own. It tells how far it is by replacing a small
progress file, so whoever looks (a page that was reloaded, another session) sees the truth.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torchsplit_core import telemetry
from torchsplit_core.storage import JobRecord, Store, Workspace
from torchsplit_core.values import InputFault, Progress

STOPPED = "The work stopped before it was done (killed, the disk was full, or the machine restarted). Start it again."
"""What a job is told to have died of that could not say it itself; what it stored stays."""
State = Literal["running", "done", "failed", "cancelled"]
JobFunction = Callable[[Workspace, dict[str, Any], Progress], Any]
"""What a job runs: `module:function` called with workspace, parameters and progress; returns JSON."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How far a job is. `share` 0 to 1; `fault` is a message for a person; `seconds` since its start."""

    id: str
    title: str
    state: State
    share: float
    message: str
    result: Any
    fault: str | None
    seconds: float


def start(workspace: Workspace, title: str, target: str, parameters: dict[str, Any]) -> str:
    """Start `target` ("module:function") in a child process; its job id."""
    record = workspace.add_job(title, target, parameters)
    _write(workspace.store, record.id, {"state": "running", "share": 0.0, "message": "starting", "pid": None})
    log = _path(workspace.store, record.id).with_suffix(".log").open("wb")
    root = Path(__file__).resolve().parent.parent
    environment = (
        {"OPENBLAS_NUM_THREADS": "1"}
        | os.environ
        | {"PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))}
    )
    with log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "torchsplit_core.jobs",
                str(workspace.store.root),
                workspace.id,
                record.id,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    # Reaps the child; without it a finished job would stay a zombie of the server.
    threading.Thread(target=process.wait, daemon=True).start()
    return record.id


def status(workspace: Workspace, job: str) -> JobStatus:
    """How far a job is. Raises InputFault for an unknown id."""
    record = next((found for found in workspace.job_records() if found.id == job), None)
    if record is None:
        raise InputFault("job", job, "the job exists in this workspace", "Start it again.")
    return _status(workspace.store, record)


def statuses(workspace: Workspace) -> tuple[JobStatus, ...]:
    """All jobs of a workspace, newest first."""
    return tuple(_status(workspace.store, record) for record in workspace.job_records())


def cancel(workspace: Workspace, job: str) -> None:
    """End a job: asked first, so that it can end its own children, then killed with its whole group."""
    if status(workspace, job).state != "running":
        return
    # A child that has not told its number yet finds this mark when it does, and ends by itself.
    _mark(workspace.store, job).touch()
    data = _read(workspace.store, job)
    pid = data.get("pid")
    if isinstance(pid, int) and _alive(pid, data.get("born")):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + 3
            while _alive(pid, data.get("born")) and time.monotonic() < deadline:
                time.sleep(0.05)
            os.killpg(pid, signal.SIGKILL)
    # A job that finished while it was being asked keeps its result.
    now = _read(workspace.store, job)
    if now.get("state") == "running":
        _write(
            workspace.store, job, now | {"state": "cancelled", "message": "cancelled", "ended": time.time()}
        )


def _status(store: Store, record: JobRecord) -> JobStatus:
    data = _read(store, record.id)
    state = data.get("state", "failed")
    fault = data.get("fault")
    starting = data.get("pid") is None and time.time() - record.created < 20
    if state == "running" and not starting and not _alive(data.get("pid"), data.get("born")):
        data = _read(store, record.id)  # it may have ended between the two looks
        state, fault = data.get("state", "failed"), data.get("fault")
        if state == "running":
            state, fault = (
                "failed",
                STOPPED,
            )
    return JobStatus(
        id=record.id,
        title=record.title,
        state=state,
        share=float(data.get("share", 0.0)),
        message=str(data.get("message", "")),
        result=data.get("result"),
        fault=fault,
        seconds=max(0.0, float(data.get("ended") or time.time()) - record.created),
    )


def _path(store: Store, job: str) -> Path:
    return store.root / "jobs" / f"{job}.json"


def _mark(store: Store, job: str) -> Path:
    """Exists where the job was asked to end."""
    return _path(store, job).with_suffix(".cancel")


def _read(store: Store, job: str) -> dict[str, Any]:
    try:
        data = json.loads(_path(store, job).read_text())
    except (OSError, json.JSONDecodeError):
        return {"state": "failed", "fault": "The job's progress file is gone. Start it again."}
    return data if isinstance(data, dict) else {}


def _write(store: Store, job: str, data: dict[str, Any]) -> None:
    path = _path(store, job)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump(data, stream)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _born(pid: int) -> str | None:
    """When the process started, in the kernel's ticks: tells a job from a later process with its number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _alive(pid: Any, born: Any) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    if not Path("/proc").is_dir():
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z" and (born is None or _born(pid) == born)


def _run(root: str, workspace_id: str, job: str) -> int:
    """The child's side."""
    store = Store(Path(root))
    workspace = store.open(workspace_id)
    record = next(found for found in workspace.job_records() if found.id == job)
    base = {
        "state": "running",
        "share": 0.0,
        "message": "starting",
        "pid": os.getpid(),
        "born": _born(os.getpid()),
    }
    _write(store, job, base)
    if _mark(store, job).exists():
        _write(store, job, base | {"state": "cancelled", "message": "cancelled", "ended": time.time()})
        return 1

    def on_terminate(number: int, frame: Any) -> None:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, on_terminate)

    def progress(share: float, message: str) -> None:
        base.update(share=round(min(max(share, 0.0), 1.0), 4), message=message)
        # A disk that is full must not end work that can go on: only the news is lost.
        with contextlib.suppress(OSError):
            _write(store, job, base)

    module, _, name = record.target.partition(":")
    end: dict[str, Any]
    try:
        function: JobFunction = getattr(importlib.import_module(module), name)
        telemetry.configure("torchsplit job", store.root / "telemetry")
        with telemetry.span(telemetry.schema.JOB, job=job):
            result = function(workspace, record.parameters, progress)
        end = {"state": "done", "share": 1.0, "message": "done", "result": result}
    except InputFault as fault:
        end = {"state": "failed", "fault": str(fault)}
    except MemoryError:
        end = {
            "state": "failed",
            "fault": "The work needed more memory than there is. Make the request smaller.",
        }
    except Exception as error:  # noqa: BLE001 - the boundary of the process: the page must hear of it
        traceback.print_exc()
        end = {
            "state": "failed",
            "fault": f"An internal fault ({type(error).__name__}: {error}). Please report it.",
        }
    _write(store, job, base | end | {"ended": time.time()})
    return 0 if end["state"] == "done" else 1


if __name__ == "__main__":
    sys.exit(_run(*sys.argv[1:4]))

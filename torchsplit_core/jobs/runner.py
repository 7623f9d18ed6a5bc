"""Starts, monitors and cancels jobs, for pages and the command line; a job survives the reload of a page.

A job is a child process in its own process group. It reports progress by replacing a small
file, which any reader (a reloaded page, another session) can read.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torchsplit_core import telemetry
from torchsplit_core.bundle import python_path
from torchsplit_core.isolation.trust_policy import EXECUTION_VARIABLE as EXECUTION
from torchsplit_core.isolation.trust_policy import (
    REFUSED,
    execution_for_jobs,
    execution_refused,
    without_trust,
)
from torchsplit_core.jobs import fork_server
from torchsplit_core.jobs import job_kinds as jobs_names
from torchsplit_core.jobs.job_kinds import JobParameters
from torchsplit_core.jobs.recorded.spans import trace_path
from torchsplit_core.values import InputFault, Progress, last_cause, quoted
from torchsplit_core.workspace.faults import fault_from_os_error, is_full
from torchsplit_core.workspace.job_slots import acquire_slot, slot_count
from torchsplit_core.workspace.store import JobRecord, Store, Workspace

STOPPED_TEXT = (
    "The work stopped before it was done (killed, the disk was full, or the machine "
    "restarted). Start it again."
)
"""The fault shown for a job that died without reporting one; its stored results stay."""
State = Literal["running", "done", "failed", "cancelled"]
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
CHILD_MODULE = "torchsplit_core.jobs"
"""The module that a job's process runs; it calls `main`."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Progress of a job of the kind `name`. `share` 0 to 1; `fault` is text for users; `seconds` since its start."""

    id: str
    title: str
    name: str
    state: State
    share: float
    message: str
    result: Any
    fault: str | None
    seconds: float


def start(workspace: Workspace, title: str, name: str, parameters: JobParameters) -> str:
    """Start a job of the kind `name` (see job_kinds.py) in a child process. Returns its job id.

    Decides whether the job may execute uploads: on a server that does not allow it, trust is removed from the
    parameters before they are stored. Raises InputFault if the job cannot be written to disk.
    """
    stored = jobs_names.to_stored(name, parameters)
    execution = execution_for_jobs()
    if execution == REFUSED:
        stored = without_trust(stored)
    record = workspace.add_job(title, name, stored)
    store = workspace.store
    environment = (
        {"OPENBLAS_NUM_THREADS": "1"}
        | os.environ
        | {
            "PYTHONPATH": python_path(),
            EXECUTION: execution,
        }
    )
    begun = {"state": "running", "share": 0.0, "message": "starting", **_clock()}
    try:
        # Until the child's process id is written, the job is alive as long as its starter.
        _write(store, record.id, begun | {"starter": _process_identity(os.getpid())})
        command = (CHILD_MODULE, str(store.root), workspace.id, record.id)
        reading, writing = os.pipe()
        # The child begins when its standard input closes, so nothing written here is newer than its own writes.
        with os.fdopen(writing, "wb"), os.fdopen(reading, "rb"):
            with _progress_path(store, record.id).with_suffix(".log").open("wb") as log:
                process = _start_process(command, environment, reading, log.fileno())
            _write(store, record.id, begun | _process_identity(process))
    except OSError as error:
        raise fault_from_os_error(store.root, error) from error
    return record.id


def _start_process(command: Sequence[str], environment: Mapping[str, str], stdin: int, log: int) -> int:
    """Run `python -m command` in its own session, forked if a fork server is ready. Returns its process id."""
    if (child := fork_server.fork_process(command, environment, stdin, log)) is not None:
        return child
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=stdin,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=dict(environment),
    )
    # Reaps the child: otherwise a finished job would stay a zombie of the server.
    threading.Thread(target=process.wait, daemon=True).start()
    return process.pid


def resume(workspace: Workspace, job: str) -> str:
    """Start a new job with the parameters of `job`; it continues from the stored results. Returns the new id.

    Raises InputFault like `start`, for an unknown id, and for parameters that this version cannot read.
    """
    record = _record(workspace, job)
    return start(workspace, record.title, record.name, jobs_names.from_stored(record.name, record.parameters))


def status(workspace: Workspace, job: str) -> JobStatus:
    """The status of a job. Raises InputFault for an unknown id."""
    return _status(workspace.store, _record(workspace, job))


def _record(workspace: Workspace, job: str) -> JobRecord:
    record = next((candidate for candidate in workspace.job_records() if candidate.id == job), None)
    if record is None:
        raise InputFault("job", f"{quoted(job)} is not in this workspace", "Start it again.")
    return record


def statuses(workspace: Workspace) -> tuple[JobStatus, ...]:
    """All jobs of a workspace, newest first."""
    return tuple(_status(workspace.store, record) for record in workspace.job_records())


def log(workspace: Workspace, job: str, most_bytes: int = 65536) -> str:
    """The last `most_bytes` of the job's output; empty if it printed nothing. Raises InputFault for an unknown
    id."""
    try:
        with (
            _progress_path(workspace.store, _record(workspace, job).id)
            .with_suffix(".log")
            .open("rb") as stream
        ):
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - most_bytes))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def running(
    workspace: Workspace, names: Collection[str] = (), request: str | None = None
) -> tuple[JobStatus, ...]:
    """The running jobs, newest first, of these kinds (all if empty) and on the stored request of that name."""
    return tuple(status for status in _matching(workspace, names, request) if status.state == "running")


def newest(workspace: Workspace, name: str, request: str) -> JobStatus | None:
    """The newest job of this kind on the stored request of that name, however it ended; None if there was none."""
    return next(_matching(workspace, (name,), request), None)


def _matching(workspace: Workspace, names: Collection[str], request: str | None) -> Iterator[JobStatus]:
    return (
        _status(workspace.store, record)
        for record in workspace.job_records()
        if (not names or record.name in names)
        and (request is None or _stored_parameter(record.parameters, "request") == request)
    )


def end(workspace: Workspace, names: Collection[str], request: str) -> None:
    """Cancel the running jobs of these kinds on a stored request."""
    for status in running(workspace, names, request):
        with contextlib.suppress(InputFault):
            cancel(workspace, status.id)


def _stored_parameter(parameters: Any, key: str) -> Any:
    """A value of stored parameters, which may be of any type in a damaged store."""
    return parameters.get(key) if isinstance(parameters, dict) else None


def cancel(workspace: Workspace, job: str) -> None:
    """Ask a job to end, so that it can end its children, then kill its process group."""
    if status(workspace, job).state != "running":
        return
    # A job that waits or is about to begin sees this file and ends by itself.
    with contextlib.suppress(OSError):
        _cancel_path(workspace.store, job).touch()
    data = _read(workspace.store, job)
    pid = data.get("pid")
    if isinstance(pid, int) and _is_alive(pid, data.get("born")):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + 3
            while _is_alive(pid, data.get("born")) and time.monotonic() < deadline:
                time.sleep(0.05)
            os.killpg(pid, signal.SIGKILL)
    # A job that finished meanwhile keeps its result.
    now = _read(workspace.store, job)
    if now.get("state") == "running":
        # On a full disk only this write is lost: a job without a process is reported as stopped.
        with contextlib.suppress(OSError):
            _write(
                workspace.store,
                job,
                now | {"state": "cancelled", "message": "cancelled", "seconds": _elapsed_s(now)},
            )


def _status(store: Store, record: JobRecord) -> JobStatus:
    data = _read(store, record.id)
    state = data.get("state", "failed")
    fault = data.get("fault")
    who = data if "pid" in data else data.get("starter") or {}
    if state == "running" and not _is_alive(who.get("pid"), who.get("born")):
        data = _read(store, record.id)  # it may have ended between the two reads
        state, fault = data.get("state", "failed"), data.get("fault")
        if state == "running" and _cancel_path(store, record.id).exists():
            # Killed as it was asked to end, which is noted in a moment.
            state, data = "cancelled", data | {"message": "cancelled"}
        elif state == "running":
            state, fault = "failed", STOPPED_TEXT
    return JobStatus(
        id=record.id,
        title=record.title,
        name=record.name,
        state=state,
        share=float(data.get("share", 0.0)),
        message=str(data.get("message", "")),
        result=data.get("result"),
        fault=fault,
        seconds=_elapsed_s(data),
    )


def _clock() -> dict[str, Any]:
    """The start time on a monotonic clock, and the boot it counts from."""
    return {"boot": _boot(), "begun": time.clock_gettime(_CLOCK)}


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _elapsed_s(data: Mapping[str, Any]) -> float:
    """Seconds that a job has run, until now or until it ended; 0 if unknown."""
    recorded = data.get("seconds")
    if isinstance(recorded, int | float):
        return float(recorded)
    begun = data.get("begun")
    if data.get("state") != "running" or data.get("boot") != _boot() or not isinstance(begun, int | float):
        return 0.0
    return max(0.0, time.clock_gettime(_CLOCK) - begun)


def _process_identity(pid: int) -> dict[str, Any]:
    return {"pid": pid, "born": _start_ticks(pid)}


def _progress_path(store: Store, job: str) -> Path:
    return store.root / "jobs" / f"{job}.json"


def _cancel_path(store: Store, job: str) -> Path:
    """The file whose existence asks the job to end."""
    return _progress_path(store, job).with_suffix(".cancel")


def _read(store: Store, job: str) -> dict[str, Any]:
    try:
        data = json.loads(_progress_path(store, job).read_text())
    except (OSError, json.JSONDecodeError):
        return {"state": "failed", "fault": "The job's progress file is gone. Start it again."}
    return data if isinstance(data, dict) else {}


def _write(store: Store, job: str, data: dict[str, Any]) -> None:
    """Replace a job's progress file. An end is synced to disk: once reported, it must survive a power cut."""
    path = _progress_path(store, job)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{job}.", suffix=".part")
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump(data, stream)
            if data.get("state") != "running":
                stream.flush()
                os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _start_ticks(pid: int) -> str | None:
    """The process's start time in kernel ticks: distinguishes a job from a later process with its id."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _is_alive(pid: Any, start_ticks: Any) -> bool:
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
    return state != "Z" and (start_ticks is None or _start_ticks(pid) == start_ticks)


def _run_job(root: str, workspace_id: str, job: str) -> int:
    """Run the job in the child process."""
    sys.stdin.read()
    store = Store(Path(root))
    workspace = store.open(workspace_id)
    record = next(candidate for candidate in workspace.job_records() if candidate.id == job)
    progress_data = _read(store, job)
    base: dict[str, Any] = {
        **_clock(),
        **{key: progress_data[key] for key in ("boot", "begun") if key in progress_data},
        **_process_identity(os.getpid()),
        "state": "running",
    }

    def on_terminate(number: int, frame: Any) -> None:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, on_terminate)

    def progress(share: float, message: str) -> None:
        base.update(share=round(min(max(share, 0.0), 1.0), 4), message=message)
        # A full disk must not end work that can continue: only this progress report is lost.
        with contextlib.suppress(OSError):
            _write(store, job, base)

    def finish(end: dict[str, Any]) -> int:
        try:
            _write(store, job, base | end | {"seconds": _elapsed_s(base)})
        except OSError:  # readers see a job that ended without a report; STOPPED_TEXT explains it
            return 1
        return 0 if end["state"] == "done" else 1

    def on_queue_position(before: int) -> None:
        most = slot_count()
        once = "1 job runs at once" if most == 1 else f"{most} jobs run at once"
        waiting = f"; {before} more {'waits' if before == 1 else 'wait'} before it" if before else ""
        progress(0.0, f"queued: {once} on this machine{waiting}")

    progress(0.0, "starting")
    end: dict[str, Any]
    try:
        with acquire_slot(store.root / "queue", on_queue_position):
            if _cancel_path(store, job).exists():
                return finish({"state": "cancelled", "message": "cancelled"})
            end = _call_function(workspace, record, progress)
    except InputFault as fault:
        end = {"state": "failed", "fault": str(fault)}
    except OSError as error:
        end = {"state": "failed", "fault": str(fault_from_os_error(store.root, error))}
    return finish(end)


def _call_function(workspace: Workspace, record: JobRecord, progress: Progress) -> dict[str, Any]:
    """Call the job's function. Returns how it ended, as entries of the progress file."""
    stored = without_trust(record.parameters) if execution_refused() else record.parameters
    try:
        parameters = jobs_names.from_stored(record.name, stored)
        function = jobs_names.kind_of(record.name).function()
        telemetry.configure_job("torchsplit job", trace_path(workspace.store, record.id))
        with telemetry.span(telemetry.schema.JOB, job=record.id):
            result = function(workspace, parameters, progress)
        return {"state": "done", "share": 1.0, "message": "done", "result": result}
    except InputFault as fault:
        return {"state": "failed", "fault": str(fault)}
    except MemoryError:
        return {
            "state": "failed",
            "fault": "The work ran out of memory. Make the request smaller.",
        }
    except Exception as error:  # noqa: BLE001 - the boundary of the process: the page must hear of it
        if isinstance(error, OSError) and is_full(error):
            return {"state": "failed", "fault": str(fault_from_os_error(workspace.store.root, error))}
        traceback.print_exc()
        cause = last_cause(error)
        return {
            "state": "failed",
            "fault": f"An internal fault ({type(cause).__name__}: {cause}). Please report it.",
        }


def main() -> None:
    """Run the job that the command line names."""
    sys.exit(_run_job(*sys.argv[1:4]))

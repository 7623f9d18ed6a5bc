"""A workspace of the version before: everything in it is there, and its jobs are known by their names.

`store_version_4` was written by the last version that stored jobs by the path of their function: a dump of its
database, the contents that it names, and the jobs' progress files. One job runs and one waits; their process
is filled in below.
"""

import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.workspace import hold
from tests.support.workspace.hold import Hold
from tests.support.workspace.job_child import own_jobs
from torchsplit_core import jobs
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.job_kinds import JOBS, PROFILE, ProfileParameters, UploadedFile, from_stored
from torchsplit_core.values import InputFault
from torchsplit_core.workspace import SCHEMA
from torchsplit_core.workspace.archive import export_workspace
from torchsplit_core.workspace.store import Store, Workspace
from torchsplit_core.workspace.sweeps import SweepStore

OLD = Path(__file__).parent / "store_version_4"
STATES = {
    "trace": "done", "plan": "done", "explain": "done", "place": "done", "placement_frontier": "done",
    "partition": "done", "divisions": "cancelled", "what_if": "failed",
    "torchsplit_core.workflow:fly_job": "failed", "quick_start": "failed", "sweep": "failed",
    "profile": "running",
}  # fmt: skip


@pytest.fixture
def left_running() -> Iterator[subprocess.Popen[bytes]]:
    """The process of the jobs that the version before left running."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def home(tmp_path, left_running) -> Path:
    found = shutil.copytree(OLD, tmp_path / "home")
    database = sqlite3.connect(found / "workspaces.sqlite")
    database.executescript((found / "workspaces.sql").read_text())
    database.close()
    for path in (found / "jobs").iterdir():
        data = json.loads(path.read_text())
        if data["state"] == "running":
            path.write_text(
                json.dumps(data | {"pid": left_running.pid, "born": runner._start_ticks(left_running.pid)})
            )
    return found


@pytest.fixture
def old(home) -> Workspace:
    store = Store(home)
    return store.open(store.workspaces()[0].id)


def job(workspace: Workspace, name: str) -> jobs.JobStatus:
    """The newest job of that kind."""
    return next(status for status in jobs.statuses(workspace) if status.name == name)


def wait(workspace: Workspace, job: str) -> jobs.JobStatus:
    deadline = time.monotonic() + 60
    while (found := jobs.status(workspace, job)).state == "running":
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_every_result_is_there(old):
    assert old.name == "review" and old.setting("scenario") == "review"
    assert {(item.kind, item.name) for item in old.artifacts()} == {
        ("graph", "sample:bert"), ("profile", "sample:bert"), ("partition", "sample:bert in 2"),
        ("plan_request", "review"), ("plan", "review"), ("plan_request", "swept"), ("placement_request", "tiny"),
        ("placement", "tiny"), ("placement_frontier", "tiny"), ("upload", "m.py"),
    }  # fmt: skip
    for item in old.artifacts():
        assert old.get_bytes(item.kind, item.name)
        assert item.kind == "upload" or old.get(item.kind, item.name)
    swept = SweepStore(old, "swept").load()
    assert swept is not None and sorted(swept.plans) == [1.0, 2.0, 3.0]
    assert len(export_workspace(old)) > 1000


def test_every_job_has_its_name_and_its_end(home, old):
    statuses = jobs.statuses(old)
    assert {status.name: status.state for status in statuses} == STATES and len(statuses) == 13
    later = {
        "measure", "run_here", "evaluate", "strategy", "strategy_study", "train", "train_on", "apply", "day",
        "day_curve", "held_out", "day_replay",
    }  # fmt: skip
    assert set(STATES) - set(JOBS) == {"torchsplit_core.workflow:fly_job"} and set(JOBS) - later <= set(
        STATES
    )
    assert [status.title for status in statuses][-2:] == ["Plan review", "Trace sample:bert"]
    assert job(old, "plan").result == {"plan": "review", "status": "optimal"}
    assert job(old, "sweep").fault == "It was killed."
    for record in old.job_records():
        if record.name in JOBS:
            assert from_stored(record.name, record.parameters)
    with old.store.connect() as database:
        assert database.execute("PRAGMA user_version").fetchone() == (len(SCHEMA),)
    assert [status.name for status in jobs.statuses(Store(home).open(old.id))] == [
        status.name for status in statuses
    ]


def test_a_job_of_no_known_kind_is_shown_and_not_started_again(old):
    flown = job(old, "torchsplit_core.workflow:fly_job")
    assert flown.title == "Fly" and flown.fault == "It was killed."
    with pytest.raises(InputFault, match="is of a kind that this TorchSplit does not know"):
        jobs.resume(old, flown.id)


def test_jobs_that_run_and_wait_are_told_waited_for_and_ended(old, left_running):
    waiting, running = [status for status in jobs.statuses(old) if status.state == "running"]
    assert (running.name, running.title, running.message) == (PROFILE, "Profile m.py:Net", "measuring")
    assert waiting.name == PROFILE and "1 more waits before it" in waiting.message
    uploaded = {"m.py:Net": UploadedFile("m.py", old.artifacts("upload")[0].sha256)}
    records = {record.id: record for record in old.job_records()}
    assert from_stored(PROFILE, records[running.id].parameters) == ProfileParameters(
        ("m.py:Net",), trace_again=True, uploads=uploaded
    )
    assert from_stored(PROFILE, records[waiting.id].parameters) == ProfileParameters(
        ("sample:bert", "m.py:Net"), "cpu", (1, 2), 0.5, uploads=uploaded, again_since=5.5
    )
    # Its own end, as the process of the version before writes it.
    path = old.store.root / "jobs" / f"{running.id}.json"
    path.write_text(json.dumps({"state": "done", "share": 1.0, "message": "done", "result": {"rows": 3}}))
    assert jobs.status(old, running.id).result == {"rows": 3}
    jobs.cancel(old, waiting.id)
    assert jobs.status(old, waiting.id).state == "cancelled"
    assert left_running.wait(120) != 0


@pytest.mark.slow
def test_a_failed_job_goes_on_by_its_name(old):
    again = jobs.resume(old, job(old, "sweep").id)
    assert jobs.status(old, again).name == "sweep" and jobs.status(old, again).title == "Sweep swept"
    found = wait(old, again)
    assert found.fault is None and found.result == {"sweep": "swept", "points": 4, "taken_over": 3}


def test_a_running_job_that_dies_goes_on_by_its_name_and_asks_for_trust_again(old, left_running, monkeypatch):
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "allowed")
    left_running.kill()
    left_running.wait()
    stopped = job(old, PROFILE)
    assert stopped.state == "failed" and stopped.fault == runner.STOPPED_TEXT
    old.put_bytes("upload", "m.py", b"raise SystemExit('another')\n")
    running = jobs.statuses(old)[1]
    fault = str(wait(old, jobs.resume(old, running.id)).fault)
    assert "is not the file that was trusted" in fault and "SystemExit" not in fault


def test_a_new_job_waits_behind_one_of_the_version_before(home, old, monkeypatch):
    own_jobs(monkeypatch, hold)
    monkeypatch.setenv("TORCHSPLIT_JOBS", "1")
    queue = home / "queue"
    queue.mkdir()
    # The files by which that version says that a job has the slot, and that one waits for it.
    held = [os.open(queue / name, os.O_RDWR | os.O_CREAT) for name in ("slot-0", "ticket-1")]
    for handle in held:
        fcntl.flock(handle, fcntl.LOCK_EX)
    new = jobs.start(old, "Hold", "hold", Hold(str(home), "a"))
    deadline = time.monotonic() + 60
    while "1 more waits before it" not in jobs.status(old, new).message:
        assert time.monotonic() < deadline, jobs.status(old, new)
        time.sleep(0.05)
    assert not (home / "begun").exists()
    for handle in held:
        os.close(handle)
    (home / "a").touch()
    assert wait(old, new).state == "done"

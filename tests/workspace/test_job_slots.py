"""Jobs wait their turn, killed ones hold nobody up, and no clock decides what is true."""

import json
import os
import signal
import subprocess
import time
from typing import Any

import pytest

from tests.support.workspace import hold
from tests.support.workspace.hold import Hold
from tests.support.workspace.job_child import own_jobs
from torchsplit_core import jobs
from torchsplit_core.jobs import runner
from torchsplit_core.values import InputFault
from torchsplit_core.workspace import job_slots as workspace_slots
from torchsplit_core.workspace.job_slots import slot_count
from torchsplit_core.workspace.store import Store, Workspace


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Workspace:
    own_jobs(monkeypatch, hold)
    monkeypatch.setenv("TORCHSPLIT_JOBS", "1")
    return Store(tmp_path / "home").create("w")


def begin(workspace: Workspace, name: str, kind: str = "hold") -> str:
    folder = str(workspace.store.root)
    return jobs.start(workspace, name, kind, Hold(folder, name))


def release(workspace: Workspace, name: str) -> None:
    (workspace.store.root / name).touch()


def begun(workspace: Workspace) -> list[str]:
    file = workspace.store.root / "begun"
    return file.read_text().split() if file.exists() else []


def wait(until: Any) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def message(workspace: Workspace, job: str) -> str:
    return jobs.status(workspace, job).message


@pytest.mark.slow
def test_who_comes_first_is_served_first(workspace):
    found = {}
    for number, name in enumerate("abcd"):
        found[name] = begin(workspace, name)
        wait(lambda name=name: message(workspace, found[name]) not in ("", "starting"))
        if number:
            assert message(workspace, found[name]).startswith("queued: 1 job runs at once on this machine")
    assert begun(workspace) == ["a"]
    assert "2 more wait before it" in message(workspace, found["d"])
    jobs.cancel(workspace, found["b"])
    wait(lambda: "1 more waits before it" in message(workspace, found["d"]))
    assert jobs.status(workspace, found["b"]).state == "cancelled"
    for number, name in enumerate("acd", start=1):
        wait(lambda number=number: len(begun(workspace)) == number)
        release(workspace, name)
    wait(lambda: all(jobs.status(workspace, found[name]).state == "done" for name in "acd"))
    assert begun(workspace) == ["a", "c", "d"]


@pytest.mark.slow
def test_a_killed_job_holds_nobody_up(workspace):
    found = {name: begin(workspace, name) for name in "ab"}
    wait(lambda: len(begun(workspace)) == 1)
    wait(lambda: any("queued" in message(workspace, job) for job in found.values()))
    runs = begun(workspace)[0]
    other = "b" if runs == "a" else "a"
    pid = json.loads((workspace.store.root / "jobs" / f"{found[runs]}.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    wait(lambda: begun(workspace) == [runs, other])
    release(workspace, other)
    wait(lambda: jobs.status(workspace, found[other]).state == "done")


@pytest.mark.slow
def test_who_waits_for_something_else_gives_its_slot_away(workspace):
    first = begin(workspace, "a", "aside")
    wait(lambda: begun(workspace) == ["a"])
    second = begin(workspace, "b")
    wait(lambda: begun(workspace) == ["a", "b"])
    release(workspace, "a")
    # It goes on when it has a slot again, so not before the second is done.
    wait(lambda: "queued" in message(workspace, first))
    release(workspace, "b")
    wait(lambda: {jobs.status(workspace, job).state for job in (first, second)} == {"done"})


def test_slots_are_by_cores_and_memory_or_as_told(monkeypatch):
    monkeypatch.delenv("TORCHSPLIT_JOBS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(workspace_slots, "default_memory_bytes", lambda: 64 * 2**30)
    assert slot_count() == 16
    monkeypatch.setattr(workspace_slots, "default_memory_bytes", lambda: 4 * 2**30)
    assert slot_count() == 10
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert slot_count() == 3
    monkeypatch.setenv("TORCHSPLIT_JOBS", "7")
    assert slot_count() == 7
    for bad in ("0", "x", "", "-1", "9" * 5000):
        monkeypatch.setenv("TORCHSPLIT_JOBS", bad)
        with pytest.raises(InputFault, match="TORCHSPLIT_JOBS"):
            slot_count()


def test_a_clock_that_is_set_does_not_change_what_a_job_is(workspace, monkeypatch):
    job = begin(workspace, "a")
    wait(lambda: message(workspace, job) == "standing")
    for shift in (-3600.0, 365 * 86400.0):
        monkeypatch.setattr(time, "time", lambda shift=shift: 1.8e9 + shift)
        status = jobs.status(workspace, job)
        assert status.state == "running" and 0 <= status.seconds < 3000
    release(workspace, "a")
    wait(lambda: jobs.status(workspace, job).state == "done")
    assert 0 <= jobs.status(workspace, job).seconds < 3000


@pytest.mark.parametrize("who", ["starter", "child"])
def test_a_job_whose_process_is_gone_has_stopped_whatever_the_clock(workspace, who):
    gone = subprocess.Popen(["true"])
    gone.wait()
    record = workspace.add_job("t", "hold", {})
    process = {"pid": gone.pid, "born": "1"}
    begun = {"state": "running", "message": "starting"} | (
        {"starter": process} if who == "starter" else process
    )
    (workspace.store.root / "jobs" / f"{record.id}.json").write_text(json.dumps(begun))
    status = jobs.status(workspace, record.id)
    assert status.state == "failed" and status.fault == runner.STOPPED_TEXT


def test_a_job_that_its_server_only_began_is_ended_by_no_signal_to_the_server(workspace):
    """Another server that cancels it must not take who starts it for the job."""
    server = subprocess.Popen(["sleep", "60"], start_new_session=True)
    record = workspace.add_job("t", "hold", {})
    begun = {"state": "running", "starter": {"pid": server.pid, "born": runner._start_ticks(server.pid)}}
    (workspace.store.root / "jobs" / f"{record.id}.json").write_text(json.dumps(begun))
    assert jobs.status(workspace, record.id).state == "running"
    jobs.cancel(workspace, record.id)
    assert server.poll() is None
    server.kill()
    server.wait()
    assert jobs.status(workspace, record.id).state == "cancelled"

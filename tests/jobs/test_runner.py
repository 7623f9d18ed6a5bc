"""Jobs: progress, results, faults, cancel and sudden death, each seen from outside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.workspace.job_child import own_jobs
from torchsplit_core import jobs
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.job_kinds import JobKind, JobParameters, RequestParameters
from torchsplit_core.telemetry.settings import FOLDER, MODE
from torchsplit_core.values import InputFault, InternalFault, Progress
from torchsplit_core.workspace.store import Store, Workspace


@dataclass(frozen=True)
class Number(JobParameters):
    n: int = 0


def good(workspace: Workspace, parameters: Number, progress: Progress) -> dict[str, Any]:
    progress(0.5, "half way")
    return {"double": parameters.n * 2}


def faulty(workspace: Workspace, parameters: Number, progress: Progress) -> None:
    raise InputFault("grid", "has the size 0", "Pass 1.")


def broken(workspace: Workspace, parameters: Number, progress: Progress) -> None:
    raise ZeroDivisionError("ours")


def endless(workspace: Workspace, parameters: Number, progress: Progress) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    progress(0.3, f"child {child.pid}")
    time.sleep(600)


KINDS = {
    name: JobKind(f"tests.jobs.test_runner:{name}", Number)
    for name in ("good", "faulty", "broken", "endless")
}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    own_jobs(monkeypatch, sys.modules[__name__])
    return Store(tmp_path).create("w")


def wait(workspace: Workspace, job: str, until: Any) -> jobs.JobStatus:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = jobs.status(workspace, job)
        if until(found):
            return found
        time.sleep(0.05)
    raise AssertionError(f"never happened: {jobs.status(workspace, job)}")


def ended(found: jobs.JobStatus) -> bool:
    return found.state != "running"


@pytest.mark.parametrize(("mode", "recorded"), [(None, True), ("file", True), ("off", False)])
def test_a_job_records_its_spans_in_the_store(workspace, monkeypatch, mode, recorded):
    if mode is None:
        monkeypatch.delenv(MODE, raising=False)
    else:
        monkeypatch.setenv(MODE, mode)
    monkeypatch.delenv(FOLDER, raising=False)
    job = jobs.start(workspace, "Double", "good", Number(21))
    assert wait(workspace, job, ended).state == "done"
    tree = jobs.job_spans(workspace, job)
    if not recorded:
        assert tree is None
        return
    (node,) = tree.nodes
    assert (node.span.name, node.span.attribute("torchsplit.job")) == ("torchsplit.job", job)


def test_a_job_gives_its_result(workspace):
    job = jobs.start(workspace, "Double", "good", Number(21))
    found = wait(workspace, job, ended)
    assert (found.state, found.result, found.fault, found.share) == ("done", {"double": 42}, None, 1.0)
    assert [entry.id for entry in jobs.statuses(Store(workspace.store.root).open(workspace.id))] == [job]


def test_a_users_fault_arrives_as_its_message(workspace):
    found = wait(workspace, jobs.start(workspace, "Bad", "faulty", Number()), ended)
    assert found.state == "failed"
    assert found.fault == "grid: has the size 0. Pass 1."


def test_our_fault_is_said_without_a_traceback(workspace):
    found = wait(workspace, jobs.start(workspace, "Broken", "broken", Number()), ended)
    assert found.state == "failed"
    assert (
        found.fault is not None
        and "ZeroDivisionError: ours" in found.fault
        and "Traceback" not in found.fault
    )


def running_child(found: jobs.JobStatus) -> bool:
    return found.message.startswith("child ")


def gone(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return not path.exists() or path.read_text().rpartition(")")[2].split()[0] == "Z"


def test_cancel_ends_the_job_and_its_children(workspace):
    job = jobs.start(workspace, "Endless", "endless", Number())
    child = int(wait(workspace, job, running_child).message.split()[1])
    jobs.cancel(workspace, job)
    assert jobs.status(workspace, job).state == "cancelled"
    deadline = time.monotonic() + 60
    while not gone(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(child)
    jobs.cancel(workspace, job)
    assert jobs.status(workspace, job).state == "cancelled"


def test_a_killed_job_is_told_as_stopped(workspace):
    job = jobs.start(workspace, "Endless", "endless", Number())
    child = int(wait(workspace, job, running_child).message.split()[1])
    pid = runner._read(workspace.store, job)["pid"]
    os.kill(pid, signal.SIGKILL)
    found = wait(workspace, job, ended)
    os.kill(child, signal.SIGKILL)
    assert found.state == "failed"
    assert found.fault is not None and "Start it again" in found.fault


def test_a_job_killed_as_it_was_asked_to_end_is_cancelled_before_that_is_noted(workspace):
    job = jobs.start(workspace, "Endless", "endless", Number())
    child = int(wait(workspace, job, running_child).message.split()[1])
    runner._cancel_path(workspace.store, job).touch()
    os.kill(runner._read(workspace.store, job)["pid"], signal.SIGKILL)
    status = wait(workspace, job, ended)
    os.kill(child, signal.SIGKILL)
    assert (status.state, status.fault, status.message) == ("cancelled", None, "cancelled")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stored", "words"),
    [
        (
            "good",
            {"n": "many"},
            "parameters of the stored good job: n: is 'many', but input should be a valid integer",
        ),
        ("good", {"m": 1}, "parameters of the stored good job: m: is not a known parameter"),
        ("good", [1], "are [1], not a JSON object"),
        ("torchsplit_core.workflow:fly_job", {}, "is of a kind that this TorchSplit does not know"),
    ],
)
def test_what_was_stored_and_cannot_be_read_is_told_without_a_traceback(workspace, name, stored, words):
    record = workspace.add_job("t", name, stored)
    with pytest.raises(InputFault, match=re.escape(words)):
        jobs.resume(workspace, record.id)
    command = [sys.executable, "-m", runner.CHILD_MODULE, workspace.store.root, workspace.id, record.id]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    found = jobs.status(workspace, record.id)
    assert found.state == "failed" and words in str(found.fault) and "Traceback" not in str(found.fault)


def test_parameters_of_another_kind_start_nothing(workspace):
    with pytest.raises(InternalFault, match="takes Number"):
        jobs.start(workspace, "t", "good", RequestParameters("r"))
    assert workspace.job_records() == ()


def test_an_unknown_job_is_refused(workspace):
    with pytest.raises(InputFault, match="is not in this workspace"):
        jobs.status(workspace, "nope")

"""Jobs forked from a process that is ready: what they are told and leave behind, and what is without it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.workspace.job_child import own_jobs
from torchsplit_core import jobs
from torchsplit_core.isolation.trust_policy import EXECUTION_VARIABLE as EXECUTION
from torchsplit_core.jobs import fork_server
from torchsplit_core.jobs.job_kinds import JobKind, JobParameters
from torchsplit_core.values import Progress
from torchsplit_core.workspace.store import Store, Workspace


@dataclass(frozen=True)
class Nothing(JobParameters):
    pass


def about(workspace: Workspace, parameters: Nothing, progress: Progress) -> dict[str, Any]:
    """What a job finds itself to be."""
    print("printed by the job")
    return {
        "parent": os.getppid(),
        "session": os.getsid(0) == os.getpid(),
        "loaded": "torchsplit_core.planning.explanation.explain" in sys.modules,
        "told": {name: os.environ.get(name) for name in (EXECUTION, "LATER")},
    }


KINDS = {"about": JobKind("tests.jobs.test_fork_server:about", Nothing)}


@pytest.fixture
def forker(monkeypatch: pytest.MonkeyPatch) -> Iterator[fork_server.ForkServer]:
    monkeypatch.setattr(fork_server, "_servers", [])
    own_jobs(monkeypatch, sys.modules[__name__])
    jobs.prepare()
    (made,) = fork_server._servers
    jobs.prepare()
    assert fork_server._servers == [made]
    yield made
    made.end()


def ended(workspace: Workspace) -> jobs.JobStatus:
    job = jobs.start(workspace, "About itself", "about", Nothing())
    deadline = time.monotonic() + 120
    while (found := jobs.status(workspace, job)).state == "running":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert jobs.log(workspace, job) == "printed by the job\n"
    return found


@pytest.mark.slow
def test_a_job_is_forked_where_that_is_ready_and_started_where_not(forker, tmp_path, monkeypatch):
    workspace = Store(tmp_path).create("w")
    forker.wait()
    # A child has the thread that forks it alone: what another one holds would be held for ever.
    assert len(list(Path(f"/proc/{forker.process.pid}/task").iterdir())) == 1
    # What the server is told later, the process that forks was not.
    monkeypatch.setenv("LATER", "yes")
    for allowed in ("allowed", "refused"):
        monkeypatch.setenv(EXECUTION, allowed)
        found = ended(workspace)
        assert found.state == "done"
        assert found.result == {
            "parent": forker.process.pid,
            "session": True,
            "loaded": True,
            "told": {EXECUTION: allowed, "LATER": "yes"},
        }
    forker.process.kill()
    forker.process.wait()
    found = ended(workspace)
    assert found.state == "done"
    assert (found.result["parent"], found.result["loaded"]) == (os.getpid(), False)

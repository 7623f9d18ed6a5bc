"""Profiling as a job and as a command: killed and gone on with, side by side, joined, refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from torchsplit_core import jobs
from torchsplit_core.files import read_file
from torchsplit_core.profile_run import cells, profile, profile_job
from torchsplit_core.storage import Store, Workspace
from torchsplit_core.values import InputFault, ignore_progress

ROOT = Path(__file__).resolve().parents[2]
JOB = "torchsplit_core.workflow:profile_job"
SLOW = """
import time
import torch
from torch import nn

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, 4)

    def forward(self, x):
        if not torch.compiler.is_compiling():
            open(RUNS, "a").write(f"{x.shape[0]}\\n")
            if x.shape[0] > 1:
                time.sleep(0.25)
        return torch.relu(self.inner(x))

class Client:
    batch_sizes = (1, 2)
    def get_model(self):
        return Slow()
    def get_example_inputs(self, batch_size):
        return (torch.randn(batch_size, WIDTH),)
"""


def slow_model(folder: Path, width: int = 4) -> str:
    """A model that takes a quarter of a second at every batch but 1, and adds a line a run to `runs.txt`."""
    return SLOW.replace("RUNS", repr(str(folder / "runs.txt"))).replace("WIDTH", str(width))


def runs(folder: Path) -> list[str]:
    file = folder / "runs.txt"
    return file.read_text().split() if file.exists() else []


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Store(tmp_path / "store").create("w")
    made.put_bytes("upload", "slow.py", slow_model(tmp_path).encode())
    return made


PARAMETERS = {
    "source": "slow.py:Client", "upload": "slow.py", "trust": True, "device": "cpu",
    "batch_sizes": [1, 2, 3, 4, 5, 6], "point_budget_s": 0.5,
}  # fmt: skip


def wait(until: Any, seconds: float = 90) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = until()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("never happened")


def processes_of(folder: Path) -> list[str]:
    """Processes that name the folder on their command line."""
    found = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True, check=False)
    return found.stdout.split()


def states(workspace: Workspace) -> list[str]:
    return [cell.state for cell in cells(workspace, PARAMETERS)]


def test_a_job_that_was_killed_goes_on_without_measuring_twice(workspace: Workspace, tmp_path: Path) -> None:
    job = jobs.start(workspace, "Profile", JOB, PARAMETERS)
    wait(lambda: states(workspace).count("measured") >= 2)
    pid = json.loads((workspace.store.root / "jobs" / f"{job}.json").read_text())["pid"]
    os.killpg(pid, signal.SIGKILL)
    wait(lambda: jobs.status(workspace, job).state == "failed")
    assert "stopped before it was done" in str(jobs.status(workspace, job).fault)
    # The measuring child is in a group of its own, and dies with its parent.
    wait(lambda: not processes_of(workspace.store.root))
    done = [cell.batch_size for cell in cells(workspace, PARAMETERS) if cell.state == "measured"]
    assert 2 <= len(done) < 6 and workspace.artifacts("profile") == ()
    before = runs(tmp_path)

    again = jobs.start(workspace, "Profile", JOB, PARAMETERS)
    wait(lambda: jobs.status(workspace, again).state == "done")
    later = runs(tmp_path)[len(before) :]
    for batch in done:
        # A measurement takes three runs at least; an export may run the model once at its batch.
        assert later.count(str(batch)) <= (1 if batch == 2 else 0)
    result = workspace.get("profile", "slow.py:Client")
    measured = [row for row in result.rows if row.basis == "measured"]
    assert [row.batch_size for row in measured] == [1, 2, 3, 4, 5, 6]
    assert states(workspace) == ["measured"] * 6


def test_a_command_that_was_killed_goes_on_without_measuring_twice(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(slow_model(tmp_path))
    command = [
        *(sys.executable, "-m", "torchsplit_core", "profile", "slow.py:Client", "--trust", "--device", "cpu"),
        *("--batch-sizes", "1,2,3,4,5", "--point-budget", "0.5", "--gpu-types", "A30-24GB", "-o", "p.json"),
    ]
    environment = os.environ | {"TORCHSPLIT_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=-3, start_new_session=True)
    wait(lambda: "3" in runs(tmp_path))
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    time.sleep(0.5)
    before = runs(tmp_path)
    assert not (tmp_path / "p.json").exists()
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    later = runs(tmp_path)[len(before) :]
    assert "1" not in later and later.count("2") <= 1 and "5" in later
    assert "points were measured before" in done.stderr
    found = read_file(tmp_path / "p.json")[1]
    assert [row.batch_size for row in found.rows if row.basis == "measured"] == [1, 2, 3, 4, 5]
    anew = subprocess.run(
        [*command, "--again"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert anew.returncode == 0 and "measured before" not in anew.stderr
    assert "1" in runs(tmp_path)[len(before) + len(later) :]


def test_a_cancelled_job_keeps_its_points(workspace: Workspace) -> None:
    job = jobs.start(workspace, "Profile", JOB, PARAMETERS)
    wait(lambda: "measured" in states(workspace))
    jobs.cancel(workspace, job)
    assert jobs.status(workspace, job).state == "cancelled"
    kept = states(workspace)
    assert "measured" in kept and "open" in kept


def test_two_jobs_for_one_profile_measure_every_point_once(workspace: Workspace, tmp_path: Path) -> None:
    parameters = PARAMETERS | {"batch_sizes": [1, 3]}
    started = [jobs.start(workspace, "Profile", JOB, parameters) for _ in range(2)]
    for job in started:
        wait(lambda job=job: jobs.status(workspace, job).state == "done")
    # Three runs of 0.25 s end to end at batch 3, where one repeat is long and warm-up takes the rest.
    found = workspace.get("profile", "slow.py:Client")
    assert [row.batch_size for row in found.rows if row.basis == "measured"] == [1, 3]
    taken = [cell.kept for cell in cells(workspace, parameters)]
    assert all(moment is not None for moment in taken)
    alone = Store(tmp_path / "other").create("w")
    alone.put_bytes("upload", "slow.py", slow_model(tmp_path).encode())
    both = runs(tmp_path).count("3")
    profile_job(alone, parameters, ignore_progress)
    assert runs(tmp_path).count("3") - both >= both - 1


def test_again_measures_anew_and_replaces(workspace: Workspace) -> None:
    parameters = PARAMETERS | {"batch_sizes": [1]}
    profile_job(workspace, parameters, ignore_progress)
    (old,) = cells(workspace, parameters)
    since = time.time()
    assert cells(workspace, parameters | {"again_since": since})[0].state == "open"
    profile_job(workspace, parameters | {"again_since": since}, ignore_progress)
    (new,) = cells(workspace, parameters)
    assert old.kept is not None and new.kept is not None and new.kept > since > old.kept


def test_points_of_an_older_run_stay_in_the_profile(workspace: Workspace) -> None:
    for batches in ([1], [2]):
        profile_job(workspace, PARAMETERS | {"batch_sizes": batches}, ignore_progress)
    found = workspace.get("profile", "slow.py:Client")
    assert [row.batch_size for row in found.rows if row.basis == "measured"] == [1, 2]


def test_points_of_another_architecture_go(workspace: Workspace, tmp_path: Path) -> None:
    profile_job(workspace, PARAMETERS | {"batch_sizes": [1]}, ignore_progress)
    workspace.put_bytes("upload", "slow.py", slow_model(tmp_path, width=8).encode())
    profile_job(workspace, PARAMETERS | {"batch_sizes": [2], "trace_again": True}, ignore_progress)
    found = workspace.get("profile", "slow.py:Client")
    assert [row.batch_size for row in found.rows if row.basis == "measured"] == [2]


def test_one_model_that_fails_leaves_the_others(workspace: Workspace) -> None:
    workspace.put_bytes("upload", "bad.py", b"raise ValueError('no')")
    parameters = {
        "sources": ["bad.py:Client", "slow.py:Client"],
        "uploads": {f"{name}:Client": {"upload": name, "trust": True} for name in ("bad.py", "slow.py")},
        "device": "cpu", "batch_sizes": [1], "point_budget_s": 0.02,
    }  # fmt: skip
    heard: list[str] = []
    with pytest.raises(InputFault, match="1 of 2") as fault:
        profile_job(workspace, parameters, lambda share, text: heard.append(text))
    assert "bad.py" in str(fault.value) and "The others are stored" in str(fault.value)
    assert [found.name for found in workspace.artifacts("profile")] == ["slow.py:Client"]
    assert any(text.startswith("slow.py:Client · ") for text in heard)


def test_a_device_that_is_not_here_is_refused_before_anything_runs(
    workspace: Workspace, tmp_path: Path
) -> None:
    with pytest.raises(InputFault, match="device"):
        profile_job(workspace, PARAMETERS | {"device": "mig"}, ignore_progress)
    assert runs(tmp_path) == []


def test_a_profile_without_a_store_measures_and_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(slow_model(tmp_path))
    _, found = profile(
        f"{tmp_path}/slow.py:Client", device="cpu", batch_sizes=(1,), trust=True, gpu_types=["A30-24GB"]
    )
    assert {row.basis for row in found.rows} == {"measured", "estimated"}
    assert found.environment["devices"]["cpu"]["taken_over"] == []

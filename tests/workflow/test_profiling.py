"""Profiling as a job and as a command: killed and gone on with, side by side, joined, refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchsplit_core import jobs
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file
from torchsplit_core.graph import annotate_with_profiling_data
from torchsplit_core.graph.architecture import former_architecture_hash
from torchsplit_core.jobs.job_kinds import PROFILE, ProfileParameters, UploadedFile
from torchsplit_core.jobs.profile import profile_job, profile_points
from torchsplit_core.profiling import MeasurementSettings
from torchsplit_core.values import InputFault, ignore_progress
from torchsplit_core.workflow.profiling import profile
from torchsplit_core.workspace.store import Store, Workspace

pytestmark = pytest.mark.torch

MODEL = """
import time
from pathlib import Path
import torch
from torch import nn

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, 4)

    def forward(self, x):
        if not torch.compiler.is_compiling():
            open(FOLDER + "/runs.txt", "a").write(f"{x.shape[0]}\\n")
            if x.shape[0] == 3:
                time.sleep(0.1)
                while Path(FOLDER + "/hold").exists():
                    time.sleep(0.02)
        return torch.relu(self.inner(x))

class Client:
    batch_sizes = (1, 2)
    def get_model(self):
        return Slow()
    def get_example_inputs(self, batch_size):
        return (torch.randn(batch_size, WIDTH),)
"""
HELD = 3
"""The batch size at which the model takes a tenth of a second, and as long as there is a file `hold`."""


def slow_model(folder: Path, width: int = 4) -> str:
    """A model that adds a line a run to `runs.txt`."""
    return MODEL.replace("FOLDER", repr(str(folder))).replace("WIDTH", str(width))


def runs(folder: Path) -> list[str]:
    file = folder / "runs.txt"
    return file.read_text().split() if file.exists() else []


@pytest.fixture(autouse=True, scope="module")
def without_isolation() -> Iterator[None]:
    """The model counts its runs in a file elsewhere and waits for another, which isolation would keep from it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHSPLIT_ISOLATION", "limits")
        yield


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Workspace:
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "allowed")
    made = Store(tmp_path / "store").create("w")
    made.put_bytes("upload", "slow.py", slow_model(tmp_path).encode())
    return made


@pytest.fixture
def hold(tmp_path) -> Path:
    """While it exists a measurement stands at its third batch size."""
    file = tmp_path / "hold"
    file.touch()
    return file


SOURCE = "slow.py:Client"
PARAMETERS = ProfileParameters((SOURCE,), "cpu", (1, 2, 3, 4), point_budget_s=0.1)
ALL = (1, 2, 3, 4)


def trusting(workspace: Workspace, **changed: Any) -> ProfileParameters:
    """The parameters of a job whose user trusts the upload as it is now."""
    digests = {item.name: item.sha256 for item in workspace.artifacts("upload")}
    uploads = {SOURCE: UploadedFile("slow.py", digests["slow.py"])}
    return replace(PARAMETERS, uploads=uploads, **changed)


def wait(until: Any, seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = until()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("never happened")


def done(workspace: Workspace) -> tuple[int, ...]:
    """The batch sizes whose points are kept."""
    return tuple(
        cell.batch_size for cell in profile_points(workspace, PARAMETERS) if cell.state == "measured"
    )


def kept(home: Path) -> tuple[int, ...]:
    """The batch sizes of the points that any measurement kept in a store."""
    if not (home / "workspaces.sqlite").exists():
        return ()
    with Store(home).connect() as database:
        found = database.execute("SELECT batch_size FROM points WHERE kind = 'batch' ORDER BY batch_size")
        return tuple(batch for (batch,) in found)


def means(home: Path) -> dict[int, float]:
    """Of each point in a store the mean of its runs, ms: measured twice it would be another."""
    with Store(home).connect() as database:
        found = database.execute("SELECT batch_size, content FROM points WHERE kind = 'batch'")
        return {batch: json.loads(content)["mean_ms"] for batch, content in found}


def lives(process: int) -> bool:
    """Whether the process runs; one that nobody has reaped does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(process: int) -> None:
    """Kill a measurement. Its child, in a group of its own, dies with it."""
    found = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=False)
    children = list(map(int, found.stdout.split()))
    assert children
    os.killpg(process, signal.SIGKILL)
    wait(lambda: not any(map(lives, [process, *children])))


@pytest.mark.repeated
def test_a_job_that_was_killed_goes_on_without_measuring_twice(workspace, tmp_path, hold):
    job = jobs.start(workspace, "Profile", PROFILE, trusting(workspace))
    wait(lambda: str(HELD) in runs(tmp_path) and len(done(workspace)) == 2)
    kill(json.loads((workspace.store.root / "jobs" / f"{job}.json").read_text())["pid"])
    wait(lambda: jobs.status(workspace, job).state == "failed")
    assert "stopped before it was done" in str(jobs.status(workspace, job).fault)
    assert done(workspace) == (1, 2) and workspace.artifacts("profile") == ()
    before, timed = runs(tmp_path), means(workspace.store.root)

    hold.unlink()
    again = jobs.start(workspace, "Profile", PROFILE, trusting(workspace))
    wait(lambda: jobs.status(workspace, again).state == "done")
    later = runs(tmp_path)[len(before) :]
    # What a process holds is told of every point when all are done; its runs are no others' figures.
    assert {batch: means(workspace.store.root)[batch] for batch in (1, 2)} == timed
    assert {"3", "4"} <= set(later)
    result = workspace.get("profile", "slow.py:Client")
    sizes = tuple(row.batch_size for row in result.rows if row.basis == "measured")
    assert sizes == done(workspace) == ALL


@pytest.mark.repeated
def test_a_command_that_was_killed_goes_on_without_measuring_twice(tmp_path, hold, monkeypatch, capsys):
    (tmp_path / "slow.py").write_text(slow_model(tmp_path))
    home = tmp_path / "home"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHSPLIT_HOME", str(home))
    command = (
        *("profile", "slow.py:Client", "--trust", "--device", "cpu"),
        *("--batch-sizes", "1,2,3,4", "--point-budget", "0.1", "--gpu-types", "A30-24GB", "-o", "p.json"),
    )
    first = subprocess.Popen(
        [sys.executable, "-m", "torchsplit_core", *command], stderr=subprocess.DEVNULL, start_new_session=True
    )
    # A point is told before the next begins, but it may not be kept yet.
    wait(lambda: str(HELD) in runs(tmp_path) and kept(home) == (1, 2))
    kill(first.pid)
    first.wait()
    before, timed = runs(tmp_path), means(home)
    assert kept(home) == (1, 2) and not (tmp_path / "p.json").exists()

    # Only what is killed needs a process of its own.
    hold.unlink()
    assert main(command) == 0
    later = runs(tmp_path)[len(before) :]
    assert {batch: means(home)[batch] for batch in (1, 2)} == timed and {"3", "4"} <= set(later)
    assert "2 points were measured before" in capsys.readouterr().err
    found = read_file(tmp_path / "p.json")[1]
    assert tuple(row.batch_size for row in found.rows if row.basis == "measured") == ALL
    assert main((*command, "--batch-sizes", "1", "--again")) == 0
    assert "measured before" not in capsys.readouterr().err
    assert "1" in runs(tmp_path)[len(before) + len(later) :]


def test_a_cancelled_job_keeps_its_points(workspace, hold):
    job = jobs.start(workspace, "Profile", PROFILE, trusting(workspace))
    wait(lambda: len(done(workspace)) == 2)
    jobs.cancel(workspace, job)
    assert jobs.status(workspace, job).state == "cancelled"
    assert done(workspace) == (1, 2)


@pytest.mark.repeated
def test_two_jobs_for_one_profile_measure_every_point_once(workspace, tmp_path):
    parameters = trusting(workspace, batch_sizes=(1, HELD))
    started = [jobs.start(workspace, "Profile", PROFILE, parameters) for _ in range(2)]
    for job in started:
        wait(lambda job=job: jobs.status(workspace, job).state == "done")
    found = workspace.get("profile", "slow.py:Client")
    assert [row.batch_size for row in found.rows if row.basis == "measured"] == [1, HELD]
    taken = [cell.kept for cell in profile_points(workspace, parameters)]
    assert all(moment is not None for moment in taken)
    # Runs as long as the budget need no warm-up: beside those timed there is the one that looks at memory, and the
    # few of the process that tells what it holds.
    timed = next(row.percentiles_ms for row in found.rows if row.batch_size == HELD)
    assert timed is not None and timed.runs <= runs(tmp_path).count(str(HELD)) <= timed.runs + 2 + 5


@pytest.fixture(scope="module")
def measured_store(tmp_path_factory) -> Path:
    """A store whose one workspace has the model measured at batch 1."""
    folder = tmp_path_factory.mktemp("measured")
    made = Store(folder / "store").create("w")
    made.put_bytes("upload", "slow.py", slow_model(folder).encode())
    profile_job(made, trusting(made, batch_sizes=(1,)), ignore_progress)
    return folder / "store"


@pytest.fixture
def measured(measured_store, tmp_path) -> Workspace:
    """That workspace in a store of the test's own."""
    store = Store(shutil.copytree(measured_store, tmp_path / "measured"))
    return store.open(store.workspaces()[0].id)


def test_again_measures_anew_and_replaces(measured):
    parameters = trusting(measured, batch_sizes=(1,))
    (old,) = profile_points(measured, parameters)
    since = time.time()
    assert profile_points(measured, replace(parameters, again_since=since))[0].state == "open"
    profile_job(measured, replace(parameters, again_since=since), ignore_progress)
    (new,) = profile_points(measured, parameters)
    assert old.kept is not None and new.kept is not None and new.kept > since > old.kept


def test_points_of_an_older_run_stay_in_the_profile(measured):
    profile_job(measured, trusting(measured, batch_sizes=(2,)), ignore_progress)
    found = measured.get("profile", "slow.py:Client")
    assert [row.batch_size for row in found.rows if row.basis == "measured"] == [1, 2]


def test_points_of_another_architecture_go(measured, tmp_path):
    measured.put_bytes("upload", "slow.py", slow_model(tmp_path, width=8).encode())
    profile_job(measured, trusting(measured, batch_sizes=(2,), trace_again=True), ignore_progress)
    found = measured.get("profile", "slow.py:Client")
    assert [row.batch_size for row in found.rows if row.basis == "measured"] == [2]


def test_a_graph_of_the_version_before_is_traced_anew_and_its_points_are_never_taken_over(measured):
    graph, old = measured.get("graph", SOURCE), measured.get("profile", SOURCE)
    former = former_architecture_hash(graph)
    # The store as the version before left it: the hash without arguments in graph, profile and points.
    nodes = tuple(replace(node, arguments={}) for node in graph.nodes)
    measured.put("graph", SOURCE, replace(graph, nodes=nodes, architecture_hash=former))
    measured.put("profile", SOURCE, replace(old, architecture_hash=former))
    with measured.store.connect() as database:
        database.execute("UPDATE points SET architecture_hash = ?", (former,))
    opened = measured.get("graph", SOURCE)
    assert annotate_with_profiling_data(opened, measured.get("profile", SOURCE)).metadata
    parameters = trusting(measured, batch_sizes=(1, 2, 3))
    found = profile_points(measured, parameters)
    assert [(cell.batch_size, cell.state, cell.old) for cell in found] == [
        (1, "open", True), (2, "open", False), (3, "open", False)
    ]  # fmt: skip
    profile_job(measured, trusting(measured, batch_sizes=(1,)), ignore_progress)
    assert measured.get("graph", SOURCE) == graph
    new = measured.get("profile", SOURCE)
    assert new.architecture_hash == graph.architecture_hash
    assert new.environment["taken_over"] == 0 and new.environment["old_points"] == 1
    assert [(cell.state, cell.old) for cell in profile_points(measured, parameters)] == [
        ("measured", True), ("open", False), ("open", False)
    ]  # fmt: skip
    with measured.store.connect() as database:
        rows = database.execute("SELECT architecture_hash FROM points WHERE kind = 'batch'").fetchall()
    assert sorted(rows) == sorted([(former,), (graph.architecture_hash,)])


def test_one_model_that_fails_leaves_the_others(measured):
    measured.put_bytes("upload", "bad.py", b"raise ValueError('no')")
    uploads = {
        f"{item.name}:Client": UploadedFile(item.name, item.sha256) for item in measured.artifacts("upload")
    }
    parameters = ProfileParameters(
        ("bad.py:Client", SOURCE), "cpu", (2,), point_budget_s=0.02, uploads=uploads
    )
    heard = []
    with pytest.raises(InputFault, match="1 of 2") as fault:
        profile_job(measured, parameters, lambda share, text: heard.append(text))
    assert "bad.py" in str(fault.value) and "the others are stored" in str(fault.value)
    assert [artifact.name for artifact in measured.artifacts("profile")] == ["slow.py:Client"]
    found = measured.get("profile", "slow.py:Client")
    assert [row.batch_size for row in found.rows if row.basis == "measured"] == [1, 2]
    assert any(text.startswith("slow.py:Client · ") for text in heard)


def test_a_device_that_is_not_here_is_refused_before_anything_runs(workspace, tmp_path):
    with pytest.raises(InputFault, match="device"):
        profile_job(workspace, trusting(workspace, device="mig"), ignore_progress)
    assert runs(tmp_path) == []


def test_a_profile_without_a_store_measures_and_keeps_nothing(tmp_path):
    (tmp_path / "slow.py").write_text(slow_model(tmp_path))
    _, found = profile(
        f"{tmp_path}/slow.py:Client", device="cpu", batch_sizes=(1,), trust=True, gpu_types=["A30-24GB"],
        settings=MeasurementSettings(point_budget_s=0.02),
    )  # fmt: skip
    assert {row.basis for row in found.rows} == {"measured", "estimated"}
    assert found.environment["devices"]["cpu"]["taken_over"] == []

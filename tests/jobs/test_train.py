"""Training runs as jobs of a workspace."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.paths import ROOT
from tests.support.training.folders import left_folder
from tests.support.training.runs import strategy
from torchsplit_core import jobs
from torchsplit_core.isolation.trust_policy import EXECUTION_VARIABLE
from torchsplit_core.jobs import quick_start
from torchsplit_core.jobs.job_kinds import (
    TRAIN,
    RunHereParameters,
    TraceParameters,
    TrainOnParameters,
    TrainParameters,
    UploadedFile,
    to_stored,
)
from torchsplit_core.jobs.trace import trace_job
from torchsplit_core.jobs.train import train_job, train_on_job
from torchsplit_core.training.monitor import RunReader
from torchsplit_core.training.stored_runs import RUNS_SETTING
from torchsplit_core.values import InputFault, ignore_progress
from torchsplit_core.values.strategy.run import RunOptions
from torchsplit_core.workspace.store import Store, Workspace

assert torch.distributed.is_available()
CLIENT = (ROOT / "tests" / "support" / "training" / "client.py").read_bytes()
WAIT_S = 120.0
DIGEST = hashlib.sha256(CLIENT).hexdigest()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """With an upload, and a run of that name."""
    made = Store(tmp_path / "home").create("training")
    made.put_bytes("upload", "client.py", CLIENT)
    made.set_setting(RUNS_SETTING, [{"name": "client-1", "path": None}])
    return made


def parameters(digest: str | None, **how: Any) -> TrainParameters:
    plan = strategy(optimizer="adamw", micro_batch=8)
    return TrainParameters(
        "client-1",
        "client.py:client",
        plan,
        RunOptions(**{"steps": 2, **how}),
        UploadedFile("client.py", digest),
    )


@pytest.mark.repeated
def test_a_trusted_upload_is_trained_and_gone_on_with(workspace):
    assert train_job(workspace, parameters(DIGEST), ignore_progress)["step"] == 2
    told = train_on_job(
        workspace, TrainOnParameters("client-1", 4, UploadedFile("client.py", DIGEST)), ignore_progress
    )
    assert told["step"] == 4 and told["restarts"] == 0
    view = RunReader(workspace.runs / "client-1").view()
    assert (view.state, list(view.steps.step)) == ("finished", [1, 2, 3, 4])
    kinds = [event.kind for event in view.events if event.kind in ("started", "resumed")]
    assert kinds == ["started", "resumed"]


@pytest.mark.repeated
def test_a_step_of_a_run_is_a_model_of_the_workspace(workspace, tmp_path):
    """It is traced where the file that it was trained from is trusted, and only as the file that it was then."""
    assert train_job(workspace, parameters(DIGEST), ignore_progress)["step"] == 2
    source = "run:client-1@step-2"
    asked = TraceParameters(source, UploadedFile("client.py", DIGEST))
    assert trace_job(workspace, asked, ignore_progress)["graph"] == source
    graph = workspace.get("graph", source)
    assert any("blocks.1" in (node.module or "") for node in graph.nodes)
    with pytest.raises(InputFault, match="is not trusted, and a"):
        trace_job(workspace, TraceParameters(source, UploadedFile("client.py")), ignore_progress)
    with pytest.raises(InputFault, match="neither a sample nor an upload"):
        trace_job(workspace, TraceParameters(source), ignore_progress)
    with pytest.raises(InputFault, match="client-1: has no checkpoint of step 1: it holds step 2"):
        trace_job(workspace, replace(asked, source="run:client-1@step-1"), ignore_progress)
    with pytest.raises(InputFault, match="'gone' is not in this workspace"):
        trace_job(workspace, replace(asked, source="run:gone@step-1"), ignore_progress)
    changed = CLIENT + b"\n"
    workspace.put_bytes("upload", "client.py", changed)
    digest = hashlib.sha256(changed).hexdigest()
    with pytest.raises(
        InputFault, match=r"client-1@step-2: was trained from another content of 'client\.py'"
    ):
        trace_job(workspace, TraceParameters(source, UploadedFile("client.py", digest)), ignore_progress)
    # A run that lies elsewhere has neighbours that nobody trusted beside its file.
    shutil.copytree(workspace.runs / "client-1", tmp_path / "elsewhere")
    shutil.copytree(workspace.runs / ".sources", tmp_path / ".sources")
    facts = json.loads((tmp_path / "elsewhere" / "run.json").read_text())
    facts["source"] = facts["source"].replace(str(workspace.runs), str(tmp_path))
    (tmp_path / "elsewhere" / "run.json").write_text(json.dumps(facts))
    workspace.put_bytes("upload", "client.py", CLIENT)
    workspace.set_setting(RUNS_SETTING, [{"name": "far", "path": str(tmp_path / "elsewhere")}])
    with pytest.raises(InputFault, match="was trained from another content"):
        trace_job(workspace, replace(asked, source="run:far@step-2"), ignore_progress)


@pytest.mark.repeated
def test_a_run_outlives_who_started_it(workspace):
    """A dashboard that ends, say: what is seen afterwards is what the folder says."""
    program = (
        "import json, pathlib, sys; from torchsplit_core import jobs; "
        "from torchsplit_core.jobs.job_kinds import TRAIN, from_stored; "
        "from torchsplit_core.workspace.store import Store; "
        "workspace = Store(pathlib.Path(sys.argv[1])).open(sys.argv[2]); "
        "jobs.start(workspace, 'Run client-1', TRAIN, from_stored(TRAIN, json.loads(sys.argv[3])))"
    )
    asked = json.dumps(to_stored(TRAIN, parameters(DIGEST, steps=3)))
    subprocess.run(
        [sys.executable, "-c", program, str(workspace.store.root), workspace.id, asked],
        check=True, cwd=ROOT, env=os.environ | {EXECUTION_VARIABLE: "allowed"},
    )  # fmt: skip
    (status,) = jobs.statuses(workspace)
    end = time.monotonic() + WAIT_S
    while jobs.status(workspace, status.id).state == "running":
        assert time.monotonic() < end
        time.sleep(0.2)
    assert jobs.status(workspace, status.id).state == "done", jobs.log(workspace, status.id)
    view = RunReader(workspace.runs / "client-1").view()
    assert (view.state, view.last_step) == ("finished", 3)


def test_what_is_not_trusted_is_not_executed(workspace, tmp_path, monkeypatch):
    with pytest.raises(InputFault, match="is not trusted, and a"):
        train_job(workspace, parameters(None), ignore_progress)
    with pytest.raises(InputFault, match="is not the file that was trusted"):
        train_job(workspace, parameters("0" * 64), ignore_progress)
    left_folder(tmp_path / "elsewhere", steps=5, wanted=9)
    workspace.set_setting(RUNS_SETTING, [{"name": "elsewhere-1", "path": str(tmp_path / "elsewhere")}])
    with pytest.raises(InputFault, match="not trusted"):
        train_on_job(workspace, TrainOnParameters("elsewhere-1"), ignore_progress)
    monkeypatch.setenv(EXECUTION_VARIABLE, "refused")
    with pytest.raises(InputFault, match="executes nothing"):
        train_job(workspace, parameters(DIGEST), ignore_progress)


def test_a_run_without_what_it_was_started_with_is_not_gone_on_with(workspace):
    left_folder(workspace.runs / "client-1")
    shutil.rmtree(workspace.runs / "client-1" / "watch")
    with pytest.raises(InputFault, match=r"launch\.json"):
        train_on_job(workspace, TrainOnParameters("client-1"), ignore_progress)
    with pytest.raises(InputFault, match="'gone-1' is not in this workspace"):
        train_on_job(workspace, TrainOnParameters("gone-1"), ignore_progress)
    with pytest.raises(InputFault, match="neither a sample nor an upload"):
        train_job(
            workspace, TrainParameters("client-1", "/etc/x.py:y", strategy(), RunOptions()), ignore_progress
        )


def test_a_launch_is_read_back_as_it_was(tmp_path):
    left_folder(tmp_path)
    view = RunReader(tmp_path).view()
    told = json.loads((tmp_path / "watch" / "launch.json").read_text())
    assert view.launch is not None and told["options"]["steps"] == view.launch.options.steps == 6
    assert view.launch.strategy.predicted is not None and view.launch.strategy.predicted.memory_gib == 1.5


@pytest.mark.repeated
def test_a_model_is_trained_planned_and_served_in_one_job(workspace, monkeypatch):
    """What its plan serves is the step that it was trained to; begun again it trains no step twice."""
    monkeypatch.setattr(quick_start, "DIGITS_STEPS", 3)
    workspace.set_setting(RUNS_SETTING, [{"name": "digits-1", "path": None}])
    asked = RunHereParameters("trained here", duration_s=1.0, run="digits-1")
    assert quick_start.here_job(workspace, asked, ignore_progress)["measurement"] == "trained here"
    (model,) = workspace.get("plan_request", "trained here").models
    assert (model.name, model.source) == ("digits-1", "run:digits-1@step-3")
    measured = workspace.get("measurement", "trained here").models[0]
    assert measured.errors == 0 and measured.measured_rps > 0
    before = RunReader(workspace.runs / "digits-1").view().events
    quick_start.here_job(workspace, asked, ignore_progress)
    assert RunReader(workspace.runs / "digits-1").view().events == before
    monkeypatch.setattr(quick_start, "DIGITS_STEPS", 5)
    quick_start.here_job(workspace, asked, ignore_progress)
    assert list(RunReader(workspace.runs / "digits-1").view().steps.step) == [1, 2, 3, 4, 5]

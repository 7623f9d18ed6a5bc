"""Nothing uploaded is executed where that is refused, and nothing but the content that was trusted anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.seeds import repeated
from torchsplit_core import jobs
from torchsplit_core.isolation.trust_policy import requests_trust, without_trust
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.job_kinds import (
    PROFILE,
    TRACE,
    JobParameters,
    ProfileParameters,
    TraceParameters,
    UploadedFile,
    to_stored,
)
from torchsplit_core.model_source import load_client
from torchsplit_core.stages.export_folder import open_manifest
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.store import Store, Workspace

pytestmark = pytest.mark.slow

OWN = b'raise SystemExit("executed: the owner\'s file")\n'
OTHER = b'raise SystemExit("executed: the other\'s file")\n'


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Store(tmp_path / "home").create("w")


def ended(workspace: Workspace, job: str) -> jobs.JobStatus:
    deadline = time.monotonic() + 120
    while (found := jobs.status(workspace, job)).state == "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def asked(form: str, name: str, digest: str) -> JobParameters:
    """The parameters of a job by which the owner had his file executed."""
    file = {"old": UploadedFile("m.py", trust=True), "new": UploadedFile("m.py", digest)}[form]
    if name == TRACE:
        return TraceParameters("m.py:Net", file)
    return ProfileParameters(("m.py:Net",), "cpu", uploads={"m.py:Net": file})


@repeated("name", [TRACE, PROFILE], kept=1)
@pytest.mark.torch
def test_the_trusted_content_is_executed_where_that_is_allowed(workspace, monkeypatch, name):
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "allowed")
    digest = workspace.put_bytes("upload", "m.py", OWN).sha256
    found = ended(workspace, jobs.start(workspace, "t", name, asked("new", name, digest)))
    assert "executed: the owner" in str(found.fault)


@repeated("name", [TRACE, PROFILE], kept=1)
@pytest.mark.parametrize(
    ("server", "form", "content", "rule"),
    [
        ("refused", "new", OWN, "this server executes nothing that was uploaded"),
        ("refused", "new", OTHER, "this server executes nothing that was uploaded"),
        ("refused", "old", OTHER, "this server executes nothing that was uploaded"),
        # Who was not told that it may, may not.
        (None, "new", OWN, "this server executes nothing that was uploaded"),
        ("allowed", "new", OTHER, "is not the file that was trusted"),
        ("allowed", "old", OTHER, "is not the file that was trusted"),
    ],
)
def test_a_job_that_is_started_again_executes_nothing_else(
    workspace, monkeypatch, name, server, form, content, rule
):
    parameters = asked(form, name, workspace.put_bytes("upload", "m.py", OWN).sha256)
    workspace.put_bytes("upload", "m.py", content)
    if server is None:
        monkeypatch.delenv("TORCHSPLIT_EXECUTION", raising=False)
    else:
        monkeypatch.setenv("TORCHSPLIT_EXECUTION", server)
    found = ended(workspace, jobs.start(workspace, "t", name, parameters))
    assert found.state == "failed"
    assert rule in str(found.fault) and "executed: the" not in str(found.fault)
    assert requests_trust(workspace.job_records()[0].parameters) is (server == "allowed")


@repeated("name", [TRACE, PROFILE])
def test_a_job_written_down_before_asks_again_inside(workspace, name):
    digest = workspace.put_bytes("upload", "m.py", OWN).sha256
    record = workspace.add_job("t", name, to_stored(name, asked("new", name, digest)))
    subprocess.run(
        [sys.executable, "-m", runner.CHILD_MODULE, workspace.store.root, workspace.id, record.id],
        env=os.environ | {"TORCHSPLIT_EXECUTION": "refused"},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    fault = str(jobs.status(workspace, record.id).fault)
    assert "this server executes nothing that was uploaded" in fault and "executed: the" not in fault


def test_the_child_that_would_load_a_file_refuses_it(tmp_path, monkeypatch):
    (tmp_path / "m.py").write_bytes(OWN)
    (tmp_path / "m.pt2").write_bytes(b"PK")
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "refused")
    for source in (f"{tmp_path}/m.py:Net", f"{tmp_path}/m.pt2"):
        with pytest.raises(InputFault, match="executes nothing that was uploaded"):
            load_client(source, trust=True)
    assert load_client("sample:diamond").batch_sizes


def test_parts_of_anothers_hand_are_refused_too(tmp_path, monkeypatch):
    example = ROOT / "examples" / "stages.json"
    (tmp_path / "stages.json").write_bytes(example.read_bytes().replace(b"sample:", b"net.py:"))
    assert open_manifest(tmp_path, trust=True).stages
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "refused")
    with pytest.raises(InputFault, match="executes nothing that was uploaded"):
        open_manifest(tmp_path, trust=True)


def test_trust_is_found_and_left_out_at_any_depth():
    parameters = {
        "a": 1,
        "uploads": {"m": {"upload": "m", "trusted_sha256": "00"}},
        "list": [{"trust": True}],
    }
    assert requests_trust(parameters)
    assert without_trust(parameters) == {"a": 1, "uploads": {"m": {"upload": "m"}}, "list": [{}]}
    assert not requests_trust(without_trust(parameters)) and not requests_trust({"trust": False})

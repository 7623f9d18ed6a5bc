"""Nothing uploaded is executed where that is refused, and nothing but the content that was trusted anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from torchsplit_core import jobs
from torchsplit_core.clients import load_client
from torchsplit_core.isolation.execution import asks_for_trust, without_trust
from torchsplit_core.stages.folder import open_manifest
from torchsplit_core.storage import Store, Workspace
from torchsplit_core.values import InputFault

OWN = b'raise SystemExit("executed: the owner\'s file")\n'
OTHER = b'raise SystemExit("executed: the other\'s file")\n'
TRACE, PROFILE = "torchsplit_core.workflow:trace_job", "torchsplit_core.workflow:profile_job"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Store(tmp_path / "home").create("w")


def ended(workspace: Workspace, job: str) -> jobs.JobStatus:
    deadline = time.monotonic() + 120
    while (found := jobs.status(workspace, job)).state == "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def asked(form: str, target: str, digest: str) -> dict[str, Any]:
    """The parameters of a job by which the owner had his file executed."""
    trust = {"old": {"trust": True}, "new": {"trusted_sha256": digest}}[form]
    if target == TRACE:
        return {"source": "m.py:Net", "upload": "m.py", **trust}
    return {"sources": ["m.py:Net"], "device": "cpu", "uploads": {"m.py:Net": {"upload": "m.py", **trust}}}


@pytest.mark.parametrize("target", [TRACE, PROFILE])
def test_the_trusted_content_is_executed_where_that_is_allowed(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "allowed")
    digest = workspace.put_bytes("upload", "m.py", OWN).sha256
    found = ended(workspace, jobs.start(workspace, "t", target, asked("new", target, digest)))
    assert "executed: the owner" in str(found.fault)


@pytest.mark.parametrize("target", [TRACE, PROFILE])
@pytest.mark.parametrize(
    ("server", "form", "content", "rule"),
    [
        ("refused", "new", OWN, "this server executes nothing that was uploaded"),
        ("refused", "new", OTHER, "this server executes nothing that was uploaded"),
        ("refused", "old", OTHER, "this server executes nothing that was uploaded"),
        # Who was not told that it may, may not.
        (None, "new", OWN, "this server executes nothing that was uploaded"),
        ("allowed", "new", OTHER, "the file is the one that was trusted"),
        ("allowed", "old", OTHER, "the file is the one that was trusted"),
    ],
)
def test_a_job_that_is_started_again_executes_nothing_else(
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    server: str | None,
    form: str,
    content: bytes,
    rule: str,
) -> None:
    parameters = asked(form, target, workspace.put_bytes("upload", "m.py", OWN).sha256)
    workspace.put_bytes("upload", "m.py", content)
    if server is None:
        monkeypatch.delenv("TORCHSPLIT_EXECUTION", raising=False)
    else:
        monkeypatch.setenv("TORCHSPLIT_EXECUTION", server)
    found = ended(workspace, jobs.start(workspace, "t", target, parameters))
    assert found.state == "failed"
    assert rule in str(found.fault) and "executed: the" not in str(found.fault)
    assert asks_for_trust(workspace.job_records()[0].parameters) is (server == "allowed")


@pytest.mark.parametrize("target", [TRACE, PROFILE])
def test_a_job_written_down_before_asks_again_inside(workspace: Workspace, target: str) -> None:
    digest = workspace.put_bytes("upload", "m.py", OWN).sha256
    record = workspace.add_job("t", target, asked("new", target, digest))
    subprocess.run(
        [sys.executable, "-m", "torchsplit_core.jobs", workspace.store.root, workspace.id, record.id],
        env=os.environ | {"TORCHSPLIT_EXECUTION": "refused"},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    fault = str(jobs.status(workspace, record.id).fault)
    assert "this server executes nothing that was uploaded" in fault and "executed: the" not in fault


def test_the_child_that_would_load_a_file_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.py").write_bytes(OWN)
    (tmp_path / "m.pt2").write_bytes(b"PK")
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "refused")
    for source in (f"{tmp_path}/m.py:Net", f"{tmp_path}/m.pt2"):
        with pytest.raises(InputFault, match="executes nothing that was uploaded"):
            load_client(source, trust=True)
    assert load_client("sample:diamond").batch_sizes


def test_parts_of_anothers_hand_are_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "stages.json"
    (tmp_path / "stages.json").write_bytes(example.read_bytes().replace(b"sample:", b"net.py:"))
    assert open_manifest(tmp_path, trust=True).stages
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "refused")
    with pytest.raises(InputFault, match="executes nothing that was uploaded"):
        open_manifest(tmp_path, trust=True)


def test_trust_is_found_and_left_out_at_any_depth() -> None:
    parameters = {
        "a": 1,
        "uploads": {"m": {"upload": "m", "trusted_sha256": "00"}},
        "list": [{"trust": True}],
    }
    assert asks_for_trust(parameters)
    assert without_trust(parameters) == {"a": 1, "uploads": {"m": {"upload": "m"}}, "list": [{}]}
    assert not asks_for_trust(without_trust(parameters)) and not asks_for_trust({"trust": False})

"""A measurement that is killed half-way goes on from the page, and measures nothing twice."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.app.page import button, said
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import PROFILE, ProfileParameters, UploadedFile
from torchsplit_core.jobs.profile import profile_points
from torchsplit_core.workspace.store import Workspace

pytestmark = pytest.mark.torch

MODEL = """
import time
from pathlib import Path
import torch
from torch import nn

class Held(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        if not torch.compiler.is_compiling() and x.shape[0] == 4:
            while Path(HOLD).exists():
                time.sleep(0.02)
        return torch.relu(self.inner(x))

class Client:
    batch_sizes = (1, 2)
    def get_model(self):
        return Held()
    def get_example_inputs(self, batch_size):
        return (torch.randn(batch_size, 4),)
"""
"""Stands at batch size 4 while a file exists."""
SOURCE = "held.py:Client"
# On a busy machine a size of which three runs may take longer than the budget is not tried at all.
PARAMETERS = ProfileParameters((SOURCE,), "cpu", (1, 2, 4), point_budget_s=1.0)
PATIENCE_S = 180.0


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


def measured(workspace: Workspace) -> dict[int, float | None]:
    """When each known point was measured."""
    return {
        cell.batch_size: cell.kept
        for cell in profile_points(workspace, PARAMETERS)
        if cell.state == "measured"
    }


@pytest.mark.repeated
def test_a_killed_measurement_goes_on_where_it_stood(page, workspace, tmp_path):
    hold = tmp_path / "hold"
    hold.touch()
    upload = workspace.put_bytes("upload", "held.py", MODEL.replace("HOLD", repr(str(hold))).encode())
    trusted = {SOURCE: UploadedFile("held.py", upload.sha256)}
    job = jobs.start(workspace, "Profile it", PROFILE, replace(PARAMETERS, uploads=trusted))
    wait_for(lambda: set(measured(workspace)) == {1, 2})
    state = workspace.store.root / "jobs" / f"{job}.json"
    os.killpg(json.loads(state.read_text())["pid"], signal.SIGKILL)
    wait_for(lambda: jobs.status(workspace, job).state == "failed")
    before = measured(workspace)
    assert set(before) == {1, 2}

    hold.unlink()
    found = page("profile", workspace)
    assert "Profile it failed. The work stopped before it was done" in said(found)
    button(found, "Resume").click().run()
    assert not found.exception
    newest = jobs.statuses(workspace)[0]
    assert newest.id != job and newest.title == "Profile it"
    wait_for(lambda: jobs.status(workspace, newest.id).state == "done")

    after = measured(workspace)
    assert set(after) == {1, 2, 4}
    assert {batch: after[batch] for batch in before} == before
    found.run()
    assert "3 rows measured" in said(found)
    assert "Resume" not in [element.label for element in found.button]

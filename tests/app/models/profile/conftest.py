"""The Profile page with what it starts and what it knows held fast."""

from __future__ import annotations

from typing import Any

import pytest

from app.models.profile.measuring import grid
from torchsplit_core import jobs
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.names import JobParameters
from torchsplit_core.jobs.profile import Cell
from torchsplit_core.workspace.store import Workspace


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Jobs that the page starts, written down instead of run."""
    found: list[tuple[str, Any]] = []

    def start(workspace: Workspace, title: str, name: str, parameters: JobParameters) -> str:
        found.append((title, parameters))
        return "job"

    for door in (jobs, runner):
        monkeypatch.setattr(door, "start", start)
    return found


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """What the store knows of every grid asked for."""
    found: list[Cell] = []
    monkeypatch.setattr(grid, "cells", lambda workspace, parameters: tuple(found))
    return found

"""The Profile page with what it starts and what it knows held fast."""

from typing import Any

import pytest

from app.models.profile.measuring import grid
from torchsplit_core import jobs
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.profile import ProfilePoint


@pytest.fixture
def started(monkeypatch) -> list[tuple[str, Any]]:
    """Jobs that the page starts, written down instead of run."""
    found = []

    def start(workspace, title, name, parameters):
        found.append((title, parameters))
        return "job"

    for door in (jobs, runner):
        monkeypatch.setattr(door, "start", start)
    return found


@pytest.fixture
def known(monkeypatch) -> list[ProfilePoint]:
    """What the store knows of every grid asked for."""
    found = []
    monkeypatch.setattr(grid, "profile_points", lambda workspace, parameters: tuple(found))
    return found

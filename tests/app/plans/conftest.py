"""A scenario with its plan."""

from __future__ import annotations

import pytest

from tests.support.app.values import request
from torchsplit_core import workflow
from torchsplit_core.workspace.store import Workspace


@pytest.fixture
def solved(workspace: Workspace) -> Workspace:
    """The scenario "review", really planned."""
    workspace.put("plan_request", "review", request())
    workspace.put("plan", "review", workflow.plan(request()))
    return workspace

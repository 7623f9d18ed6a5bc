"""A scenario with its plan."""

import pytest

from tests.support.app.page import put_plan
from tests.support.app.values import request
from torchsplit_core import workflow
from torchsplit_core.workspace.store import Workspace


@pytest.fixture
def solved(workspace) -> Workspace:
    """The scenario "review", really planned."""
    put_plan(workspace, request(), workflow.plan(request()))
    return workspace

"""The Place page as a user drives it."""

from typing import Any

from streamlit.testing.v1 import AppTest

from tests.support.paths import ROOT
from torchsplit_core.files import read_file
from torchsplit_core.jobs.job_kinds import RequestParameters
from torchsplit_core.jobs.place import place_job
from torchsplit_core.values import PlacementOutcome, PlacementRequest, ignore_progress
from torchsplit_core.workspace.store import Workspace

EXAMPLES = ROOT / "examples"


def example(name: str = "placement_request") -> PlacementRequest:
    found: PlacementRequest = read_file(EXAMPLES / f"{name}.json")[1]
    return found


def place_it(workspace: Workspace, name: str, request: PlacementRequest) -> PlacementOutcome:
    workspace.put("placement_request", name, request)
    place_job(workspace, RequestParameters(name), ignore_progress)
    found: PlacementOutcome = workspace.get("placement", name)
    return found


def number(page: AppTest, label: str) -> Any:
    return next(
        one for one in page.number_input if one.label == label and not str(one.key).startswith("place-")
    )

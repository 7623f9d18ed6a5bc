"""Placing as a job: the outcome beside its request, an edit meanwhile, what it tells, in and out of an archive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core import workflow
from torchsplit_core.files import read_file, write_text
from torchsplit_core.jobs.job_kinds import RequestParameters
from torchsplit_core.jobs.place import place_job
from torchsplit_core.values import PlacementOutcome, PlacementRequest, Progress, ignore_progress
from torchsplit_core.workspace.archive import export_workspace, import_workspace
from torchsplit_core.workspace.store import Store, Workspace

EXAMPLE = ROOT / "examples" / "placement_request.json"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Store(tmp_path).create("placements")
    made.put("placement_request", "tiny", read_file(EXAMPLE)[1])
    return made


def test_the_job_stores_the_outcome_with_the_request_it_answers(workspace):
    told: list[tuple[float, str]] = []
    found = place_job(workspace, RequestParameters("tiny"), lambda share, text: told.append((share, text)))
    assert found == {"placement": "tiny", "status": "optimal"}
    outcome: PlacementOutcome = workspace.get("placement", "tiny")
    assert outcome.throughput == pytest.approx(301.784)
    (request,) = workspace.artifacts("placement_request")
    assert workspace.setting("placement tiny answers") == request.sha256
    copied = import_workspace(workspace.store, export_workspace(workspace))
    assert copied.get("placement", "tiny") == outcome


def test_a_request_stored_in_version_1_stays_as_it_is_and_is_answered(workspace):
    request: PlacementRequest = workspace.get("placement_request", "tiny")
    old = write_text(request, 1).encode()
    sha256 = workspace.put_bytes("placement_request", "tiny", old).sha256
    assert workspace.get("placement_request", "tiny") == request
    place_job(workspace, RequestParameters("tiny"), ignore_progress)
    assert workspace.get_bytes("placement_request", "tiny") == old
    assert workspace.setting("placement tiny answers") == sha256
    copied = import_workspace(workspace.store, export_workspace(workspace))
    assert copied.get("placement_request", "tiny") == request


def test_an_edit_during_the_search_keeps_its_place(workspace, monkeypatch):
    solve = workflow.place

    starts: list[PlacementOutcome | None] = []

    def edited(
        request: PlacementRequest, *, warm_start: PlacementOutcome | None, progress: Progress
    ) -> PlacementOutcome:
        starts.append(warm_start)
        if len(starts) == 1:
            workspace.put("placement_request", "tiny", replace(request, max_gpus_per_segment=4))
        return solve(request, warm_start=warm_start, progress=progress)

    monkeypatch.setattr(workflow, "place", edited)
    place_job(workspace, RequestParameters("tiny"), ignore_progress)
    assert not workspace.artifacts("placement")
    for _ in range(2):
        place_job(workspace, RequestParameters("tiny"), ignore_progress)
    # What was found last is where the next search begins.
    assert starts[:2] == [None, None] and starts[2] is not None and starts[2].segments

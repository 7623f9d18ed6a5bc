"""The proof behind a what-if: asked for once the edits rest, dropped with what it was about, taken over once."""

import time
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.plans.draft import quick_plan
from app.plans.what_if import proof
from tests.support.app.page import field, press, said
from tests.support.app.values import request
from torchsplit_core import jobs, workflow
from torchsplit_core.files import read_text, write_text
from torchsplit_core.jobs.job_kinds import EXPLAIN, WHAT_IF, JobParameters, WhatIfParameters, from_stored
from torchsplit_core.jobs.plan import trial_job
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import Colocation, InputFault, PlanRequest, ignore_progress
from torchsplit_core.workspace.drafts import DraftStore, StoredDraft
from torchsplit_core.workspace.store import Workspace

pytestmark = pytest.mark.usefixtures("native_sliders")


class Jobs:
    """Jobs that end when the test says so."""

    def __init__(self) -> None:
        self.started: list[tuple[str, Any]] = []
        self.cancelled: list[str] = []
        self.state, self.result = "running", None

    def start(self, workspace: Workspace, title: str, name: str, parameters: JobParameters) -> str:
        self.started.append((name, parameters))
        return f"job{len(self.started)}"

    def status(self, workspace: Workspace, job: str) -> jobs.JobStatus:
        return jobs.JobStatus(job, "", WHAT_IF, self.state, 0.5, "", self.result, None, 1.0)  # type: ignore[arg-type]

    def cancel(self, workspace: Workspace, job: str) -> None:
        self.cancelled.append(job)


@pytest.fixture
def quick(monkeypatch) -> Jobs:
    """Plans behind a slider are not proven, and the proof is asked for at once."""

    def unproven(asked, *_):
        return replace(workflow.plan(asked), status="feasible")

    found = Jobs()
    for name in ("start", "status", "cancel"):
        monkeypatch.setattr(jobs, name, getattr(found, name))
    monkeypatch.setattr(quick_plan, "plan_with_starts", unproven)
    monkeypatch.setattr(proof, "REST_S", 0.0)
    return found


def move(page: AppTest, weight: float) -> AppTest:
    field(page, "select_slider", "Weight").set_value(weight).run()
    assert not page.exception
    return page


def tried(weight: float) -> PlanRequest:
    first, *rest = request().models
    return replace(request(), models=(replace(first, weight=weight), *rest))


def test_the_proof_is_asked_for_at_rest_and_taken_over_once(page, solved, quick):
    opened = move(page("plan", solved), 3.0)
    assert not quick.started and "once you stop editing" in said(opened)
    opened.run()
    assert quick.started == [(WHAT_IF, WhatIfParameters("review", request_hash(tried(3.0))))]
    opened.run()
    assert len(quick.started) == 1 and "Looking for the proof in the background" in said(opened)
    assert "proven optimal" not in said(opened)
    quick.result = trial_job(solved, quick.started[0][1], ignore_progress)
    quick.state = "done"
    opened.run()
    assert "proven optimal" in said(opened) and "draft, not kept" in said(opened)
    assert solved.get("plan_request", "review") == request()  # nothing was stored


def test_another_move_drops_the_search_and_so_does_the_way_back(page, solved, quick):
    opened = move(page("plan", solved), 3.0)
    opened.run()
    move(opened, 5.0)
    ended(quick, ["job1"])
    opened.run()
    assert [parameters.sha256 for _, parameters in quick.started] == [
        request_hash(tried(3.0)), request_hash(tried(5.0)),
    ]  # fmt: skip
    press(opened, "Discard")
    ended(quick, ["job1", "job2"])
    move(opened, 2.0)
    opened.run()
    move(opened, 1.0)  # as stored
    ended(quick, ["job1", "job2", "job3"])


def ended(quick: Jobs, names: list[str]) -> None:
    """A search is ended beside the page."""
    deadline = time.monotonic() + 120
    while quick.cancelled != names and time.monotonic() < deadline:
        time.sleep(0.01)
    assert quick.cancelled == names


@pytest.mark.slow
@pytest.mark.parametrize(("state", "outcome", "words"), [
    ("failed", None, "it was stopped"),
    ("cancelled", None, "it was stopped"),
    ("done", "timeout", "in its time"),
    ("done", "feasible", "in its time"),
])  # fmt: skip
def test_a_search_without_proof_leaves_the_plan_and_is_made_once(page, solved, quick, state, outcome, words):
    opened = move(page("plan", solved), 3.0)
    opened.run()
    quick.state = state
    if outcome is not None:
        quick.result = {"plan": write_text(replace(workflow.plan(tried(3.0)), status=outcome))}  # type: ignore[arg-type]
    for _ in range(3):
        opened.run()
    assert len(quick.started) == 1 and words in said(opened) and not opened.exception
    assert "draft, not kept" in said(opened) and "proven optimal" not in said(opened)


def test_the_panel_of_running_work_does_not_move_the_page_for_it(page, solved):
    solved.add_job("Prove the draft of review", WHAT_IF, {})
    solved.add_job("Explain review", EXPLAIN, {})
    told = "\n".join(str(element.value) for element in page("plan", solved).error)
    assert "Explain review failed" in told and "Prove" not in told


def test_the_job_proves_the_stored_draft_and_refuses_another(workspace):
    workspace.put("plan_request", "review", request())
    parameters = WhatIfParameters("review", request_hash(tried(3.0)))
    with pytest.raises(InputFault, match="was edited or discarded"):
        trial_job(workspace, parameters, ignore_progress)
    drafts = DraftStore(workspace, "review")
    drafts.save("tab", StoredDraft(request_hash(request()), tried(2.0)))
    with pytest.raises(InputFault, match="was edited or discarded"):
        trial_job(workspace, parameters, ignore_progress)
    pair = replace(tried(3.0), colocations=(Colocation(("bert", "ocr")),))
    drafts.save("tab", StoredDraft(request_hash(request()), pair))
    found = read_text(
        trial_job(workspace, WhatIfParameters("review", request_hash(pair)), ignore_progress)["plan"]
    )[1]
    assert found.status == "optimal" and found.request_sha256 == request_hash(pair)


def test_a_stored_search_of_the_version_before_is_still_known():
    told = {"request": "review", "models": {"bert": [1.0, 2.0]}, "counts": [2], "sha256": "ab"}
    assert from_stored(WHAT_IF, told) == WhatIfParameters("review", "ab")

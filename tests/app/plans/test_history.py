"""The History tab: what is kept, one version had back at once or as a draft, and the way back from that."""

from dataclasses import replace

import pytest

from app.plans import history
from tests.support.app.page import field, press_key, said
from tests.support.app.plan_page import tab
from tests.support.app.values import request
from torchsplit_core import workflow
from torchsplit_core.planning.comparison.plan_totals import PlanTotals
from torchsplit_core.values import FleetEntry
from torchsplit_core.values.plan.explanation import PlanExplanation
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.versions import Version, VersionStore

pytestmark = pytest.mark.usefixtures("native_sliders")
TWO = replace(request(), gpus=(FleetEntry("A100-80GB", count=2),))


@pytest.fixture
def twice(workspace) -> Workspace:
    """A scenario that was planned on one GPU and then on two."""
    for asked in (request(), TWO):
        workspace.put("plan_request", "review", asked)
        named_results.store_outcome(workspace, "review", asked, workflow.plan(asked))
    return workspace


def test_a_scenario_without_a_version_says_when_there_will_be_one(page, filled):
    assert "the last 20 versions" in said(tab(page("plan", filled), "History"))


def test_versions_say_what_changed_and_stand_beside_what_is_now(page, twice):
    text = said(tab(page("plan", twice), "History"))
    assert "A100-80GB 1 → 2" in text and "the first one kept" in text and "proven optimal" in text
    assert "From v1 to now" in text


def test_what_stands_now_is_not_compared_with_itself(page, workspace):
    workspace.put("plan_request", "review", request())
    named_results.store_outcome(workspace, "review", request(), workflow.plan(request()))
    # Explained since it became a version.
    explanation = PlanExplanation((), (), (), (), 1.0, True)
    workspace.put("plan", "review", replace(workspace.get("plan", "review"), explanation=explanation))
    text = said(tab(page("plan", workspace), "History"))
    assert "This is the only version: there is nothing to compare it with. Keep a changed draft" in text
    assert "From v1 to now" not in text and "Nothing changes" not in text
    workspace.put("plan_request", "review", TWO)
    named_results.store_outcome(workspace, "review", TWO, workflow.plan(TWO))
    opened = tab(page("plan", workspace), "History")
    field(opened, "selectbox", "Version").select_index(0).run()
    assert "v2 is what stands now: there is nothing to compare it with. Choose another" in said(opened)


def test_undo_brings_request_and_plan_back_and_undo_again_the_other(page, twice):
    before = twice.get("plan", "review")
    opened = press_key(tab(page("plan", twice), "History"), "version-undo")
    assert twice.get("plan_request", "review") == request()
    assert named_results.plan_is_current(request(), twice.get("plan", "review"))
    assert [one.note for one in VersionStore(twice, "review").list()] == ["v1 again", "", ""]
    press_key(tab(opened, "History"), "version-undo")
    assert twice.get("plan_request", "review") == TWO and twice.get("plan", "review") == before


def test_a_version_opens_as_a_draft_that_is_kept_or_not(page, twice):
    opened = press_key(tab(page("plan", twice), "History"), "version-draft")
    assert "v1 as it was · A100-80GB 2 → 1" in said(opened)
    assert twice.get("plan_request", "review") == TWO and opened.button(key="version-restore").disabled
    press_key(opened, "draft-keep")
    assert twice.get("plan_request", "review") == request()
    assert named_results.plan_is_current(request(), twice.get("plan", "review"))
    assert VersionStore(twice, "review").list()[0].note == "v1 as it was"


def test_a_row_says_what_is_not_known():
    bare = Version(1, 0.0, (), "infeasible", "", None)
    assert history.versions_table([bare]).count("n/a") == 3
    known = Version(2, 0.0, ("A 1 → 2",), "feasible", "a plan by hand", PlanTotals(1.5, 700.0, 1, 2))
    assert "a plan by hand · A 1 → 2" in history.versions_table(
        [known]
    ) and "not proven" in history.versions_table([known])

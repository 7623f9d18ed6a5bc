"""The last states of a scenario: kept once each, capped, had back, and gone with their scenario."""

import sqlite3
from dataclasses import replace

import pytest

from tests.support.app.values import plan, request
from torchsplit_core.files import write_text
from torchsplit_core.planning.comparison.plan_totals import PlanTotals
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import (
    WHOLE_GPU,
    FleetEntry,
    InputFault,
    PlanModel,
    PlanRequest,
    Point,
    Stage,
    Variant,
)
from torchsplit_core.workspace import SCHEMA, named_results
from torchsplit_core.workspace.drafts import MOST_DRAFTS, DraftStore, StoredDraft, compress_text
from torchsplit_core.workspace.store import Store, Workspace
from torchsplit_core.workspace.versions import MOST_VERSIONS, VersionStore


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    return Store(tmp_path / "home").create("review")


def on(count: int) -> PlanRequest:
    return replace(request(), gpus=(FleetEntry("A100-80GB", count=count),))


def test_a_state_is_kept_once_and_says_what_changed(workspace):
    versions = VersionStore(workspace, "a")
    versions.save()
    assert versions.list() == ()  # there is nothing to keep
    workspace.put("plan_request", "a", on(1))
    versions.save()
    assert versions.list()[0].status == "" and versions.load(1) == (on(1), None)
    # The answer of a job belongs to the request that asked for it.
    named_results.store_outcome(workspace, "a", on(1), plan(on(1)))
    versions.save()
    (first,) = versions.list()
    assert (first.number, first.status, first.changes) == (1, "optimal", ())
    assert first.figures == PlanTotals(1.5, 700.0, 1, 2)
    workspace.put("plan_request", "a", on(2))
    named_results.store_outcome(workspace, "a", on(2), plan(on(2), "infeasible"))
    second, again = versions.list()
    assert again == first and second.figures is None
    assert (second.number, second.status, second.changes) == (2, "infeasible", ("A100-80GB 1 → 2",))
    assert second.kept >= first.kept
    assert versions.load(1) == (on(1), plan(on(1))) and versions.load(3) is None


def test_a_plan_that_somebody_chose_is_a_version_of_its_own(workspace):
    versions = VersionStore(workspace, "a")
    workspace.put("plan_request", "a", on(1))
    named_results.store_outcome(workspace, "a", on(1), plan(on(1)))
    workspace.put("plan", "a", plan(on(1), "feasible"))
    versions.save("by hand")
    # What is added to a plan later, an explanation for instance, is no other version.
    workspace.put("plan", "a", replace(plan(on(1), "feasible"), warnings=("told later",)))
    versions.save()
    assert [(one.number, one.note) for one in versions.list()] == [(2, "by hand"), (1, "")]
    stored = versions.load(2)
    assert stored is not None and stored[1] is not None and stored[1].warnings == ("told later",)
    named_results.store_outcome(workspace, "a", on(1), plan(on(1)))
    assert [(one.number, one.note) for one in versions.list()] == [(3, ""), (2, "by hand"), (1, "")]


def test_the_oldest_go_and_what_is_kept_is_small(workspace):
    versions = VersionStore(workspace, "a")
    for count in range(1, MOST_VERSIONS + 6):
        workspace.put("plan_request", "a", on(count))
        versions.save()
    kept = versions.list()
    assert [one.number for one in kept] == list(range(MOST_VERSIONS + 5, 5, -1))
    assert versions.load(5) is None
    size = sum(len(row[4]) for row in versions.rows())
    assert size < len(workspace.get_bytes("plan_request", "a")) * MOST_VERSIONS / 2


def test_a_draft_comes_back_equal_also_one_of_an_earlier_version(workspace):
    drafts, whole = DraftStore(workspace, "a"), (Point("A100-80GB", WHOLE_GPU, 8, 120.0, 40.0),)
    edited = replace(on(2), models=(PlanModel("w", (Variant("whole", (Stage("whole", whole),)),), weight=2),))
    drafts.save("tab", StoredDraft(request_hash(on(1)), edited))
    assert drafts.load("tab") == StoredDraft(request_hash(on(1)), edited)

    def replaced(content):
        with workspace.store.connect(write=True) as database:
            database.execute("UPDATE drafts SET request = ?", (content,))

    replaced(compress_text(write_text(edited).encode()))
    stored = drafts.load("tab")
    assert stored is not None and stored.request == edited
    replaced(compress_text(b'{"gpus": 3}'))
    with pytest.raises(InputFault, match="the draft of a scenario"):
        drafts.load("tab")


def test_drafts_and_versions_go_where_their_scenario_goes(workspace):
    workspace.put("plan_request", "a", on(1))
    versions, drafts = VersionStore(workspace, "a"), DraftStore(workspace, "a")
    versions.save()
    draft = StoredDraft(request_hash(on(1)), on(2), plan(on(2)), "a baseline")
    drafts.save("tab", draft)
    drafts.save("tab", draft)
    for kept in (versions, drafts):
        kept.copy_to("b")
    copied = workspace.store.copy(workspace.id, "copy")
    for place in (workspace, copied):
        assert VersionStore(place, "b").load(1) == (on(1), None)
        assert DraftStore(place, "b").load("tab") == draft
    versions.delete()
    drafts.delete()
    assert versions.list() == () and drafts.load("tab") is None
    assert VersionStore(workspace, "b").list()
    rows = VersionStore(copied, "b").rows()
    versions.restore(rows)
    assert versions.load(1) == (on(1), None)
    workspace.store.delete(copied.id)
    with workspace.store.connect() as database:
        for table in ("drafts", "versions"):
            assert database.execute(f"SELECT DISTINCT workspace FROM {table}").fetchall() == [(workspace.id,)]


def test_drafts_of_a_tab_are_its_own_and_the_oldest_go(workspace):
    drafts = DraftStore(workspace, "a")
    for number in range(MOST_DRAFTS + 2):
        drafts.save(f"tab {number}", StoredDraft("", on(number + 1)))
    assert drafts.load("tab 1") is None and drafts.load("tab 2") == StoredDraft("", on(3))
    drafts.save("tab 2", StoredDraft("", on(99)))
    assert [one.request.gpus[0].count for one in drafts.all()][:2] == [99, MOST_DRAFTS + 2]
    drafts.delete("tab 2")
    assert drafts.load("tab 2") is None and len(drafts.others("tab 3")) == MOST_DRAFTS - 2


def test_a_draft_of_the_version_before_is_of_no_open_tab(tmp_path):
    database = sqlite3.connect(tmp_path / "workspaces.sqlite")
    for script in SCHEMA[:6]:
        database.executescript(script)
    database.execute("INSERT INTO workspaces VALUES ('w', 'old', 1.0)")
    row = ("w", "a", "ground", compress_text(write_text(on(2)).encode()), None, "")
    database.execute("INSERT INTO drafts VALUES (?, ?, ?, ?, ?, ?)", row)
    database.execute("PRAGMA user_version = 6")
    database.commit()
    database.close()
    drafts = DraftStore(Store(tmp_path).open("w"), "a")
    assert drafts.load("tab") is None and drafts.others("tab") == (StoredDraft("ground", on(2)),)

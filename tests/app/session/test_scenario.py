"""Scenarios: which one is shown, links to one, names and copies, two tabs on one."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.session import scenario
from app.session.result_kind import SCENARIO
from app.shell import replan
from tests.support.app.page import field, open_page, press, put_plan, said
from tests.support.app.values import plan, request
from torchsplit_core import jobs
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.job_kinds import PLAN, SWEEP, RequestParameters
from torchsplit_core.planning.sweep.points import SweepRequest, sweep_requests
from torchsplit_core.values import FleetEntry, InputFault
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.sweeps import StoredPlan, StoredSweep, SweepStore, write_sweep


@pytest.fixture
def two(filled) -> Workspace:
    """A second scenario with a GPU more, chosen last."""
    larger = replace(request(), gpus=(FleetEntry("A100-80GB", count=2),))
    put_plan(filled, larger, plan(larger), "larger")
    return filled


def shown(page: AppTest) -> str:
    found = page.query_params["scenario"]
    return found if isinstance(found, str) else found[0]


def test_the_address_says_which_scenario_is_shown_and_a_link_opens_it(page, two):
    assert shown(page("plan", two)) == "review"
    linked = page("plan", two, scenario="larger")
    assert shown(linked) == "larger" and linked.selectbox[0].value == "larger"
    # Another session stays where it was.
    assert shown(page("plan", two)) == "review"


def whose(page: AppTest) -> str:
    """The line of the Deploy page that says whose its files are."""
    return next(str(element.value) for element in page.markdown if str(element.value).startswith("Files of"))


def test_deploy_names_its_scenario_in_the_address_and_a_reload_shows_the_same_files(two):
    kept = f"scenario of {two.id}"
    # What a session keeps goes along from page to page, the address does not.
    session = {kept: open_page("plan", two, scenario="larger").session_state[kept]}
    followed = open_page("deploy", two, session=session)
    assert shown(followed) == "larger" and "**larger**" in whose(followed)
    again = open_page("deploy", two, scenario=shown(followed))
    assert whose(again) == whose(followed)
    assert "**review**" in whose(open_page("deploy", two))


def test_deploy_offers_every_scenario(two):
    opened = open_page("deploy", two, scenario="larger")
    box = field(opened, "selectbox", "Scenario")
    assert box.value == "larger"
    box.set_value("review").run()
    assert shown(opened) == "review" and "**review**" in whose(opened)


@pytest.mark.parametrize("name", ["plan", "deploy"])
def test_an_address_of_no_scenario_says_so_and_shows_nothing_of_another(name, two):
    opened = open_page(name, two, scenario="gone")
    (error,) = opened.error
    assert "no scenario 'gone' in this workspace" in str(error.value).replace("\\", "")
    assert shown(opened) == "gone" and not opened.code and not opened.metric and not opened.tabs
    field(opened, "selectbox", "Scenarios here").set_value("larger").run()
    assert shown(opened) == "larger" and not opened.error and opened.tabs


def test_choosing_another_scenario_is_kept_for_those_without_an_address(page, two):
    opened = page("plan", two)
    opened.selectbox[0].set_value("larger").run()
    assert shown(opened) == "larger" and shown(page("plan", two)) == "larger"


def sweep(workspace: Workspace, name: str) -> StoredSweep:
    """A sweep of the scenario's stored request with one of its two points solved."""
    asked = workspace.get("plan_request", name)
    what = SweepRequest("gpus", "A100-80GB", (1.0, 2.0))
    first = sweep_requests(asked, what)[0][1]
    kept = StoredSweep(what, asked, {1.0: StoredPlan(plan(first), 5.0)})
    with workspace.store.connect(write=True) as database:
        write_sweep(database, workspace.id, name, kept)
    return kept


def test_a_renamed_scenario_takes_its_plan_and_sweep_along(page, two):
    stored, opened = sweep(two, "review"), page("plan", two)
    opened.text_input(key="scenario-name-review").set_value("november").run()
    press(opened, "Rename")
    assert shown(opened) == "november" and set(SCENARIO.names(two)) == {"november", "larger"}
    assert two.get("plan", "november") == plan() and two.get("plan_request", "november") == request()
    assert SweepStore(two, "november").load() == stored and SweepStore(two, "review").load() is None
    assert SweepStore(two, "larger").load() is None


def test_a_duplicate_has_plan_and_sweep_and_both_are_their_own(page, two):
    stored, opened = sweep(two, "review"), page("plan", two)
    press(opened, "Duplicate")
    assert shown(opened) == "review copy" and two.get("plan", "review copy") == two.get("plan", "review")
    assert SweepStore(two, "review copy").load() == stored == SweepStore(two, "review").load()
    opened.selectbox[0].set_value("review").run()
    press(opened, "Duplicate")
    assert set(SCENARIO.names(two)) == {"review", "review copy", "review copy 2", "larger"}
    scenario.remove(two, "review")
    assert SweepStore(two, "review copy").load() == stored and SweepStore(two, "review").load() is None


def test_a_duplicate_of_an_edited_scenario_keeps_the_sweep_of_its_earlier_state(two):
    kept = sweep(two, "review")
    two.put("plan_request", "review", replace(request(), sharing="fractional"))
    scenario.save_as(two, "review", "copy", keep=True)
    stored = SweepStore(two, "copy").load()
    assert stored == kept and stored is not None and stored.request != two.get("plan_request", "copy")


def test_renaming_ends_the_search_before_its_points_are_taken_along(two, monkeypatch):
    kept = sweep(two, "review")
    running = [jobs.JobStatus("j", "Sweep review", SWEEP, "running", 0.5, "", None, None, 1.0)]
    monkeypatch.setattr(
        runner, "running", lambda w, names=(), request=None: running if request == "review" else []
    )

    def cancel(workspace, job):
        # What the sweep found while it was being asked to end.
        last = plan(sweep_requests(kept.request, kept.what)[1][1])
        SweepStore(workspace, "review").save_plan(last, 5.0)
        running.clear()

    monkeypatch.setattr(runner, "cancel", cancel)
    scenario.save_as(two, "review", "november", keep=False)
    stored = SweepStore(two, "november").load()
    assert stored is not None and sorted(stored.plans) == [1.0, 2.0] and not running


def test_a_name_that_is_taken_ends_no_search_and_moves_no_sweep(two, monkeypatch):
    kept, ended = sweep(two, "review"), []
    monkeypatch.setattr(jobs, "end", lambda workspace, names, request: ended.append(request))
    with pytest.raises(InputFault):
        scenario.save_as(two, "review", "larger", keep=False)
    with pytest.raises(InputFault):
        scenario.save_as(two, "review", "no\nname", keep=False)
    with pytest.raises(InputFault, match="'review' is the name that it has"):
        scenario.save_as(two, "review", "review ", keep=False)
    assert SweepStore(two, "review").load() == kept and not ended


@pytest.mark.parametrize(
    ("name", "words"), [("larger", "is taken by another scenario"), (" ", "scenario name: is empty")]
)
def test_a_name_that_cannot_be_is_one_message(name, words, page, two):
    opened = page("plan", two)
    opened.text_input(key="scenario-name-review").set_value(name).run()
    press(opened, "Rename")
    assert words in said(opened) and set(SCENARIO.names(two)) == {"review", "larger"}


def test_a_deleted_scenario_ends_its_search_and_the_next_is_shown(page, two, monkeypatch):
    ended = []
    monkeypatch.setattr(runner, "cancel", lambda workspace, job: ended.append(job))
    running = jobs.JobStatus("j", "Plan review", PLAN, "running", 0.5, "", None, None, 1.0)
    monkeypatch.setattr(
        runner, "running", lambda w, names=(), request=None: (running,) if request == "review" else ()
    )
    opened = press(page("plan", two), "Delete")
    assert ended == ["j"] and shown(opened) == "larger" and SCENARIO.names(two) == ("larger",)
    assert "Deleted the scenario **review**." in [element.value for element in opened.markdown]


def test_a_deletion_is_undone_with_plan_and_sweep(page, two):
    kept, before = sweep(two, "review"), SCENARIO.names(two)
    opened = press(page("plan", two), "Delete")
    assert SCENARIO.names(two) == ("larger",) and SweepStore(two, "review").load() is None
    press(opened, "Undo")
    assert shown(opened) == "review" and set(SCENARIO.names(two)) == set(before)
    assert two.get("plan", "review") == plan() and two.get("plan_request", "review") == request()
    assert SweepStore(two, "review").load() == kept
    assert not [button for button in opened.button if button.label == "Undo"]


def test_the_last_scenario_can_be_had_back_too_and_takes_no_other_s_place(page, filled):
    opened = press(page("plan", filled), "Delete")
    assert SCENARIO.names(filled) == () and "scenario" not in opened.query_params
    other = replace(request(), sharing="fractional")
    filled.put("plan_request", "review", other)
    press(opened, "Undo")
    assert shown(opened) == "review 2" and filled.get("plan_request", "review") == other
    assert filled.get("plan", "review 2") == plan()


def test_the_next_change_ends_the_way_back(page, two):
    opened = press(page("plan", two), "Delete")
    press(opened, "Duplicate")
    assert not [button for button in opened.button if button.label == "Undo"]


def test_two_tabs_on_one_scenario_lose_nothing(filled, started, monkeypatch):
    notes = []
    monkeypatch.setattr(replan.st, "rerun", lambda: None)
    monkeypatch.setattr(replan.frame, "notify", notes.append)
    mine = replace(request(), sharing="fractional")
    replan.plan_again(filled, "review", mine, base=request())
    assert not notes and filled.get("plan_request", "review") == mine
    # The other tab still shows, and edits, what stood before.
    theirs = replace(request(), gpus=(FleetEntry("A100-80GB", count=7),))
    replan.plan_again(filled, "review", theirs, base=request())
    assert filled.get("plan_request", "review") == theirs
    assert filled.get("plan_request", "review, edited elsewhere") == mine
    assert notes == [
        "review was changed in another tab meanwhile: that state is kept as review, edited elsewhere."
    ]
    assert started == [(PLAN, RequestParameters("review"))] * 2 and SCENARIO.current(filled) == "review"


@pytest.mark.parametrize(
    ("first_s", "end_s", "waited_s"),
    [
        (0.05, 0.2, 0.2),
        (0.05, 9.0, scenario.PROOF_S),
        (0.8, 9.0, 0.8),
        (5.0, 9.0, scenario.FIRST_PLAN_S),
    ],
)
def test_a_page_waits_for_a_proof_that_is_near_and_for_a_first_plan(first_s, end_s, waited_s, monkeypatch):
    clock: Any = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(scenario, "time", clock)
    monkeypatch.setattr(jobs, "running", lambda *_: clock.now < end_s)
    workspace: Any = SimpleNamespace(find=lambda *_: "plan" if clock.now >= first_s else None)
    scenario.await_plan(workspace, "r", None)
    assert clock.now == pytest.approx(waited_s, abs=1.5 * scenario.LOOK_S)

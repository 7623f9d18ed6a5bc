"""Named results: listed, copied, removed, and told whether they answer the request beside them."""

import json
from dataclasses import replace

import pytest

from tests.support.paths import ROOT
from tests.support.workspace.storage_writer import request
from torchsplit_core import jobs, workflow
from torchsplit_core.files import read_file
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.job_kinds import PLACE, PLAN, SWEEP
from torchsplit_core.values import PlacementFrontier
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Store, Workspace

EXAMPLE = ROOT / "examples" / "placement_request.json"


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    made = Store(tmp_path).create("w")
    for name in ("a", "b"):
        made.put("plan_request", name, request())
    made.put("plan", "c", workflow.plan(request()))
    return made


def test_names_are_newest_first_and_free_ones_are_found(workspace):
    assert named_results.names(workspace, *named_results.SCENARIO_KINDS) == ("b", "a", "c")
    assert named_results.names(workspace, "plan") == ("c",) and named_results.names(workspace, "graph") == ()
    assert named_results.free_name(workspace, named_results.SCENARIO_KINDS, "d") == "d"
    assert named_results.free_name(workspace, named_results.SCENARIO_KINDS, "c") == "c 2"
    assert named_results.free_name(workspace, ("plan_request",), "c") == "c"


def test_a_copy_has_the_same_contents_and_a_removal_takes_its_kinds_alone(workspace):
    named_results.store_outcome(workspace, "a", request(), workflow.plan(request()))
    for kind, file in (
        ("partition", "partition"),
        ("measurement", "measurement"),
        ("day", "days/three_windows"),
        ("day_replay", "days/three_windows_replay"),
    ):
        workspace.put(kind, "a", read_file(EXAMPLE.parent / f"{file}.json")[1])
    named_results.copy(workspace, named_results.SCENARIO_KINDS, "a", "d")
    for kind in named_results.SCENARIO_KINDS:
        sha256 = named_results.sha256_of(workspace, kind, "a")
        assert len(sha256) == 64 and named_results.sha256_of(workspace, kind, "d") == sha256
    assert not named_results.exists(workspace, "partition", "d")
    assert named_results.sha256_of(workspace, "partition", "d") == ""
    named_results.remove(workspace, named_results.SCENARIO_KINDS, "a")
    assert not any(named_results.exists(workspace, kind, "a") for kind in named_results.SCENARIO_KINDS)
    assert named_results.exists(workspace, "partition", "a") and named_results.exists(workspace, "plan", "d")


def test_a_plan_answers_the_request_it_was_made_for(workspace):
    outcome = workflow.plan(request())
    assert named_results.plan_is_current(request(), outcome) and not named_results.plan_is_current(
        request(2), outcome
    )
    named_results.store_outcome(workspace, "a", request(2), outcome)
    assert not named_results.exists(workspace, "plan", "a")  # the request was edited meanwhile
    named_results.store_outcome(workspace, "gone", request(), outcome)
    assert not named_results.exists(workspace, "plan", "gone")
    named_results.store_outcome(workspace, "a", request(), outcome)
    assert workspace.get("plan", "a") == outcome


def test_a_placement_answers_by_what_was_stored_beside_it_or_where_it_fits(workspace):
    asked = read_file(EXAMPLE)[1]
    outcome = workflow.place(asked)
    workspace.put("placement_request", "p", asked)
    named_results.store_outcome(workspace, "p", asked, outcome)
    assert named_results.is_current(workspace, "p", asked, outcome)
    # It would fit this request too, but was not made for it.
    loose = replace(asked, max_gpus_per_segment=asked.max_gpus_per_segment + 1)
    workspace.put("placement_request", "p", loose)
    assert not named_results.is_current(workspace, "p", loose, outcome)
    workspace.put("placement_request", "dropped", loose)
    workspace.put("placement", "dropped", outcome)
    assert named_results.is_current(workspace, "dropped", loose, outcome)
    narrow = replace(asked, max_gpus_per_segment=1)
    assert not named_results.is_current(workspace, "dropped", narrow, outcome)
    curve = PlacementFrontier("timeout")
    named_results.store_outcome(workspace, "dropped", loose, curve)
    assert named_results.is_current(workspace, "dropped", loose, curve)
    assert workspace.setting("placement curve dropped answers") and not workspace.setting(
        "placement dropped answers"
    )


def test_cuts_are_listed_by_their_parts_and_only_those_of_the_model(workspace):
    outcome = read_file(EXAMPLE.with_name("partition.json"))[1]
    for name in ("m in 10", "m in 2", "m in 2 in 3", "m offered", "m+ in 1"):
        workspace.put("partition", name, outcome)
    assert named_results.partition_names(workspace, "m") == ("m in 2", "m in 10")
    assert named_results.partition_name("m", 2) == "m in 2"


def test_running_work_is_found_by_kind_and_request_and_ended(workspace):
    def add(name, parameters, state="running"):
        record = workspace.add_job(name, name, parameters)
        begun = {"state": state, "starter": runner._process_identity(1)}
        (workspace.store.root / "jobs" / f"{record.id}.json").write_text(json.dumps(begun))
        return record.id

    plan, sweep = add(PLAN, {"request": "a"}), add(SWEEP, {"request": "a"})
    place, odd = add(PLACE, {"request": "a"}), add(PLAN, [])
    add(PLAN, {"request": "a"}, "done")
    other = add(PLAN, {"request": "b"})

    def found(*asked):
        return [status.id for status in jobs.running(workspace, *asked)]

    assert found() == [other, odd, place, sweep, plan]
    assert found((PLAN,)) == [other, odd, plan] and found((PLAN, SWEEP), "a") == [sweep, plan]
    assert found((), "a") == [place, sweep, plan] and found((PLAN,), "c") == []
    jobs.end(workspace, (PLAN, SWEEP), "a")
    assert found() == [other, odd, place] and jobs.status(workspace, plan).state == "cancelled"

"""A state by hand: begun from what is chosen, changed on the map and in its fields, checked, saved, edited again."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from app.plans.deploy import state_choice, state_editor
from tests.support.app.page import button, field, press, press_key, run, said
from tests.support.app.values import plan
from torchsplit_core.transition import state_of_plan
from torchsplit_core.values import HostState, StateInstance, Tenant


@pytest.fixture
def editor(page, filled) -> Callable[..., AppTest]:
    """The editor, begun from a state of the workspace, with a place of the map chosen."""

    def opened(place: str = "", **query: str) -> AppTest:
        drawn = page("deploy", filled, **query)
        press_key(drawn, "state-by-hand")
        key = state_editor.draft_key(filled, "review")
        drawn.session_state[key] = replace(drawn.session_state[key], place=place)
        return run(drawn)

    return opened


def draft(page: AppTest, workspace) -> HostState:
    state: HostState = page.session_state[state_editor.draft_key(workspace, "review")].now
    return state


def choose(page: AppTest, label: str, value) -> AppTest:
    field(page, "selectbox", label).select(value)
    return run(page)


def test_from_nothing_the_gpus_of_the_plan_are_cut_filled_saved_and_edited_again(editor, filled):
    opened = editor("0 gpu0")
    assert button(opened, "Set by hand").disabled
    choose(opened, "Layout", ("3g.40gb", "4g.40gb"))
    assert field(opened, "selectbox", "Runs on 4g.40gb").options == [
        "nothing",
        "another tenant, not known",
        "bert",
        "ocr",
    ]
    choose(opened, "Runs on 4g.40gb", "model bert")
    (first, second) = draft(opened, filled).gpus[0].instances
    assert first == StateInstance("4g.40gb", 0, None, plan().gpus[0].slices[0].tenants)
    assert second == StateInstance("3g.40gb", 4, None, ())
    field(opened, "text_input", "Name of the state").set_value("today")
    press(opened, "Save and choose")
    assert filled.get("host_state", "today").gpus[0].instances == (first, second)
    assert opened.query_params["from"] in ("host_state:today", ["host_state:today"])
    # The same again: an edit of a stored state replaces it.
    press(opened, "Edit by hand")
    assert field(opened, "text_input", "Name of the state").value == "today"
    key = state_editor.draft_key(filled, "review")
    opened.session_state[key] = replace(opened.session_state[key], place="0 gpu0")
    choose(run(opened), "Runs on 4g.40gb", "unknown")
    press(opened, "Save and choose")
    assert filled.get("host_state", "today").gpus[0].instances[0].tenants is None
    assert len(filled.artifacts("host_state")) == 1
    assert opened.selectbox(key=state_choice.KEY).value == "host_state:today"


def test_a_plan_that_runs_is_edited_as_a_state_of_another_name(editor, filled):
    filled.put("host_state", "now", state_of_plan(plan()))
    opened = editor("0 gpu0", **{"from": "plan:review"})
    field(opened, "number_input", "Throughput").set_value(250.0)
    run(opened)
    (tenant,) = draft(opened, filled).gpus[0].instances[0].planned_tenants
    assert tenant == Tenant("bert", "whole", "whole", 1.0, 8, 1, 250.0, None)
    press(opened, "Save and choose")
    assert {item.name for item in filled.artifacts("host_state")} == {"now", "now 2"}


def test_slices_are_set_one_by_one_at_legal_starts_and_undone(editor, filled):
    opened = editor("4 gpu0", **{"from": "plan:review"})
    box = field(opened, "selectbox", "Slice at slot 4")
    assert "3g.40gb at 4" in box.options and "7g.80gb at 0" not in box.options
    choose(opened, "Slice at slot 4", ("2g.20gb", 4))
    assert [(i.profile, i.start, i.tenants) for i in draft(opened, filled).gpus[0].instances][1:] == [
        ("2g.20gb", 4, ())
    ]
    choose(opened, "Slice at slot 4", ("no slice", -1))
    assert len(draft(opened, filled).gpus[0].instances) == 1
    for _ in range(2):
        press(opened, "Undo")
    assert draft(opened, filled) == state_of_plan(plan()) and button(opened, "Undo").disabled


def test_mig_mode_off_leaves_the_gpu_whole(editor, filled):
    opened = editor("0 gpu0", **{"from": "plan:review"})
    field(opened, "segmented_control", "MIG mode").set_value(False)
    run(opened)
    gpu = draft(opened, filled).gpus[0]
    assert (gpu.mig_enabled, gpu.instances) == (False, ())
    assert "Layout" not in [box.label for box in opened.selectbox]
    choose(opened, "Runs on whole GPU", "unknown")
    assert draft(opened, filled).gpus[0].instances == (StateInstance("", 0, None, None),)


def test_gpus_are_added_and_alike_ones_change_together(editor, filled):
    opened = editor("0 node3/gpu0")
    field(opened, "number_input", "How many").set_value(3)
    field(opened, "text_input", "On host").set_value("node3")
    run(opened)
    press(opened, "Add GPUs")
    assert [gpu.id for gpu in draft(opened, filled).gpus] == [
        "gpu0",
        "node3/gpu0",
        "node3/gpu1",
        "node3/gpu2",
    ]
    field(opened, "segmented_control", "Change").set_value("alike")
    run(opened)
    choose(opened, "Layout", ("7g.80gb",))
    assert [len(gpu.instances) for gpu in draft(opened, filled).gpus] == [0, 1, 1, 1]
    press(opened, "Remove 3 GPUs")
    assert [gpu.id for gpu in draft(opened, filled).gpus] == ["gpu0"]
    press(opened, "Close without saving")
    assert not filled.artifacts("host_state") and "Name of the state" not in [
        box.label for box in opened.text_input
    ]


def test_shared_slices_take_a_second_tenant_and_too_large_shares_cannot_be_saved(editor, filled):
    asked = replace(filled.get("plan_request", "review"), sharing="fractional")
    filled.put("plan_request", "review", asked)
    opened = editor("0 gpu0", **{"from": "plan:review"})
    choose(opened, "Shared with", "ocr")
    tenants = draft(opened, filled).gpus[0].instances[0].planned_tenants
    assert [(t.model, t.share, t.throughput_rps) for t in tenants] == [
        ("bert", 0.5, 200.0),
        ("ocr", 0.5, 200.0),
    ]
    field(opened, "number_input", "Share").set_value(0.75)
    run(opened)
    assert (
        "has tenants whose shares add up to 1.25" in said(opened)
        and button(opened, "Save and choose").disabled
    )

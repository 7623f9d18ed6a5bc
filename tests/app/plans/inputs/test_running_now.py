"""The switch that plans from what runs now: offered where a state is known, limited by a slider, told on the page."""

from dataclasses import replace

import pytest

from tests.support.app.page import field, press, run, said
from tests.support.app.values import request
from torchsplit_core import workflow
from torchsplit_core.transition import state_of_plan
from torchsplit_core.values import FleetEntry


@pytest.fixture
def running(workspace):
    """A scenario on two GPUs whose demand has changed since the state "today", of a host with other names."""
    asked = replace(request(), gpus=(FleetEntry("A100-80GB", count=2),))
    before = replace(asked, models=(replace(asked.models[0], demand_rps=5.0), asked.models[1]))
    state = state_of_plan(workflow.plan(before))
    elsewhere = replace(state, gpus=tuple(replace(gpu, id=f"node3/{gpu.id}") for gpu in state.gpus))
    workspace.put("host_state", "today", elsewhere)
    workspace.put("plan_request", "review", asked)
    workspace.put("plan", "review", workflow.plan(asked))
    return workspace


def toggles(page):
    return [box.label for box in page.toggle]


def test_without_a_state_there_is_no_switch(page, solved):
    assert "Start from what runs now" not in toggles(page("plan", solved))


def test_a_plan_that_the_address_names_as_running_is_a_state(page, solved):
    opened = page("plan", solved, **{"from": "plan:review"})
    assert field(opened, "selectbox", "What runs").options == ["Plan that runs: review"]


def test_the_switch_plans_from_the_state_and_the_slider_limits_the_changes(page, running):
    opened = page("plan", running)
    assert field(opened, "selectbox", "What runs").options == ["State: today", "Plan that runs: review"]
    field(opened, "toggle", "Start from what runs now").set_value(True)
    run(opened)
    assert "what runs now none → 2 GPUs" in said(opened)
    assert "From what runs now: " in said(opened) and "tenants run on" in said(opened)
    field(opened, "select_slider", "GPUs that may change").set_value(0)
    run(opened)
    assert "GPUs that may change none → 0" in said(opened)
    assert "From what runs now: 0 of 2 GPUs change. Nothing stops: all" in said(opened)
    field(opened, "toggle", "Start from what runs now").set_value(False)
    run(opened)
    assert "From what runs now" not in said(opened) and "not kept" not in said(opened)


def test_the_state_of_the_request_itself_is_the_first_choice(page, running):
    asked = running.get("plan_request", "review")
    state = running.get("host_state", "today")
    current = replace(state, gpus=tuple(replace(gpu, id=f"gpu{n}") for n, gpu in enumerate(state.gpus)))
    running.put("plan_request", "review", replace(asked, current=current))
    opened = page("plan", running)
    assert field(opened, "toggle", "Start from what runs now").value is True
    assert field(opened, "selectbox", "What runs").value == "request"
    field(opened, "toggle", "Start from what runs now").set_value(False)
    assert "what runs now 2 GPUs → none" in said(run(opened))
    press(opened, "Discard")
    assert field(opened, "toggle", "Start from what runs now").value is True


def test_a_state_without_a_place_in_the_fleet_is_a_message(page, running):
    state = running.get("host_state", "today")
    used = next(gpu for gpu in state.gpus if gpu.instances)
    more = tuple(replace(used, id=f"node4/gpu{number}") for number in range(2))
    running.put("host_state", "today", replace(state, gpus=(*state.gpus, *more)))
    opened = page("plan", running)
    field(opened, "toggle", "Start from what runs now").set_value(True)
    assert "fleet has no place for" in said(run(opened))

"""From today's state to a plan as a user walks it: a state dropped in, the way drawn, the curve of few changes."""

from dataclasses import replace

import pytest
from playwright.sync_api import expect

from tests.support.browser.access import PHONE, ours
from tests.support.browser.pages import PLANNED_MS, heading, press
from tests.support.browser.settle import settle
from tests.support.browser.workspaces import begun
from tests.support.planning.requests import whole_model
from torchsplit_core import workflow
from torchsplit_core.files import write_text
from torchsplit_core.transition import state_of_plan
from torchsplit_core.values import FleetEntry, PlanRequest, Point

pytestmark = pytest.mark.browser


def request(demand_rps: float) -> PlanRequest:
    def model(name: str, speed: float, demand_rps: float):
        points = tuple(
            Point("A30-24GB", profile, 8, speed * compute, 40.0, memory_gib=4.0)
            for profile, compute in (("1g.6gb", 1), ("2g.12gb", 2), ("4g.24gb", 4))
        )
        return whole_model(name, points, demand_rps=demand_rps)

    return PlanRequest(
        (FleetEntry("A30-24GB", count=2),), (model("bert", 30.0, 100.0), model("ocr", 50.0, demand_rps))
    )


@pytest.mark.repeated
def test_a_state_is_added_the_way_is_drawn_and_few_changes_are_planned(session, address, home):
    workspace = begun(home, "deploy")
    asked = request(400.0)
    workspace.put("plan_request", "review", asked)
    workspace.put("plan", "review", workflow.plan(asked))
    now = state_of_plan(workflow.plan(request(30.0)))
    now = replace(now, gpus=tuple(replace(gpu, id=f"node3/{gpu.id}", mig_enabled=True) for gpu in now.gpus))
    page = session()
    page.goto(f"{address}/plan?workspace={workspace.id}&scenario=review&tab=deploy")
    heading(page, "Plan")
    expect(page.get_by_text("Say what runs on the GPUs now")).to_be_visible()
    page.get_by_text("Add a state: a file of capture").click()
    data = {"name": "node3.json", "mimeType": "application/json", "buffer": write_text(now).encode()}
    page.locator(".st-key-state-file input[type=file]").set_input_files([data])  # type: ignore[list-item]
    settle(page)
    press(page, "Add and choose")
    page.wait_for_url("**from=host_state%3Anode3*")
    expect(page.get_by_text("Untouched tenants")).to_be_visible()
    expect(page.locator(".st-key-today .picture")).to_have_count(2)
    today, planned = page.locator(".st-key-today .picture").all()
    for picture in (today, planned):
        expect(picture.locator("svg.mark").first).to_be_visible()
    settle(page)
    press(page, "Plan with few changes")
    expect(page.get_by_text("of what 2 bring")).to_be_visible(timeout=PLANNED_MS)
    page.reload()
    heading(page, "Plan")
    expect(page.get_by_text("of what 2 bring")).to_be_visible()
    settle(page)
    press(page, "Edit by hand")
    expect(page.get_by_text("What runs now, by hand")).to_be_visible()
    page.locator(".st-key-state-edit-map [data-place]").first.click()
    settle(page)
    layout = page.locator(".st-key-state-place").get_by_role("combobox", name="Layout")
    layout.scroll_into_view_if_needed()
    settle(page)
    layout.click()
    page.get_by_role("option", name="2 × 2g.12gb").click()
    settle(page)
    expect(page.locator(".st-key-state-edit-map [data-place*=node3]")).to_have_count(
        2 + len(now.gpus[1].instances)
    )
    page.set_viewport_size({"width": PHONE, "height": 900})
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    assert not ours(page)

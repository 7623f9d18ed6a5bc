"""Placements in a browser: an example is solved and drawn, a change tried and kept; nothing that axe finds."""

import pytest
from playwright.sync_api import Page, expect

from app.placements.new_form import structured_fleet
from tests.support.browser.access import PHONE, ours
from tests.support.browser.pages import heading, press
from tests.support.browser.settle import settle
from tests.support.browser.workspaces import begun
from tests.support.seeds import repeated
from torchsplit_core.jobs.job_kinds import RequestParameters
from torchsplit_core.jobs.place import place_job
from torchsplit_core.values import ignore_progress
from torchsplit_core.workspace.store import Workspace

pytestmark = pytest.mark.browser
SOLVED_MS = 60_000


@pytest.fixture(scope="module")
def large(address, home) -> Workspace:
    """A workspace with a placement on 1,024 GPUs."""
    workspace = begun(home, "large fleet")
    workspace.put("placement_request", "large", structured_fleet())
    place_job(workspace, RequestParameters("large"), ignore_progress)
    return workspace


def open_place(page: Page, address: str, workspace: Workspace, title: str) -> None:
    page.goto(f"{address}/placement?workspace={workspace.id}")
    heading(page, title)
    settle(page)


@pytest.mark.repeated
def test_thirty_gpus_are_placed_drawn_and_asked_what_if(session, address, home):
    page = session()
    open_place(page, address, begun(home, "thirty"), "Placement")
    press(page, "30 GPUs of three types")
    expect(page.get_by_text("proven optimal").filter(visible=True)).to_be_visible(timeout=SOLVED_MS)
    settle(page)
    expect(page.locator(".picture svg.gpu")).to_have_count(3)
    expect(page.locator(".picture svg.segment")).to_have_count(1)
    most = page.locator('[class*="st-key-most"] input')
    most.fill("1")
    most.press("Enter")
    expect(page.get_by_text("Tried, not kept")).to_be_visible()
    settle(page)
    expect(page.get_by_test_id("stMetricValue").first).to_contain_text("810")
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.get_by_text("Tried, not kept")).to_have_count(0)
    expect(page.get_by_text("to an earlier question")).to_have_count(0, timeout=SOLVED_MS)
    press(page, "Trace the curve")
    expect(page.get_by_text("that no other beats in both")).to_be_visible(timeout=SOLVED_MS)
    page.reload()
    heading(page, "30 GPUs of three types")
    expect(page.get_by_test_id("stMetricValue").first).to_contain_text("810")
    expect(page.get_by_text("that no other beats in both")).to_be_visible()


@repeated(("scheme", "width"), [("dark", PHONE), ("light", 1440)], kept=0)
def test_a_large_fleet_is_accessible_and_fits_its_window(session, address, large, scheme, width):
    page = session(width=width, scheme=scheme)
    open_place(page, address, large, "large")
    expect(page.get_by_text("proven optimal").filter(visible=True)).to_be_visible(timeout=SOLVED_MS)
    settle(page)
    expect(page.locator(".picture svg.gpu")).to_have_count(504)
    assert not ours(page), "\n".join(ours(page))
    sideways = page.evaluate("document.querySelector('[data-testid=\"stMain\"]').scrollWidth")
    assert sideways <= width

"""Hasty presses: a double click is one press, and a link pressed straight from a field opens its page."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.support.app.values import request
from tests.support.browser.pages import heading, press
from tests.support.browser.settle import settle
from tests.support.browser.workspaces import begun
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace

pytestmark = pytest.mark.browser
PRESSES = """
(button, details) => {
    let reached = 0;
    button.addEventListener("click", () => reached++);
    for (const detail of details)
        button.dispatchEvent(new MouseEvent("click", {bubbles: true, detail, clientX: 5, clientY: 5}));
    return reached;
}
"""
"""Presses a button that often at one moment and place, and says how many presses reach it."""


@pytest.fixture
def three(home) -> Workspace:
    """Three scenarios."""
    workspace = begun(home, "hasty")
    for name in ("first", "second", "third"):
        workspace.put("plan_request", name, request())
    return workspace


def open_scenario(page: Page, address: str, workspace: Workspace) -> None:
    page.goto(f"{address}/plan?workspace={workspace.id}&scenario=second")
    heading(page, "Plan")


def scenarios(workspace: Workspace) -> set[str]:
    return set(named_results.names(workspace, "plan_request"))


def test_a_double_click_is_one_press_and_keys_press_as_often_as_they_do(session, address, three):
    page = session()
    open_scenario(page, address, three)
    press(page, "Scenario …")
    button = page.get_by_role("button", name="Duplicate")
    assert button.evaluate(PRESSES, [1, 2]) == 1
    page.wait_for_url("**scenario=second+copy*")
    settle(page)
    assert scenarios(three) == {"first", "second", "third", "second copy"}
    press(page, "Scenario …")
    assert page.get_by_role("button", name="Present").evaluate(PRESSES, [0, 0]) == 2


@pytest.mark.repeated
def test_a_link_pressed_straight_from_a_field_opens_its_page_and_the_edit_stays(session, address, three):
    page = session()
    open_scenario(page, address, three)
    demand = page.get_by_role("textbox", name="bert, demand")
    demand.fill("150")
    page.keyboard.press("Enter")
    demand.fill("170")
    page.get_by_test_id("stSidebar").get_by_role("link", name="Models").click()
    heading(page, "Models")
    settle(page)
    expect(page).to_have_url(re.compile("/models"))
    page.get_by_test_id("stSidebar").get_by_role("link", name="Plan", exact=True).click()
    heading(page, "Plan")
    expect(page.get_by_role("textbox", name="bert, demand")).to_have_value("170")

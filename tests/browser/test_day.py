"""The tab Over the day: demand drawn over the windows with the pointer and by keys, and planned as it was drawn."""

import pytest
from playwright.sync_api import expect

from tests.support.app.values import request
from tests.support.browser.access import ours
from tests.support.browser.settle import settle
from tests.support.browser.workspaces import begun

KEYS_AND_PRESS = """
text => {
    for (const key of ["Home", "PageUp", "PageUp"])
        document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
    const button = [...document.querySelectorAll("button")].find(one => one.innerText.trim() === text);
    button.focus();
    button.click();
}
"""

pytestmark = pytest.mark.browser


@pytest.mark.repeated
def test_demand_is_drawn_with_the_pointer_and_moved_by_keys(session, address, home):
    workspace = begun(home, "drawn")
    workspace.put("plan_request", "review", request())
    page = session()
    page.goto(f"{address}/plan?workspace={workspace.id}&scenario=review&tab=over-the-day")
    bars = page.locator(".demand-bars").get_by_role("slider")
    expect(bars).to_have_count(2)
    expect(bars.first).to_have_attribute("aria-label", "bert, day 07:00–22:00")
    settle(page)
    top = float(bars.first.get_attribute("aria-valuemax") or 0)
    first, second = bars.nth(0).bounding_box(), bars.nth(1).bounding_box()
    assert first and second
    page.mouse.move(first["x"] + 5, first["y"] + first["height"] * 0.1)
    page.mouse.down()
    page.mouse.move(first["x"] + first["width"] - 5, first["y"] + first["height"] * 0.2)
    page.mouse.move(second["x"] + 5, second["y"] + second["height"] * 0.75)
    page.mouse.up()
    settle(page)
    drawn = [float(bars.nth(place).get_attribute("aria-valuenow") or 0) for place in (0, 1)]
    assert drawn == [pytest.approx(0.8 * top, abs=0.03 * top), pytest.approx(0.25 * top, abs=0.03 * top)]
    expect(bars.first).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(bars.nth(1)).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("PageUp")
    settle(page)
    expect(bars.nth(1)).to_be_focused()
    moved = float(bars.nth(1).get_attribute("aria-valuenow") or 0)
    assert 0 < moved != drawn[1] and bars.nth(1).get_attribute("aria-valuetext") == f"{moved:g} requests/s"
    # In one go, so that the page has answered none of the keys when the button is pressed.
    page.evaluate(KEYS_AND_PRESS, "Plan the day")
    for _ in range(600):
        if windows := workspace.get("plan_request", "review").models[0].demand_windows:
            break
        page.wait_for_timeout(100)
    settle(page)
    assert [window.demand_rps for window in windows] == [pytest.approx(drawn[0]), pytest.approx(2 * moved)]
    assert ours(page) == []

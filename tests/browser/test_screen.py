"""The Plan page as one screen: what stands in sight, what folds, and how far the keyboard has to go."""

from dataclasses import replace

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browser.access import PHONE, cut_off
from tests.support.browser.pages import heading, press
from tests.support.browser.settle import settle
from tests.support.browser.workspaces import begun
from tests.support.seeds import repeated
from torchsplit_core import workflow
from torchsplit_core.jobs.quick_start import measured_mix
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.workspace.store import Workspace

pytestmark = pytest.mark.browser
HEIGHT = 900
MOST_TABS = 10


@pytest.fixture(scope="module")
def door(home) -> Workspace:
    """The plan of the first door, found in a few seconds and not proven."""
    workspace = begun(home, "screen")
    name = measured_mix(workspace)
    request = workspace.get("plan_request", name)
    outcome = workflow.plan(replace(request, solver=replace(request.solver, time_limit_s=3.0)))
    workspace.put("plan", name, replace(outcome, request_sha256=request_hash(request)))
    return workspace


def open_plan(page: Page, address: str, workspace: Workspace) -> None:
    page.goto(f"{address}/plan?workspace={workspace.id}")
    heading(page, "Plan")
    expect(page.locator(".st-key-slices .picture svg").first).to_be_visible()
    settle(page)


@pytest.mark.repeated
def test_the_tour_has_five_steps_and_is_remembered(session, address, door):
    page = session()
    open_plan(page, address, door)
    tour = page.locator(".st-key-tour")
    opaque(page, tour)
    for step in range(1, 6):
        expect(tour.get_by_text(f"{step} of 5")).to_be_visible()
        if step == 3:
            settle(page)
            card, sliders = tour.bounding_box(), page.locator(".st-key-inputs-models").bounding_box()
            assert card and sliders and card["x"] >= sliders["x"] + sliders["width"], (
                "it lies on what it explains"
            )
        press(page, "Done" if step == 5 else "Next")
    expect(tour).to_have_count(0)
    page.wait_for_function("document.cookie.includes('torchsplit_tour')")
    page.reload()
    open_plan(page, address, door)
    expect(tour).to_have_count(0)
    # Who never saw it can skip it.
    other = session()
    open_plan(other, address, door)
    press(other, "Skip the tour")
    expect(other.locator(".st-key-tour")).to_have_count(0)


@repeated(("width", "words"), [(1024, ".st-key-headline p"), (390, "p.draft-line")])
def test_the_head_of_a_plan_has_room_for_its_words(session, address, door, width, words):
    page = session()
    page.set_viewport_size({"width": width, "height": HEIGHT})
    open_plan(page, address, door)
    settle(page)
    cut = page.locator(words).evaluate_all(
        "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText)"
    )
    assert cut == []


def opaque(page: Page, over: Locator) -> None:
    """What lies over the page has its ground, and nothing shines through."""
    ground = page.get_by_test_id("stApp").evaluate("element => getComputedStyle(element).backgroundColor")
    expect(over).to_have_css("background-color", ground)


def bottom(page: Page, selector: str) -> float:
    box = page.locator(selector).first.bounding_box()
    assert box is not None, selector
    return box["y"] + box["height"]


def test_the_answer_stands_on_one_screen_and_inputs_scroll_apart(session, address, door):
    page = session()
    page.set_viewport_size({"width": 1440, "height": HEIGHT})
    open_plan(page, address, door)
    seen = {part: bottom(page, f".st-key-{part}") for part in ("results", "numbers")}
    seen["first GPU"] = bottom(page, ".st-key-slices .picture svg")
    assert max(seen.values()) < HEIGHT, seen
    inputs = page.locator(".st-key-plan-inputs")
    box, shown = inputs.bounding_box(), page.locator(".st-key-plan-results").bounding_box()
    assert box is not None and shown is not None
    assert box["x"] + box["width"] <= shown["x"] and 430 <= box["width"] <= 560
    # The last input comes into sight, and the map has not left.
    page.get_by_role("combobox", name="What is best").scroll_into_view_if_needed()
    expect(page.locator(".st-key-slices .picture svg").first).to_be_in_viewport()
    # Folded, they stay so over reruns, and the map takes their place.
    press(page, "Inputs")
    expect(inputs).to_be_hidden()
    page.get_by_role("tab", name="History").click()
    page.get_by_role("tab", name="Plan", exact=True).click()
    settle(page)
    expect(inputs).to_be_hidden()
    wide = page.locator(".st-key-plan-results").bounding_box()
    assert wide is not None and wide["width"] > shown["width"] + 200
    press(page, "Inputs")
    expect(inputs).to_be_visible()


@repeated("width", [390, 1024], kept=1)
def test_in_a_narrow_window_the_inputs_are_a_fold_and_nothing_is_cut_off(session, address, door, width):
    page = session(width=width)
    open_plan(page, address, door)
    inputs = page.locator(".st-key-plan-inputs")
    expect(inputs).to_be_hidden()
    press(page, "Inputs")
    expect(inputs).to_be_visible()
    settle(page)
    map_, box = page.locator(".st-key-slices").bounding_box(), inputs.bounding_box()
    assert map_ is not None and box is not None and box["y"] > map_["y"]
    assert not cut_off(page)
    assert page.evaluate("document.querySelector('[data-testid=\"stMain\"]').scrollWidth") <= width
    if width == PHONE:
        opaque(page, page.get_by_test_id("stHeader"))


@pytest.mark.repeated
def test_the_keyboard_reaches_the_results_within_ten_presses(session, address, door):
    page = session()
    open_plan(page, address, door)
    link = page.get_by_role("button", name="Skip to the results")
    for _ in range(MOST_TABS - 1):
        page.keyboard.press("Tab")
        if link.evaluate("node => node === document.activeElement"):
            break
    expect(link).to_be_focused()
    expect(link).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator(".st-key-results")).to_be_focused()
    assert "#" not in page.url

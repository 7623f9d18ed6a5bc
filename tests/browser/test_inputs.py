"""The inputs of the Plan page by keyboard: what is typed, marked, refused and put back, and that nothing moves."""

from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from tests.support.app.values import request
from tests.support.browser.access import PHONE, ours
from tests.support.browser.pages import heading, press
from tests.support.browser.settle import settle
from tests.support.browser.workspaces import begun
from torchsplit_core import workflow
from torchsplit_core.values import Colocation, PlanRequest
from torchsplit_core.workspace.store import Workspace

pytestmark = pytest.mark.browser
ODD = ("my__model", "*bold* <b>" + "x" * 190, "نموذج")
FIELDS = """() => [...document.querySelectorAll('.field-rows :is(input, select, button)')]
  .filter(one => one.checkVisibility() && !one.disabled).map(one => one.getAttribute('aria-label'))"""
"""The names of all fields in reading order."""
TOPS = """() => { const top = document.querySelector('.st-key-plan-inputs').getBoundingClientRect().top;
  return [...document.querySelectorAll('.field-rows .row')].map(row => row.getBoundingClientRect().top - top); }"""
"""Where each row stands in the inputs."""
TOO_WIDE = """() => [...document.querySelectorAll('.field-rows, .field-rows .row')]
  .filter(one => one.scrollWidth > one.clientWidth).length"""


def asked() -> PlanRequest:
    models = tuple(replace(request().models[0], name=name) for name in ODD)
    return replace(request(), models=models, colocations=(Colocation(ODD, "soft", 1e6),))


@pytest.fixture(scope="module")
def odd(address, home) -> Workspace:
    """A plan of models with odd names, of whom three belong together."""
    workspace = begun(home, "odd names")
    workspace.put("plan_request", "odd", asked())
    workspace.put("plan", "odd", workflow.plan(asked()))
    return workspace


def open_plan(page: Page, address: str, workspace: Workspace) -> None:
    page.goto(f"{address}/plan?workspace={workspace.id}")
    heading(page, "Plan")
    expect(page.locator(".picture svg").first).to_be_visible()
    settle(page)


@pytest.mark.repeated
def test_the_keyboard_types_what_is_marked_refused_and_mended_and_nothing_moves(session, address, odd):
    page = session()
    open_plan(page, address, odd)
    names, before = page.evaluate(FIELDS), page.evaluate(TOPS)
    page.get_by_role("combobox", name="A100-80GB, GPU type").focus()
    walked = []
    for _ in names:
        walked.append(page.evaluate("document.activeElement.getAttribute('aria-label')"))
        page.keyboard.press("Tab")
    assert walked == names
    demand = page.get_by_role("textbox", name="my__model, demand")
    demand.fill("57.5")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Draft · demand of my__model 200 → 57.5")).to_be_visible()
    expect(page.locator(".row").filter(has=demand).locator("s").first).to_have_text("200")
    least = page.get_by_role("textbox", name="my__model, min")
    least.fill("many")
    page.keyboard.press("Enter")
    expect(least).to_have_attribute("aria-invalid", "true")
    expect(least).to_have_value("many")
    expect(page.locator(".fault").get_by_text("is 'many', not a number. Enter a number")).to_be_visible()
    found = [line for scheme in ("dark", "light") for line in axe(page, scheme)]
    assert not found, "\n".join(found)
    # What is being typed is not lost to an answer of another field.
    page.get_by_role("slider", name="نموذج, demand").press("ArrowRight")
    least.fill("4")
    expect(page.get_by_text("نموذج 200 → 220")).to_be_visible()
    settle(page)
    expect(least).to_have_value("4")
    page.keyboard.press("Enter")
    expect(least).to_have_attribute("aria-invalid", "false")
    expect(page.get_by_text("minimum of my__model none → 4 req/s")).to_be_visible()
    settle(page)
    assert page.evaluate(TOPS) == before


EDIT_AND_PRESS = """
text => {
    for (const [name, value] of [["my__model, demand", "31"], ["my__model, min", "3"], ["my__model, weight", "2"]]) {
        const field = document.querySelector(`input[type=text][aria-label^="${name}"]`);
        field.focus();
        field.value = value;
        field.dispatchEvent(new Event("change", {bubbles: true}));
    }
    const button = [...document.querySelectorAll("button")].find(one => one.innerText.trim() === text);
    button.focus();
    button.click();
}
"""


def test_a_button_that_is_pressed_at_once_knows_every_edit_before_it(session, address, odd):
    odd.put("plan_request", "hasty", asked())
    odd.put("plan", "hasty", workflow.plan(asked()))
    page = session()
    page.goto(f"{address}/plan?workspace={odd.id}&scenario=hasty")
    heading(page, "Plan")
    page.get_by_role("textbox", name="my__model, demand").fill("30")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Keep and prove")).to_be_visible()
    settle(page)
    # In one go, so that the page has answered none of the edits when the button is pressed.
    page.evaluate(EDIT_AND_PRESS, "Keep and prove")
    expect(page.get_by_role("button", name="Keep and prove")).to_have_count(0)
    model = odd.get("plan_request", "hasty").models[0]
    assert (model.demand_rps, model.min_throughput_rps, model.weight) == (31, 3, 2)


def axe(page: Page, scheme: str) -> list[str]:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    settle(page)
    return ours(page)


@pytest.mark.repeated
def test_a_row_is_removed_and_put_back_in_a_narrow_window_without_sideways_scrolling(session, address, odd):
    page = session(width=PHONE)
    open_plan(page, address, odd)
    press(page, "Inputs")
    settle(page)
    assert page.evaluate(TOO_WIDE) == 0
    row = page.get_by_role("group", name="my__model", exact=True)
    row.get_by_role("button", name="More of my__model").click()
    row.get_by_role("button", name="Remove my__model").click()
    back = row.get_by_role("button", name="Put back")
    expect(back).to_be_focused()
    expect(page.get_by_text("my__model removed")).to_be_visible()
    settle(page)
    assert page.evaluate(TOO_WIDE) == 0
    page.keyboard.press("Enter")
    expect(row.get_by_role("slider")).to_be_visible()
    # Those that belong together went with it, and are put back too.
    pair = page.locator(".st-key-inputs-pairs").get_by_role("button", name="Put back")
    pair.click()
    expect(page.get_by_text("draft, not kept")).to_have_count(0)

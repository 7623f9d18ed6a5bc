"""What if, side by side, by hand, a link and a report: the Plan page as a review uses it."""

import re
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser.access import PHONE, in_document, ours
from tests.support.browser.pages import PLANNED_MS, heading, press
from tests.support.browser.settle import settle
from tests.support.browser.workspaces import begun
from tests.support.planning.requests import whole_model
from tests.support.seeds import repeated
from torchsplit_core import workflow
from torchsplit_core.values import FleetEntry, PlanModel, PlanRequest, Point
from torchsplit_core.workspace.store import Workspace

pytestmark = pytest.mark.browser
TABS = ("Plan", "Under load", "Run it", "Sweep", "Baselines", "Compare", "By hand", "History", "Deploy")


def model(name: str, speed: float) -> PlanModel:
    points = tuple(
        Point("A100-80GB", profile, 8, speed * compute, 40.0, memory_gib=4.0)
        for profile, compute in (
            ("1g.10gb", 1), ("2g.20gb", 2), ("3g.40gb", 3), ("4g.40gb", 4), ("7g.80gb", 7),
        )
    )  # fmt: skip
    return whole_model(name, points, demand_rps=100.0)


@pytest.fixture(scope="module")
def solved(address, home) -> Workspace:
    """A workspace with two planned scenarios: two models on one GPU and on two."""
    request = PlanRequest((FleetEntry("A100-80GB"),), (model("bert", 30.0), model("ocr", 50.0)))
    workspace = begun(home, "review")
    workspace.put("plan_request", "review", request)
    workspace.put("plan", "review", workflow.plan(request))
    wide = replace(request, gpus=(FleetEntry("A100-80GB", count=2),))
    workspace.put("plan_request", "two GPUs", wide)
    workspace.put("plan", "two GPUs", workflow.plan(wide))
    return workspace


@pytest.fixture
def planned(solved) -> Workspace:
    """A copy of it for one test."""
    return solved.store.copy(solved.id, solved.store.free_name("copy"))


def open_plan(page: Page, address: str, workspace: Workspace) -> None:
    page.goto(f"{address}/plan?workspace={workspace.id}&scenario=review")
    heading(page, "Plan")
    expect(page.locator(".picture svg").first).to_be_visible()
    settle(page)


def turn_to(page: Page, tab: str) -> None:
    page.get_by_role("tab", name=tab, exact=True).click()
    settle(page)


@pytest.mark.repeated
def test_a_slider_is_tried_kept_and_shown_to_another_by_its_link(session, address, planned):
    page = session()
    open_plan(page, address, planned)
    press(page, "Scenario …")
    press(page, "Duplicate")
    page.wait_for_url("**scenario=review+copy*")
    page.keyboard.press("Escape")
    # The address changes before the page does: sliders of the first scenario still stand until then.
    expect(page.get_by_role("combobox", name="Scenario", exact=True)).to_have_value("review copy")
    settle(page)
    before = page.get_by_test_id("stMetricValue").first.inner_text()
    # Moves faster than the answers: the last one counts, and the way back puts the slider back too.
    demand = page.get_by_role("slider", name="bert, demand")
    demand.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    expect(page.get_by_text("Draft · demand of bert 100 → 300", exact=True)).to_be_visible()
    expect(demand).to_have_attribute("aria-valuetext", "300")
    settle(page)
    press(page, "Discard")
    expect(page.get_by_text("draft, not kept")).to_have_count(0)
    expect(demand).to_have_attribute("aria-valuetext", "100")
    settle(page)
    demand.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("draft, not kept").filter(visible=True)).to_be_visible()
    expect(page.get_by_text("Draft · demand of bert 100 → 110")).to_be_visible()
    expect(page.get_by_test_id("stMetricValue").first).not_to_have_text(before)
    settle(page)
    page.get_by_role("slider", name="A100-80GB, count").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("Draft · A100-80GB 1 → 2")).to_be_visible()
    settle(page)
    # The bar stays in sight, and a reload finds the draft.
    page.mouse.wheel(0, 1500)
    expect(page.get_by_role("button", name="Keep and prove")).to_be_in_viewport()
    page.reload()
    heading(page, "Plan")
    expect(page.get_by_text("Draft · A100-80GB 1 → 2")).to_be_visible()
    settle(page)
    # It is this tab's: the same address in another one shows what is kept.
    beside = page.context.new_page()
    beside.goto(page.url)
    expect(beside.get_by_test_id("stMetricValue").first).to_have_text(before)
    expect(beside.get_by_text("draft, not kept")).to_have_count(0)
    beside.close()
    press(page, "Keep and prove")
    expect(page.get_by_text("draft, not kept")).to_have_count(0, timeout=PLANNED_MS)
    expect(page.get_by_text("proven optimal").filter(visible=True)).to_be_visible(timeout=PLANNED_MS)
    expect(page.get_by_text("2 of 2").first).to_be_visible()
    kept = planned.get("plan_request", "review copy")
    assert kept.models[0].demand_rps == 110.0 and kept.gpus[0].count == 2

    second = session()
    second.goto(page.url)
    heading(second, "Plan")
    assert "scenario=review+copy" in second.url
    expect(second.get_by_text("2 of 2").first).to_be_visible()


def test_a_model_picked_in_the_table_or_on_the_map_stands_alone_in_both(session, address, planned):
    page = session()
    open_plan(page, address, planned)
    bert, ocr = page.locator("table.ts tr[data-model=bert]"), page.locator("table.ts tr[data-model=ocr]")
    slices = page.locator(".picture svg[data-model=ocr]")
    drawer = page.locator(".st-key-drawer")
    page.get_by_role("button", name="ocr", exact=True).click()
    expect(bert).to_have_css("opacity", "0.4")
    expect(ocr).to_have_css("opacity", "1")
    expect(drawer.get_by_text("a line a slice")).to_be_visible()
    expect(page.locator(".picture svg[data-model=bert]").first).to_have_css("opacity", "0.2")
    # Another plan keeps the pick.
    page.get_by_role("slider", name="bert, demand").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("draft, not kept").filter(visible=True)).to_be_visible()
    settle(page)
    expect(bert).to_have_css("opacity", "0.4")
    # A slice that is chosen picks its model, and tells of itself; chosen again, it ends both.
    slices.first.click()
    expect(drawer.get_by_role("heading", name="ocr")).to_be_visible()
    expect(drawer.get_by_text("service time, p95")).to_be_visible()
    expect(bert).to_have_css("opacity", "0.4")
    settle(page)
    slices.first.click()
    expect(drawer).to_have_count(0)
    expect(bert).to_have_css("opacity", "1")


@pytest.mark.repeated
def test_fleet_and_pair_are_edited_and_a_slice_is_changed_by_hand(session, address, planned):
    page = session()
    open_plan(page, address, planned)
    count = page.get_by_role("textbox", name="A100-80GB, count")
    count.fill("2")
    count.press("Enter")
    expect(page.get_by_text("Draft · A100-80GB 1 → 2")).to_be_visible()
    settle(page)
    # What was typed outlives another page.
    page.get_by_test_id("stSidebar").get_by_role("link", name="Models").click()
    heading(page, "Models")
    page.go_back()
    expect(page.get_by_text("Draft · A100-80GB 1 → 2")).to_be_visible()
    settle(page)
    page.get_by_role("combobox", name="another pair, first").select_option("bert")
    page.get_by_role("combobox", name="another pair, second").select_option("ocr")
    expect(page.get_by_text("Draft · A100-80GB 1 → 2 · bert and ocr together added")).to_be_visible()
    settle(page)
    press(page, "Keep and prove")
    expect(page.get_by_test_id("stMetricValue").nth(2)).to_have_text("2 of 2", timeout=PLANNED_MS)
    # What binds the models is found without being asked; then nothing runs any more.
    expect(page.get_by_text("What binds each model")).to_be_visible(timeout=PLANNED_MS)
    expect(page.get_by_text("proven optimal").filter(visible=True)).to_be_visible()
    kept = planned.get("plan_request", "review")
    assert kept.gpus[0].count == 2 and kept.colocations[0].models == ("bert", "ocr")

    turn_to(page, "By hand")
    expect(page.get_by_text("legal, checked").filter(visible=True)).to_be_visible()
    expect(page.get_by_text("Choose a slice or uncut slots on the map")).to_be_visible()
    slices = page.locator(".st-key-by-hand-slices [data-place]")
    before = slices.count()
    slices.first.focus()
    page.keyboard.press("Enter")
    expect(slices.first).to_have_attribute("aria-pressed", "true")
    page.get_by_role("combobox", name="Slice here").click()
    page.get_by_role("option", name="no slice").click()
    expect(page.get_by_text("no slice at slot 0")).to_be_visible()
    expect(slices.first).to_have_attribute("aria-label", re.compile("No slice here"))
    settle(page)
    assert slices.count() <= before
    page.get_by_role("button", name="Undo", exact=True).click()
    expect(slices).to_have_count(before)
    expect(page.get_by_text("legal, checked").filter(visible=True)).to_be_visible()


@pytest.mark.repeated
def test_the_report_opens_from_disk_without_a_server(session, address, planned, tmp_path):
    page = session()
    open_plan(page, address, planned)
    with page.expect_download() as waiting:
        press(page, "Report (HTML)")
    file = tmp_path / "review.html"
    waiting.value.save_as(file)
    page.goto(file.as_uri())
    expect(page.get_by_role("heading", name="review")).to_be_visible()
    expect(page.get_by_text("proven optimal").filter(visible=True)).to_be_visible()
    assert page.locator("svg").count() > 2 and not in_document(page)


@repeated(("scheme", "width"), [("dark", PHONE), ("light", 1440)], kept=0)
def test_every_tab_is_accessible_and_fits_its_window(session, address, planned, scheme, width):
    page = session(width=width, scheme=scheme)
    open_plan(page, address, planned)
    found = []
    for tab in TABS:
        turn_to(page, tab)
        found += [f"{scheme} {tab}: {line}" for line in ours(page)]
        sideways = page.evaluate("document.querySelector('[data-testid=\"stMain\"]').scrollWidth")
        if sideways > width:
            found.append(f"{tab} is {sideways} wide")
    assert not found, "\n".join(found)


@pytest.mark.repeated
def test_a_load_is_told_quickly_and_then_in_full(session, address, solved):
    page = session()
    page.goto(f"{address}/plan?workspace={solved.id}&scenario=review&tab=under-load")
    full, quick = page.get_by_text("requests in each of 5 runs a model. "), page.get_by_text("quick look at")
    expect(full).to_be_visible()
    expect(
        page.get_by_text("All 2 models").or_(page.get_by_text("Every model is stable."))
    ).not_to_have_count(0)
    slider = page.get_by_role("slider", name="Load, times the demand")
    slider.press("End")
    expect(page.get_by_text(re.compile("^Not stable: "))).to_be_visible()
    # What was run is kept: back at the demand nothing is looked at quickly.
    expect(quick).to_have_count(0)
    expect(full).to_be_visible()
    expect(page).to_have_url(re.compile("tab=under-load"))


@pytest.mark.repeated
def test_a_scenario_opened_by_its_link_is_deployed_also_after_a_reload(session, address, planned):
    planned.set_setting("scenario", "two GPUs")  # the last one chosen from the list
    page = session()
    open_plan(page, address, planned)
    press(page, "Deploy this plan")
    expect(page.get_by_text("Files of review: ")).to_be_visible()
    page.wait_for_url("**/plan?*scenario=review&tab=deploy")
    expect(page).to_have_title("Deploy · review · TorchSplit")
    page.reload()
    heading(page, "Plan")
    expect(page.get_by_text("Files of review: ")).to_be_visible()
    expect(page.get_by_role("combobox", name="Scenario", exact=True)).to_have_value("review")


@pytest.mark.repeated
def test_a_deleted_scenario_comes_back_and_its_menu_is_closed(session, address, planned):
    page = session()
    open_plan(page, address, planned)
    press(page, "Scenario …")
    press(page, "Delete")
    expect(page.get_by_text("Deleted the scenario review.")).to_be_visible()
    settle(page)
    expect(page.get_by_role("button", name="Delete", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Undo", exact=True).click()
    page.wait_for_url("**scenario=review*")
    expect(page.get_by_role("combobox", name="Scenario", exact=True)).to_have_value("review")
    assert planned.find("plan", "review") is not None

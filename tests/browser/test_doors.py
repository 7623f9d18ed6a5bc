"""A newcomer's walk through both doors to a plan on screen and its files; what a reload and a second session see."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser.pages import PLANNED_MS, heading

pytestmark = pytest.mark.browser


def shows_slices_of(page: Page, *models: str) -> None:
    """Wait until the slice map names these models."""
    for model in models:
        picture = page.locator(".picture").filter(has_text=model)
        expect(picture.first).to_be_visible(timeout=PLANNED_MS)


def plan_the_measured_mix(page: Page, address: str) -> None:
    page.goto(address)
    heading(page, "Overview")
    page.get_by_role("button", name="Plan the measured mix").click()
    heading(page, "Plan")
    expect(page.get_by_text("proven optimal").filter(visible=True)).to_be_visible(timeout=PLANNED_MS)


def test_the_measured_mix_is_one_click_from_a_plan(session, address):
    page = session()
    plan_the_measured_mix(page, address)
    shows_slices_of(page, "resnet152", "vgg19")
    expect(page.get_by_test_id("stMetric").first).to_contain_text("× its demand")


@pytest.mark.repeated
def test_the_measured_mix_is_one_click_from_a_plan_and_survives_a_reload(session, address):
    page = session()
    plan_the_measured_mix(page, address)
    # Then it is explained without being asked: until that ends, its progress keeps the page moving.
    expect(page.get_by_text("What binds each model")).to_be_visible(timeout=PLANNED_MS)
    shows_slices_of(page, "resnet152", "vgg19")
    expect(page.get_by_test_id("stMetric").first).to_contain_text("× its demand")
    workspace = re.search(r"workspace=(\w+)", page.url)
    assert workspace

    page.reload()
    heading(page, "Plan")
    shows_slices_of(page, "resnet152", "vgg19")
    assert f"workspace={workspace[1]}" in page.url

    other = session()
    other.goto(address)
    heading(other, "Overview")
    expect(other.get_by_role("button", name="Plan the measured mix")).to_be_visible()
    assert workspace[1] not in other.url

    # The browser draws what lies behind another page when it likes.
    page.bring_to_front()
    page.get_by_role("button", name="Deploy this plan").click()
    expect(page.get_by_text("mig-devices").first).to_be_visible(timeout=120_000)
    expect(page.get_by_role("button", name="All files (zip)")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="All files (zip)").click()
    assert download.value.suggested_filename.endswith(".zip")


@pytest.mark.repeated
def test_the_sample_models_are_measured_here_and_planned(session, address):
    page = session()
    page.goto(address)
    heading(page, "Overview")
    page.get_by_role("button", name="Trace, measure and plan the samples").click()
    heading(page, "Plan")
    expect(page.get_by_role("button", name="Cancel").first).to_be_visible()
    page.reload()
    heading(page, "Plan")
    shows_slices_of(page, "diamond", "bert")
    expect(page.get_by_text("2 of 2 profiles estimated").filter(visible=True)).to_be_visible()


def test_running_work_can_be_cancelled_and_the_page_goes_on(session, address):
    page = session()
    page.goto(address)
    heading(page, "Overview")
    page.get_by_role("button", name="Trace, measure and plan the samples").click()
    heading(page, "Plan")
    page.get_by_role("button", name="Cancel").first.click()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    page.get_by_role("link", name="Models").first.click()
    heading(page, "Models")
    expect(page.get_by_role("button", name="Plan the measured mix").first).to_be_attached()

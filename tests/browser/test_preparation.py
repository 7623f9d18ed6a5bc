"""The steps of the preparation, left out one by one: cut points come and go, and a reload keeps them."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.support.browser.explorer import canvas, drawing, redrawn, save_model
from tests.support.browser.pages import heading, press
from tests.support.browser.settle import settle

pytestmark = pytest.mark.browser


def cut_points(page: Page) -> int:
    text = page.get_by_text(re.compile(r"nodes · \d+ cut point")).inner_text()
    return int(text.split(" · ")[1].split()[0])


@pytest.mark.repeated
def test_a_step_left_out_takes_the_cut_points_and_put_back_gives_them(session, address, tmp_path):
    save_model(tmp_path / "blocks.pt2")
    page = session()
    page.goto(address)
    heading(page, "Overview")
    page.locator('[data-testid="stFileUploaderDropzoneInput"]').set_input_files(tmp_path / "blocks.pt2")
    heading(page, "blocks.pt2")
    canvas(page)
    whole, partial = cut_points(page), page.get_by_text("4 of 5 steps: partitioning uses all")
    assert whole > 6
    expect(partial).to_have_count(0)
    filled = page.locator(".row .dot.cut")
    expect(filled.nth(1)).to_be_visible()

    page.get_by_text("Preparation for cutting").click()
    expect(page.locator("table.ts td.name")).to_have_count(6)
    before = drawing(page)
    settle(page)  # a press while the panel unfolds misses
    page.get_by_text("Weights charged to their readers", exact=True).first.click()
    expect(partial).to_be_visible()
    without = redrawn(page, before)
    # Behind the last layer with weights alone: nothing else reaches the output.
    assert cut_points(page) == 1
    expect(filled).to_have_count(0)
    page.locator(".rows").first.evaluate("list => list.scrollTop = list.scrollHeight")
    expect(filled).to_have_count(1)
    expect(page.locator("table.ts")).to_contain_text("left out")
    settle(page)
    found = [v["id"] for v in Axe().run(page).response["violations"] if v["id"] not in ("list", "listitem")]
    assert not found, found

    page.get_by_role("radio", name="preparation").click()
    expect(page.locator(".legend").first).to_contain_text("kept")

    page.reload()
    heading(page, "blocks.pt2")
    canvas(page)
    expect(partial).to_be_visible()
    page.get_by_text("Preparation for cutting").click()
    press(page, "Take all steps")
    redrawn(page, without)
    expect(partial).to_have_count(0)
    assert cut_points(page) == whole
    expect(filled.nth(1)).to_be_visible()

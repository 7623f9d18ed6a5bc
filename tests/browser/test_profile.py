"""Profiles as a user meets them: measured here point by point, asked about, compared, downloaded."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser.access import PHONE, ours
from tests.support.browser.pages import heading
from tests.support.browser.settle import settle
from tests.support.browser.workspaces import begun
from tests.support.seeds import repeated
from torchsplit_core.jobs.quick_start import measured_mix

pytestmark = pytest.mark.browser
MEASURED_MS = 120_000
SOURCE = "sample:diamond"


def choose(page: Page, label: str, *options: str) -> None:
    """Set a choice of several to exactly these options, as a user types them."""
    box = page.get_by_label(label, exact=True).first
    box.click()
    for option in options:
        box.fill(option)
        page.get_by_role("option", name=option, exact=True).first.click()
    page.keyboard.press("Escape")
    settle(page)


def tab(page: Page, name: str) -> None:
    """Go to a tab and wait until it is drawn."""
    page.get_by_role("tab", name=name).click()
    settle(page)


def act(page: Page, label: str) -> None:
    """Press the button of exactly that label, once the page stands still."""
    settle(page)
    page.get_by_role("button", name=label, exact=True).click()


def measured(page: Page) -> None:
    """Wait until the work at the head of the page is done."""
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0, timeout=MEASURED_MS)
    settle(page)


def download(page: Page, label: str) -> str:
    """The text of the file that a button gives."""
    with page.expect_download() as found:
        page.get_by_role("button", name=label).click()
    return Path(found.value.path()).read_text(encoding="utf-8")


@pytest.mark.repeated
def test_a_model_is_measured_asked_about_and_downloaded(session, address):
    page = session()
    page.goto(f"{address}/profile")
    heading(page, "Model")
    expect(page.get_by_text("Here you will see throughput and service time")).to_be_visible()
    choose(page, "Models to measure", SOURCE)
    page.get_by_label("Batch sizes", exact=True).fill("1, 2")
    page.keyboard.press("Enter")
    page.get_by_text("How to measure").click()
    page.get_by_label("Seconds a point", exact=True).fill("0.1")
    page.keyboard.press("Enter")
    settle(page)
    grid = page.locator("table.ts").first
    expect(grid.get_by_text("to measure")).to_have_count(2)

    act(page, "Measure")
    expect(page.get_by_text("the points as they come")).to_be_visible()
    expect(page.locator("table.ts").first.locator("td b")).to_have_count(2, timeout=MEASURED_MS)
    measured(page)
    expect(page.get_by_text("2 rows measured").filter(visible=True)).to_be_visible()

    # Both points are known now: nothing is measured again without a question.
    act(page, "Measure")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 points were measured on")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    page.get_by_label("Batch sizes", exact=True).fill("1, 2, 4")
    page.keyboard.press("Enter")
    settle(page)
    act(page, "Measure")
    dialog.get_by_role("button", name="Measure only the 1 missing").click()
    expect(page.get_by_text("3 rows measured").filter(visible=True)).to_be_visible(timeout=MEASURED_MS)
    measured(page)

    tab(page, "Table")
    choose(page, "Basis", "measured")
    expect(page.get_by_text(re.compile(r"^3 of "))).to_be_visible()
    rows = list(csv.DictReader(io.StringIO(download(page, "These rows (CSV)"))))
    assert [row["batch_size"] for row in rows] == ["1", "2", "4"]
    assert {row["basis"] for row in rows} == {"measured"}
    profile = json.loads(download(page, "This profile (JSON)"))
    assert profile["format"] == "torchsplit.profile" and profile["source"] == SOURCE

    # The choice is still there after a look elsewhere.
    tab(page, "Curves")
    expect(page.get_by_test_id("stPlotlyChart")).to_be_visible()
    tab(page, "Memory")
    expect(page.get_by_text("3 peaks measured").filter(visible=True)).to_be_visible()
    tab(page, "Table")
    expect(page.get_by_text(re.compile(r"^3 of "))).to_be_visible()


@pytest.fixture(scope="module")
def filled(address, home) -> str:
    """The id of a workspace with the measured mix: every tab has something to show."""
    workspace = begun(home, "measured")
    measured_mix(workspace)
    return workspace.id


@repeated(("scheme", "width"), [("dark", PHONE), ("light", 1440)], kept=0)
def test_every_tab_is_accessible_and_fits_its_window(scheme, width, session, address, filled):
    page = session(width=width, scheme=scheme)
    page.goto(f"{address}/profile?workspace={filled}")
    heading(page, "library:bert")
    found = []
    for name in ("Curves", "Memory", "Table", "Compare", "Measure", "Import"):
        tab(page, name)
        found += [f"{name}: {line}" for line in ours(page)]
        wide = page.evaluate("document.querySelector('[data-testid=\"stMain\"]').scrollWidth")
        found += [f"{name} is {wide} wide"] if wide > width else []
    assert not found, "\n".join(found)


@pytest.mark.repeated
def test_the_curves_have_a_picture_words_and_a_table(session, address, filled):
    page = session()
    page.goto(f"{address}/profile?workspace={filled}")
    heading(page, "library:bert")
    # The picture comes after the fits, which take seconds on a busy machine.
    expect(page.get_by_test_id("stPlotlyChart")).to_be_visible(timeout=MEASURED_MS)
    expect(page.get_by_role("figure", name=re.compile("^throughput over service time"))).to_be_visible()
    choose(page, "Models", "library:densenet169")
    choose(page, "Devices and slices", "A100-80GB · 3g.40gb")
    told = page.get_by_text(re.compile("far from the others of the model"))
    expect(told).to_be_visible(timeout=MEASURED_MS)
    expect(page.get_by_test_id("stPlotlyChart")).to_contain_text("far from the others")

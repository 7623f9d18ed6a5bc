"""Sizes of an LLM in a browser: pressed, changed, read on a phone and in the dark; nothing that axe finds."""

import pytest
from playwright.sync_api import expect

from app.placements import measured
from tests.support.browser.access import in_scheme, ours, too_wide_for_a_phone
from tests.support.browser.pages import heading, press
from tests.support.browser.settle import settle
from tests.support.browser.workspaces import begun
from tests.support.paths import ROOT

pytestmark = pytest.mark.browser
SIZED_MS = 60_000


@pytest.mark.repeated
def test_an_llm_is_sized_and_its_times_are_drawn(session, address, home):
    page = session()
    workspace = begun(home, "llm")
    page.goto(f"{address}/placements?workspace={workspace.id}")
    heading(page, "LLM placements")
    settle(page)
    assert ours(page) == []
    press(page, "Size")
    expect(page.get_by_text("Times over the rate")).to_be_visible(timeout=SIZED_MS)
    settle(page)
    expect(page.locator(".js-plotly-plot")).to_have_count(2)
    expect(page.get_by_test_id("stMetricValue").first).to_contain_text("1 × H100-SXM5-80GB")
    assert ours(page) == []
    assert too_wide_for_a_phone(page) == []
    in_scheme(page, "dark")
    assert ours(page) == []


@pytest.mark.repeated
def test_predictions_beside_measured_rows_are_drawn(session, address, home):
    page = session()
    workspace = begun(home, "measured")
    rows = (ROOT / measured.EXAMPLE).read_text(encoding="utf-8").splitlines()
    workspace.set_setting(measured.SETTING, ["mine.csv", "\n".join([rows[0], *rows[5:8]])])
    page.goto(f"{address}/placements?workspace={workspace.id}&tab=measured")
    expect(page.locator(".js-plotly-plot")).to_have_count(3, timeout=SIZED_MS)
    settle(page)
    assert ours(page) == []
    assert too_wide_for_a_phone(page) == []

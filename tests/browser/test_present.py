"""A plan on the whole window: it fits, one key steps, Escape leaves, and axe finds nothing of ours."""

from dataclasses import replace

import pytest
from playwright.sync_api import expect

from tests.support.app.values import request
from tests.support.browser.access import PHONE, WIDE, in_scheme, ours, too_wide_for_a_phone
from tests.support.browser.pages import heading
from tests.support.browser.settle import settle
from torchsplit_core import workflow
from torchsplit_core.values import FleetEntry
from torchsplit_core.workspace.store import Store
from torchsplit_core.workspace.versions import VersionStore

pytestmark = pytest.mark.browser
OVER = """() => { const main = document.querySelector('[data-testid="stMain"]');
  return [main.scrollHeight - innerHeight, document.documentElement.scrollWidth - innerWidth]; }"""
BOTTOM = """() => document.querySelector('.st-key-present-strip').getBoundingClientRect().bottom"""


@pytest.fixture
def workspace(home) -> str:
    """A scenario with two versions, of one GPU and of two."""
    filled = Store(home).create("presented")
    for count in (1, 2):
        asked = replace(request(), gpus=(FleetEntry("A100-80GB", count=count),))
        filled.put("plan_request", "review", asked)
        filled.put("plan", "review", workflow.plan(asked))
        VersionStore(filled, "review").save()
    return filled.id


@pytest.mark.repeated
def test_it_fills_the_window_and_keys_step_and_leave(session, address, workspace):
    page = session()
    page.goto(f"{address}/plan?workspace={workspace}&scenario=review")
    heading(page, "Plan")
    page.get_by_role("button", name="Present", exact=True).click()
    heading(page, "review")
    expect(page.get_by_test_id("stSidebar")).to_be_hidden()
    for width, height in ((1440, 900), (1920, 1080), (1024, 768)):
        page.set_viewport_size({"width": width, "height": height})
        settle(page)
        assert page.evaluate(OVER) == [0, 0]
        assert height - 30 < page.evaluate(BOTTOM) <= height
    page.set_viewport_size({"width": WIDE, "height": 900})
    moved = page.locator(".st-key-present-moved")
    expect(moved).to_contain_text("from v1")
    for key, words in (
        ("ArrowLeft", "then the stored plan"),
        ("ArrowRight", "from v1"),
        (" ", "then the stored plan"),
    ):
        settle(page)  # a key that comes while the page is drawn anew goes to nobody
        page.keyboard.press(key)
        expect(moved).to_contain_text(words)
    assert "at=before" in page.url
    # An arrow on a slider moves the slider; what comes of it is shown.
    page.get_by_role("slider", name="GPUs").press("ArrowRight")
    expect(moved).to_contain_text("Draft: A100-80GB 2 → 3")
    faults = []
    for scheme in ("light", "dark"):
        in_scheme(page, scheme)
        faults += [f"{scheme}: {line}" for line in ours(page)]
    assert not faults + too_wide_for_a_phone(page), faults
    page.set_viewport_size({"width": PHONE, "height": 844})
    page.locator("h1").click()
    page.keyboard.press("Escape")
    heading(page, "Plan")
    expect(page.get_by_text("draft, not kept").filter(visible=True)).to_be_visible()

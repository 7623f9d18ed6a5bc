"""What a user does and sees on every page."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.support.browser.settle import settle

PLANNED_MS = 120_000
"""For a proof on a busy machine; the first plan is there long before."""


def heading(page: Page, text: str) -> None:
    """Wait for the page of that title, drawn to its end."""
    expect(page.get_by_role("heading", name=text, exact=True, level=1)).to_be_visible(timeout=60_000)
    settle(page)


def press(page: Page, text: str) -> None:
    """Press a button once it stands still: a press while an expander unfolds around it misses it."""
    button = page.get_by_role("button", name=text)
    button.scroll_into_view_if_needed()
    before = None
    while (box := button.bounding_box()) != before or box is None:
        before = box
        page.wait_for_timeout(300)
    button.click()

"""What a user does and sees on every page."""

from playwright.sync_api import Page, expect

from tests.support.browser.settle import FRAMES, settle

PLANNED_MS = 120_000
"""For a proof on a busy machine; the first plan is there long before."""

TITLED = "text => [...document.querySelectorAll('h1')].some(one => one.innerText.trim() === text)"
STAND_STILL = """
async (element, frames) => {
    let before, still = 0;
    while (still < frames) {
        await new Promise(requestAnimationFrame);
        const box = JSON.stringify(element.getBoundingClientRect());
        still = box === before ? still + 1 : 0;
        before = box;
    }
}
"""


def heading(page: Page, text: str) -> None:
    """Wait for the page of that title, drawn to its end."""
    # In every frame: `expect` looks again after up to a second.
    page.wait_for_function(TITLED, arg=text, timeout=60_000)
    expect(page.get_by_role("heading", name=text, exact=True, level=1)).to_be_visible()
    settle(page)


def press(page: Page, text: str) -> None:
    """Press a button once it stands still: a press while an expander unfolds around it misses it."""
    button = page.get_by_role("button", name=text)
    button.scroll_into_view_if_needed()
    button.evaluate(STAND_STILL, FRAMES)
    button.click()

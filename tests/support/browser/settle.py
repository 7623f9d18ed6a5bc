"""When a page stands still: its script has ended, nothing of an earlier run is left, and nothing fades or moves."""

from collections.abc import Callable
from itertools import count
from typing import TypeVar

from playwright.sync_api import Page

SETTLED_MS = 60_000
FRAMES = 5
"""A page stands still when it did in this many frames in a row: a transition starts a frame after its cause."""
STANDS_STILL = """
([turn, frames]) => {
    if (window.settling?.turn !== turn) window.settling = {turn, frames: 0};
    const app = document.querySelector('[data-testid="stApp"]');
    const drawn = app !== null && app.dataset.testScriptState === 'notRunning'
        && !document.querySelector('[data-stale="true"], [data-testid="stSkeleton"]');
    // A page that is still being drawn is not searched for what moves: the search would slow the drawing.
    const below = root => [
        root, ...[...root.querySelectorAll('*')].flatMap(one => one.shadowRoot ? below(one.shadowRoot) : [])
    ];
    const moving = () => below(document).flatMap(root => root.getAnimations()).some(
        // One without an end is decoration, a spinner for instance.
        one => one.playState === 'running' && Number.isFinite(one.effect.getComputedTiming().endTime)
    );
    window.settling.frames = drawn && !moving() ? window.settling.frames + 1 : 0;
    return window.settling.frames >= frames;
}
"""
WATCH = """
() => {
    window.runs?.disconnect();
    window.ran = false;
    window.runs = new MutationObserver(() => { window.ran = true; });
    window.runs.observe(
        document.querySelector('[data-testid="stApp"]'),
        {attributes: true, attributeFilter: ['data-test-script-state']},
    );
}
"""
MOST_LOOKS = 10
Found = TypeVar("Found")
_turns = count()


def settle(page: Page) -> None:
    """Wait until the page is drawn to its end and nothing on it fades or moves any more."""
    page.wait_for_function(STANDS_STILL, arg=[next(_turns), FRAMES], timeout=SETTLED_MS)


def undisturbed(page: Page, look: Callable[[], Found]) -> Found:
    """What a look gives that no run of the page's script fell into: while one runs, what it draws anew is faded."""
    for _ in range(MOST_LOOKS):
        settle(page)
        page.evaluate(WATCH)
        found = look()
        if not page.evaluate("window.ran"):
            return found
    raise AssertionError(f"the page's script ran during each of {MOST_LOOKS} looks")

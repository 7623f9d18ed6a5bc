"""Pages that fade and move fast, and nothing on which moves without an end."""

from playwright.sync_api import BrowserContext, Page

HURRY = 20
"""How much faster than for a user everything fades and moves: a test waits for its end before each look."""
ONCE = """
document.addEventListener('DOMContentLoaded', () => {
    const style = document.createElement('style');
    style.textContent = '*, *::before, *::after { animation-iteration-count: 1 !important; }';
    document.head.append(style);
});
"""
"""What turns for ever (a spinner) turns once: drawn without a graphics card it costs more than the page."""


def hurried(context: BrowserContext) -> Page:
    """A new page of it, whatever is loaded into it."""
    page = context.new_page()
    page.add_init_script(ONCE)
    devtools = context.new_cdp_session(page)
    devtools.send("Animation.enable")
    devtools.send("Animation.setPlaybackRate", {"playbackRate": HURRY})
    return page

"""Every page with results: nothing of ours that axe finds, in both themes, and no sideways scrolling on a phone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_settle import settle
from playwright.sync_api import Page, expect
from test_browser_doors import PLANNED_MS, heading, press

pytestmark = pytest.mark.browser
PAGES = {
    "": "Models",
    "graph": "Graph",
    "profile": "Profile",
    "partition": "Partition",
    "plan": "Plan",
    "deploy": "Deploy",
    "workspace": "Workspace",
}
STREAMLIT_OWN = {"list": 1, "listitem": len(PAGES)}
"""Streamlit's own navigation: the rules it breaks, and on how many nodes at most."""
STREAMLIT_UPLOADER = ("presentation-role-conflict", "stFileUploaderDropzone")
"""The rule that Streamlit's file uploader breaks, and the mark of its element."""
PHONE = 390


@pytest.fixture(scope="module")
def workspace(browser: object, address: str) -> str:
    """The id of a workspace in which every page has something to show."""
    context = browser.new_context()  # type: ignore[attr-defined]
    page = context.new_page()
    page.goto(address)
    heading(page, "Models")
    page.get_by_text("Or begin with a model of your own").click()
    press(page, "Trace and profile it")
    expect(page.get_by_role("button", name="Cancel")).to_be_visible(timeout=30_000)
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0, timeout=PLANNED_MS)
    page.get_by_text("The two doors again").click()
    press(page, "Plan the measured mix")
    heading(page, "Plan")
    expect(page.get_by_text("proven optimal")).to_be_visible(timeout=PLANNED_MS)
    found = page.url.partition("workspace=")[2]
    context.close()
    return str(found)


def open_page(page: Page, address: str, name: str, workspace: str) -> None:
    """Open a page and wait until it has drawn everything."""
    page.goto(f"{address}/{name}?workspace={workspace}")
    heading(page, PAGES[name])
    expect(page.get_by_test_id("stStatusWidget")).to_have_count(0)
    settle(page)


def ours(page: Page) -> list[str]:
    """What axe finds beyond Streamlit's own faults, one line each."""
    found = []
    for violation in Axe().run(page).response["violations"]:
        rule, mark = STREAMLIT_UPLOADER
        nodes = [node for node in violation["nodes"] if violation["id"] != rule or mark not in node["html"]]
        if len(nodes) > STREAMLIT_OWN.get(violation["id"], 0):
            where = "; ".join(
                f"{node['html'][:160]} {node.get('failureSummary', '')[:200]}" for node in nodes[:4]
            )
            found.append(f"{violation['id']} ×{len(nodes)}: {where}")
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_of_ours(
    session: Callable[..., Page], address: str, workspace: str, scheme: str
) -> None:
    page = session(scheme=scheme)
    found = []
    for name in PAGES:
        open_page(page, address, name, workspace)
        found += [f"{scheme} {PAGES[name]}: {line}" for line in ours(page)]
    assert not found, "\n".join(found)


def test_an_empty_workspace_has_no_fault_that_axe_finds(session: Callable[..., Page], address: str) -> None:
    page = session()
    page.goto(address)
    heading(page, "Models")
    workspace = page.url.partition("workspace=")[2]
    found = []
    for name in PAGES:
        open_page(page, address, name, workspace)
        found += [f"empty {PAGES[name]}: {line}" for line in ours(page)]
    assert not found, "\n".join(found)


def test_a_narrow_window_scrolls_down_only(
    session: Callable[..., Page], address: str, workspace: str
) -> None:
    page = session(width=PHONE)
    for name in PAGES:
        open_page(page, address, name, workspace)
        width = page.evaluate("document.documentElement.scrollWidth")
        sideways = page.evaluate("document.querySelector('[data-testid=\"stMain\"]').scrollWidth")
        assert max(width, sideways) <= PHONE, f"{PAGES[name]} is {max(width, sideways)} wide"

"""Axe on a page, its faults of ours, and a page's colour scheme."""

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from tests.support.browser.settle import settle, undisturbed

PAGES = {
    "": "Overview", "models": "Models", "model": "sample:diamond", "plan": "Plan",
    "placements": "LLM placements", "placement": "tiny", "trainings": "Training", "training": "two nodes",
    "runs": "Training runs", "evaluation": "Evaluation", "workspace": "Workspace", "host": "Host",
    "activity": "Activity", "help": "Help",
}  # fmt: skip
"""Every page and its heading, in the order of the menu, in a workspace with the things of these names."""
EMPTY = {name: title for name, title in PAGES.items() if name not in ("model", "placement", "training")}
"""Those that an empty workspace leads to."""

STREAMLIT_UPLOADER = ("presentation-role-conflict", "stFileUploaderDropzone")
"""The rule that Streamlit's file uploader breaks, and the mark of its element."""

PHONE, TABLET, WIDE = 390, 1024, 1440
CUT_OFF = """() => [...document.querySelectorAll('[data-testid="stMetricValue"] p, [data-testid="stMetricLabel"] p')]
  .filter(node => node.scrollWidth > node.clientWidth + 1
    || node.parentElement.scrollWidth > node.parentElement.clientWidth + 1).map(node => node.textContent)"""


def ours(page: Page) -> list[str]:
    """What axe finds on a page of the dashboard beyond Streamlit's own faults, one line each."""
    return undisturbed(page, lambda: in_document(page))


def in_document(page: Page) -> list[str]:
    """What axe finds in a document as it stands, one line each: a file's, say, that no script draws anew."""
    found = []
    for violation in Axe().run(page).response["violations"]:
        rule, mark = STREAMLIT_UPLOADER
        nodes = [node for node in violation["nodes"] if violation["id"] != rule or mark not in node["html"]]
        if nodes:
            where = "; ".join(
                f"{node['html'][:160]} {node.get('failureSummary', '')[:200]}" for node in nodes[:4]
            )
            found.append(f"{violation['id']} ×{len(nodes)}: {where}")
    return found


def in_scheme(page: Page, scheme: str) -> None:
    """Turn the system's colours while the page is open, and wait until it has taken them."""
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    expect(page.get_by_test_id("stApp")).to_have_css("color-scheme", scheme)
    settle(page)


def too_wide_for_a_phone(page: Page) -> list[str]:
    """How wide the page is in a narrow window where it would scroll sideways; the window is a wide one again after."""
    page.set_viewport_size({"width": PHONE, "height": 1000})
    settle(page)
    widths = page.evaluate(
        """() => [document.documentElement, document.querySelector('[data-testid="stMain"]')]
            .map(one => one.scrollWidth)"""
    )
    page.set_viewport_size({"width": WIDE, "height": 1000})
    return [f"{max(widths)} wide"] if max(widths) > PHONE else []


def cut_off(page: Page) -> list[str]:
    """The figures and labels that are wider than their card."""
    return [str(text) for text in page.evaluate(CUT_OFF)]

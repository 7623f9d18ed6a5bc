"""Every page with results: nothing of ours that axe finds, in both themes, and no sideways scrolling on a phone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_settle import settle
from playwright.sync_api import Page, expect
from test_browser_doors import heading

from torchsplit_core import workflow
from torchsplit_core.files import read_file
from torchsplit_core.job_names import PartitionParameters, RequestParameters
from torchsplit_core.storage import Store
from torchsplit_core.tracing import trace
from torchsplit_core.values import NodeProfile, Profile, ProfileRow, ignore_progress

pytestmark = pytest.mark.browser
# In the order of the menu.
PAGES = {
    "": "Models",
    "graph": "Graph",
    "profile": "Profile",
    "partition": "Partition",
    "plan": "Plan",
    "deploy": "Deploy",
    "place": "Place",
    "workspace": "Workspace",
}
NARROW = ("", "graph", "deploy", "workspace")
"""Those that no test of their own opens in a narrow window."""
STREAMLIT_OWN = {"list": 1, "listitem": len(PAGES)}
"""Streamlit's own navigation: the rules it breaks, and on how many nodes at most."""
STREAMLIT_UPLOADER = ("presentation-role-conflict", "stFileUploaderDropzone")
"""The rule that Streamlit's file uploader breaks, and the mark of its element."""
PHONE = 390
SAMPLE = "sample:diamond"
PLACEMENT = Path(__file__).resolve().parents[2] / "examples" / "placement_request.json"


@pytest.fixture(scope="module")
def workspace(address: str, home: Path) -> str:
    """The id of a workspace in which every page has something to show."""
    graph = trace(SAMPLE)
    rows = (ProfileRow("whole", "cpu", None, 2, 1, 200.0, 10.0, 180.0, 220.0, 0.1, "measured"),)
    nodes = tuple(NodeProfile(op.id, 1 / len(graph.ops), op.output_bytes, 0) for op in graph.ops)
    filled = Store(home).create("every page")
    filled.put("graph", SAMPLE, graph)
    filled.put("profile", SAMPLE, Profile(SAMPLE, graph.architecture_hash, {}, rows, nodes))
    workflow.partition_job(filled, PartitionParameters(SAMPLE, 2), ignore_progress)
    mix = workflow.measured_mix(filled)
    filled.put("plan", mix, workflow.plan(filled.get("plan_request", mix)))
    filled.put("placement_request", "tiny", read_file(PLACEMENT)[1])
    workflow.place_job(filled, RequestParameters("tiny"), ignore_progress)
    return filled.id


def open_page(page: Page, address: str, name: str, workspace: str) -> None:
    """Open a page and wait until it has drawn everything."""
    page.goto(f"{address}/{name}?workspace={workspace}")
    heading(page, PAGES[name])
    expect(page.get_by_test_id("stStatusWidget")).to_have_count(0)
    settle(page)


def turn_to(page: Page, name: str) -> None:
    """Go to a page by its link and wait until it has drawn everything."""
    page.get_by_test_id("stSidebarNavLink").nth(list(PAGES).index(name)).click()
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


def in_scheme(page: Page, scheme: str) -> None:
    """Turn the system's colours while the page is open, and wait until it has taken them."""
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    expect(page.get_by_test_id("stApp")).to_have_css("color-scheme", scheme)
    settle(page)


def test_axe_finds_nothing_of_ours(session: Callable[..., Page], address: str, workspace: str) -> None:
    page = session()
    open_page(page, address, "", workspace)
    found, schemes = [], ("light", "dark")
    for name in PAGES:
        turn_to(page, name)
        for scheme in schemes:
            in_scheme(page, scheme)
            found += [f"{scheme} {PAGES[name]}: {line}" for line in ours(page)]
        # The next page is drawn in the colours of the moment, and turned to the others.
        schemes = schemes[::-1]
    assert not found, "\n".join(found)


def test_an_empty_workspace_has_no_fault_that_axe_finds(session: Callable[..., Page], address: str) -> None:
    page = session()
    page.goto(address)
    heading(page, "Models")
    found = []
    for name in PAGES:
        turn_to(page, name)
        found += [f"empty {PAGES[name]}: {line}" for line in ours(page)]
    assert not found, "\n".join(found)


def test_a_narrow_window_scrolls_down_only(
    session: Callable[..., Page], address: str, workspace: str
) -> None:
    page = session(width=PHONE)
    for name in NARROW:
        open_page(page, address, name, workspace)
        width = page.evaluate("document.documentElement.scrollWidth")
        sideways = page.evaluate("document.querySelector('[data-testid=\"stMain\"]').scrollWidth")
        assert max(width, sideways) <= PHONE, f"{PAGES[name]} is {max(width, sideways)} wide"

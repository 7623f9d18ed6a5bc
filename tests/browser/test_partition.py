"""Cuts in a browser: found, chosen by a dot, tried by hand, kept over a reload; nothing that axe finds."""

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser.access import PHONE, ours
from tests.support.browser.pages import heading, press
from tests.support.browser.settle import settle
from tests.support.browser.workspaces import begun
from tests.support.seeds import repeated
from tests.support.tracing.here import traced_here
from torchsplit_core.jobs.job_kinds import PartitionParameters
from torchsplit_core.jobs.partition import partition_job
from torchsplit_core.values import NodeProfile, Profile, ProfileRow, ignore_progress
from torchsplit_core.workspace.store import Workspace

pytestmark = pytest.mark.browser
SOURCE = "sample:diamond"
SOLVED_MS = 60_000


@pytest.fixture(scope="module")
def profiled(address, home) -> Workspace:
    """A workspace with a traced model in which every operation takes the same time."""
    graph = traced_here(SOURCE)
    rows = (ProfileRow("whole", "cpu", None, 2, 1, 200.0, 10.0, None, None, None, "measured"),)
    nodes = tuple(NodeProfile(op.id, 1 / len(graph.ops), op.output_bytes, 0) for op in graph.ops)
    workspace = begun(home, "cuts")
    workspace.put("graph", SOURCE, graph)
    workspace.put("profile", SOURCE, Profile(SOURCE, graph.architecture_hash, {}, rows, nodes))
    return workspace


@pytest.fixture(scope="module")
def cut(profiled) -> Workspace:
    """A copy of it in which cuts were found."""
    store = profiled.store
    workspace = store.copy(profiled.id, store.free_name("found"))
    partition_job(workspace, PartitionParameters(SOURCE, 3, link_gb_per_s=1e-3), ignore_progress)
    return workspace


def open_cuts(page: Page, address: str, workspace: Workspace) -> None:
    page.goto(f"{address}/model?tab=cuts&workspace={workspace.id}")
    heading(page, SOURCE)
    settle(page)


@pytest.mark.repeated
def test_cuts_are_found_chosen_tried_and_kept(session, address, profiled):
    page = session()
    open_cuts(page, address, profiled)
    expect(page.get_by_text("Press Find cuts")).to_be_visible()
    press(page, "Find cuts")
    expect(page.get_by_text("best proven optimal").filter(visible=True)).to_be_visible(timeout=SOLVED_MS)
    settle(page)
    expect(page.get_by_test_id("stMetricLabel").first).not_to_have_text("Slowest stage, of 1")

    # The whole model is the dot in which nothing crosses: the first of its trace.
    page.locator(".st-key-partition-front .scatterlayer .trace .point").first.click(force=True)
    expect(page.get_by_test_id("stMetricLabel").first).to_have_text("Slowest stage, of 1")

    settle(page)
    page.get_by_role("combobox", name="Behind a cut point").click()
    settle(page)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_text("yours is")).to_be_visible()
    press(page, "Keep this cut")
    expect(page.get_by_test_id("stMetricLabel").first).to_have_text("Slowest stage, of 2")
    expect(page.get_by_text("One value crosses")).to_be_visible()
    page.reload()
    heading(page, SOURCE)
    expect(page.get_by_test_id("stMetricLabel").first).to_have_text("Slowest stage, of 2")
    expect(page.get_by_text("Your cut: behind")).to_be_visible()


@repeated(("scheme", "width"), [("dark", PHONE), ("light", 1440)], kept=0)
def test_a_page_of_cuts_is_accessible_and_fits_its_window(session, address, cut, scheme, width):
    page = session(width=width, scheme=scheme)
    open_cuts(page, address, cut)
    expect(page.get_by_text("best proven optimal").filter(visible=True)).to_be_visible(timeout=SOLVED_MS)
    settle(page)
    assert not ours(page), "\n".join(ours(page))
    sideways = page.evaluate("document.querySelector('[data-testid=\"stMain\"]').scrollWidth")
    assert sideways <= width

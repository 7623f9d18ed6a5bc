"""Every page with results: nothing of ours that axe finds, in both themes, and no sideways scrolling on a phone."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser.access import (
    EMPTY,
    PAGES,
    PHONE,
    TABLET,
    WIDE,
    cut_off,
    in_scheme,
    ours,
    too_wide_for_a_phone,
)
from tests.support.browser.pages import heading
from tests.support.browser.settle import settle
from tests.support.browser.workspaces import begun
from tests.support.paths import ROOT
from tests.support.seeds import repeated
from tests.support.tracing.here import traced_here
from torchsplit_core import workflow
from torchsplit_core.files import read_file
from torchsplit_core.jobs.job_kinds import PartitionParameters, RequestParameters
from torchsplit_core.jobs.partition import partition_job
from torchsplit_core.jobs.place import place_job
from torchsplit_core.jobs.quick_start import measured_mix
from torchsplit_core.jobs.strategy import strategy_job
from torchsplit_core.values import NodeProfile, Profile, ProfileRow, ignore_progress

pytestmark = pytest.mark.browser
# In the order of the menu.
NARROW = (
    "", "models", "model", "placements", "trainings", "training", "evaluation", "workspace", "host", "activity",
    "help",
)  # fmt: skip
"""Those that no test of their own opens in a narrow window."""
BESIDE = ("placement", "training")
"""Those whose figures stand beside their controls."""
SAMPLE = "sample:diamond"
PLACEMENT = ROOT / "examples" / "placement_request.json"
TRAINING = ROOT / "examples" / "strategy_request.json"


@pytest.fixture(scope="module")
def workspace(address, home) -> str:
    """The id of a workspace in which every page has something to show."""
    graph = traced_here(SAMPLE)
    rows = (ProfileRow("whole", "cpu", None, 2, 1, 200.0, 10.0, 180.0, 220.0, 0.1, "measured"),)
    nodes = tuple(NodeProfile(op.id, 1 / len(graph.ops), op.output_bytes, 0) for op in graph.ops)
    filled = begun(home, "every page")
    filled.put("graph", SAMPLE, graph)
    filled.put("profile", SAMPLE, Profile(SAMPLE, graph.architecture_hash, {}, rows, nodes))
    partition_job(filled, PartitionParameters(SAMPLE, 2), ignore_progress)
    mix = measured_mix(filled)
    filled.put("plan", mix, workflow.plan(filled.get("plan_request", mix)))
    filled.put("evaluation", "whole", read_file(ROOT / "docs" / "reference" / "evaluation.json")[1])
    filled.put("placement_request", "tiny", read_file(PLACEMENT)[1])
    place_job(filled, RequestParameters("tiny"), ignore_progress)
    filled.put("strategy_request", "two nodes", read_file(TRAINING)[1])
    strategy_job(filled, RequestParameters("two nodes"), ignore_progress)
    return filled.id


def open_page(page: Page, address: str, name: str, workspace: str) -> None:
    """Open a page and wait until it has drawn everything."""
    page.goto(f"{address}/{name}?workspace={workspace}")
    heading(page, PAGES[name])
    expect(page.get_by_test_id("stStatusWidget")).to_have_count(0)
    settle(page)


def turn_to(page: Page, name: str) -> None:
    """Go to a page by its link and wait until it has drawn everything."""
    links = page.locator(".st-key-menu, .st-key-bar").locator('[data-testid="stPageLink-NavLink"]')
    # A query, or none in a workspace that nothing was put in.
    leading = re.compile(rf"^/?{name}(\?.*)?$")
    places = [
        place for place, link in enumerate(links.all()) if leading.match(link.get_attribute("href") or "")
    ]
    next(links.nth(place) for place in places if links.nth(place).is_visible()).click()
    heading(page, PAGES[name])
    expect(page.get_by_test_id("stStatusWidget")).to_have_count(0)
    settle(page)


@repeated("scheme", ["light", "dark"], kept=0)
def test_axe_finds_nothing_of_ours_and_a_narrow_window_scrolls_down_only(session, address, workspace, scheme):
    """Every other page in that scheme, those between them in the other."""
    page = session()
    open_page(page, address, "", workspace)
    # The model and the placement of the menu are those that were looked at last.
    open_page(page, address, "model", f"{workspace}&model={SAMPLE}")
    found = []
    for name, title in PAGES.items():
        turn_to(page, name)
        in_scheme(page, scheme)
        found += [f"{scheme} {title}: {line}" for line in ours(page)]
        if name in NARROW:
            found += [f"{title}: {line}" for line in too_wide_for_a_phone(page)]
        if name in BESIDE:
            page.set_viewport_size({"width": TABLET, "height": 1000})
            settle(page)
            found += [f"{title}: {text} is cut off" for text in cut_off(page)]
            page.set_viewport_size({"width": WIDE, "height": 1000})
        scheme = {"light": "dark", "dark": "light"}[scheme]
    assert not found, "\n".join(found)
    # A step is one entry of the browser's history: Back is the page before.
    page.go_back()
    heading(page, PAGES[list(PAGES)[-2]])


RING = """element => { element.focus({ focusVisible: true }); const style = getComputedStyle(element);
  return [style.outlineStyle, style.outlineWidth, style.outlineColor]; }"""


@pytest.mark.repeated
def test_what_has_the_focus_is_ringed(session, address, workspace):
    page = session()
    open_page(page, address, "plan", workspace)
    page.keyboard.press("Tab")
    for scheme, ring in (("light", "rgb(11, 95, 88)"), ("dark", "rgb(94, 234, 212)")):
        in_scheme(page, scheme)
        link = page.get_by_test_id("stPageLink-NavLink").first
        primary = page.get_by_test_id("stBaseButton-primary").first
        for element in (link, primary, page.get_by_role("tab").first):
            assert element.evaluate(RING) == ["solid", "2px", ring], (scheme, element)


@pytest.mark.repeated
def test_a_map_is_saved_as_a_picture_that_stands_alone(session, address, workspace):
    page = session()
    open_page(page, address, "plan", workspace)
    saving = page.locator(".st-key-saved-slices [data-saving]")
    with page.expect_download() as drawn:
        saving.get_by_role("button", name="Slices as SVG").click()
    root = ElementTree.parse(drawn.value.path()).getroot()
    words = "".join(root.itertext())
    assert drawn.value.suggested_filename.endswith(".slices.svg")
    assert "gpu0" in words and "memory slots" in words and root.get("width") is not None
    assert not any(name.endswith("href") or name == "class" for one in root.iter() for name in one.attrib)
    with page.expect_download() as painted:
        saving.get_by_role("button", name="Slices as PNG").click()
    assert painted.value.suggested_filename.endswith(".slices.png")
    assert Path(painted.value.path()).read_bytes().startswith(b"\x89PNG")


@pytest.mark.repeated
def test_the_theme_is_chosen_in_the_bar_for_all_pages(session, address):
    page = session()
    page.goto(address)
    heading(page, "Overview")
    ground = page.get_by_test_id("stApp")
    expect(ground).to_have_css("background-color", "rgb(251, 251, 249)")
    page.get_by_test_id("stMainMenu").get_by_role("button").click()
    page.get_by_role("menuitemradio", name="Dark").click()
    expect(ground).to_have_css("background-color", "rgb(15, 20, 24)")
    # Another page, opened by its address, is dark too.
    page.goto(f"{address}/activity")
    heading(page, "Activity")
    expect(ground).to_have_css("background-color", "rgb(15, 20, 24)")


@pytest.mark.repeated
def test_an_empty_workspace_has_no_fault_that_axe_finds(session, address):
    page = session()
    page.goto(address)
    heading(page, "Overview")
    found = []
    for name in EMPTY:
        turn_to(page, name)
        found += [f"empty {PAGES[name]}: {line}" for line in ours(page)]
    assert not found, "\n".join(found)


@pytest.mark.repeated
def test_in_a_narrow_window_the_picture_comes_before_its_controls(session, address, workspace):
    page = session(width=PHONE)
    open_page(page, address, "plan", workspace)
    page.locator(".st-key-inputs-narrow").get_by_role("button").click()
    page.locator(".st-key-plan-inputs").wait_for()
    settle(page)
    picture, controls = (
        page.locator(f".st-key-plan-{part}").bounding_box() for part in ("results", "inputs")
    )
    assert controls is not None and picture is not None
    assert picture["y"] + picture["height"] <= controls["y"] and picture["width"] == controls["width"]
    page.get_by_role("tab", name="Sweep").click()
    asked, found = page.locator(".st-key-sweep-ask"), page.locator(".st-key-sweep-found")
    asked.wait_for()
    found.wait_for(state="attached")
    below, above = asked.bounding_box(), found.bounding_box()
    assert below is not None and above is not None and above["y"] + above["height"] <= below["y"]

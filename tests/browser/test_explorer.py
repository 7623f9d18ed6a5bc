"""A .pt2 of the test's own, dropped and explored: opened, searched, selected, coloured, found in every panel."""

import json
import re
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.support.browser.access import in_scheme
from tests.support.browser.explorer import canvas, drawing, look, move_to, redrawn, save_model
from tests.support.browser.pages import heading, press
from tests.support.browser.settle import settle
from tests.support.browser.workspaces import begun
from torchsplit_core.jobs.job_kinds import TraceParameters, UploadedFile
from torchsplit_core.jobs.trace import trace_job
from torchsplit_core.values import ignore_progress
from torchsplit_core.workspace.store import Workspace

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "blocks.pt2"
    save_model(path)
    return path


@pytest.fixture
def dropped(session, address, model) -> Page:
    """A page on which the model was dropped and its first drawing stands."""
    page = session()
    page.goto(address)
    heading(page, "Overview")
    page.locator('[data-testid="stFileUploaderDropzoneInput"]').set_input_files(model)
    heading(page, "blocks.pt2")
    canvas(page)
    return page


@pytest.fixture(scope="module")
def traced(address, home, model) -> Workspace:
    """A workspace with what a dropped file becomes."""
    workspace = begun(home, "blocks")
    workspace.put_bytes("upload", model.name, model.read_bytes())
    trace_job(workspace, TraceParameters(model.name, UploadedFile(model.name)), ignore_progress)
    return workspace


@pytest.fixture
def explored(session, address, traced) -> Page:
    """A page with the model's first drawing, in a workspace of the test's own."""
    page = session()
    open_graph(page, address, traced.store.copy(traced.id, traced.store.free_name("blocks")))
    return page


def open_graph(page: Page, address: str, workspace: Workspace) -> None:
    page.goto(f"{address}/model?workspace={workspace.id}")
    heading(page, "blocks.pt2")
    canvas(page)


def details(page: Page) -> str:
    return page.locator(".st-key-graph-details").inner_text()


@pytest.mark.repeated
def test_a_dropped_file_is_opened_searched_and_found_in_every_panel(dropped):
    page = dropped
    expect(page.get_by_text("not profiled")).to_be_visible()

    # Opening the list of equal blocks opens its first block and folds the others.
    move_to(page, "blocks × 6")
    expect(page.locator(".st-key-graph-details")).to_contain_text("6, equal")
    before = drawing(page)
    page.keyboard.press("Enter")
    before = redrawn(page, before)
    move_to(page, "blocks × 5")

    # A search finds what is hidden, and Enter opens the way to it.
    page.get_by_label("Search by regular expression").fill(r"blocks\.3.*up")
    expect(page.locator("output.found")).to_have_text("1 found")
    page.keyboard.press("Enter")
    redrawn(page, before)
    expect(page.locator(".st-key-graph-details")).to_contain_text("blocks.3.up")
    expect(page.locator(".st-key-graph-details")).to_contain_text("aten.linear.default")
    node = details(page).splitlines()[0]

    # The same node in the tree, the outline of the regions and the text for screen readers.
    chosen = page.locator('.row[aria-selected="true"]')
    expect(chosen).to_have_count(1)
    expect(chosen).to_contain_text(node)
    expect(page.locator(".said").first).to_contain_text(node)
    page.get_by_role("radio", name="Post-dominator tree").click()
    expect(page.locator('.row[aria-selected="true"]')).to_contain_text(node)

    # Another colour, with its legend.
    page.get_by_role("radio", name="region nesting").click()
    expect(page.locator(".legend").first).to_contain_text("around")
    expect(page.get_by_role("radio", name="region nesting")).to_have_attribute("aria-checked", "true")

    # A row of the tree is selected in the drawing and the details.
    page.get_by_role("radio", name="Dominator tree", exact=True).click()
    row = page.locator(".row", has_text="softmax").first
    page.locator(".rows").first.evaluate("list => list.scrollTop = list.scrollHeight")
    row.click()
    expect(page.locator(".st-key-graph-details")).to_contain_text("aten.softmax.int")
    expect(canvas(page)).to_have_attribute("aria-label", re.compile("softmax"))

    # A region, by keyboard.
    page.locator("canvas.icicle").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".st-key-graph-details")).to_contain_text("Region")


@pytest.mark.repeated
def test_the_view_outlives_a_reload_and_the_same_node_stands_in_the_table(explored):
    page = explored
    before = drawing(page)
    page.get_by_label("Search by regular expression").fill(r"blocks\.5\.down")
    page.keyboard.press("Enter")
    redrawn(page, before)
    expect(page.locator(".st-key-graph-details")).to_contain_text("blocks.5.down")
    page.reload()
    heading(page, "blocks.pt2")
    canvas(page)
    expect(page.locator(".st-key-graph-details")).to_contain_text("blocks.5.down")
    expect(canvas(page)).to_have_attribute("aria-label", re.compile("down"))

    page.get_by_role("tab", name="Tables").click()
    page.get_by_label("Search", exact=True).fill(r"blocks\.5\.down$")
    page.keyboard.press("Enter")
    expect(page.get_by_text("3 found")).to_be_visible()
    expect(page.get_by_test_id("stDataFrame")).to_be_visible()
    settle(page)
    box = page.get_by_test_id("stDataFrame").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 18, box["y"] + 52)
    page.get_by_role("button", name="in the explorer").click()
    expect(page.get_by_role("tab", name="Explorer")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".st-key-graph-details")).to_contain_text("blocks.5.down")


def test_zoom_pan_fit_and_files(explored):
    page = explored
    scene = canvas(page)
    page.get_by_role("button", name="Fit").click()
    settle(page)
    whole = look(page)
    page.get_by_role("button", name="Zoom in").click()
    expect(scene).not_to_have_attribute("data-look", json.dumps(whole, separators=(",", ":")))
    nearer = look(page)
    assert nearer["scale"] > whole["scale"]
    box = scene.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 260, box["y"] + 230, steps=4)
    page.mouse.up()
    expect(scene).not_to_have_attribute("data-look", json.dumps(nearer, separators=(",", ":")))
    moved = look(page)
    assert moved["scale"] == nearer["scale"]
    assert moved["x"] == pytest.approx(nearer["x"] - 60 / nearer["scale"], abs=1)

    with page.expect_download() as download:
        page.get_by_role("button", name="PNG").click()
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")
    page.get_by_role("tab", name="Export").click()
    with page.expect_download() as download:
        press(page, "Drawing (SVG)")
    assert "<svg" in Path(download.value.path()).read_text()
    with page.expect_download() as download:
        press(page, "Regions (DOT)")
    assert re.match(r"digraph", Path(download.value.path()).read_text())


@pytest.mark.repeated
def test_the_picture_comes_first_and_fits_into_what_is_seen(explored):
    page = explored
    page.set_viewport_size({"width": 1440, "height": 900})
    scene = canvas(page)
    page.wait_for_function(
        "() => document.querySelector('[data-testid=stMain]').scrollHeight <= innerHeight + 1"
    )
    box = scene.bounding_box()
    assert box is not None and box["y"] < 230 and 800 < box["y"] + box["height"] <= 900

    # The card names the box under the pointer, its operation and shape, and its figures with their basis.
    page.get_by_role("button", name="Fit").click()
    settle(page)
    at, card = look(page), page.locator(".card").first
    for down in range(0, int(box["height"]), 8):
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + down)
        if "memory" in card.inner_text():
            break
    expect(card).to_contain_text("(estimated)")
    expect(card).to_contain_text("(from the shapes)")

    # In a low window the middle of what is seen is the middle of the graph, also of a view that nobody has moved.
    page.set_viewport_size({"width": 1440, "height": 420})
    settle(page)
    low, middle = look(page), scene.bounding_box()
    page.get_by_role("button", name="Fit").click()
    settle(page)
    assert look(page) == low and low["scale"] < at["scale"]
    assert middle is not None
    seen = min(420 - middle["y"], middle["height"])
    page.set_viewport_size({"width": 1440, "height": 900})
    settle(page)
    page.get_by_role("button", name="Fit").click()
    settle(page)
    whole = look(page)
    centre = {name: height / 2 / view["scale"] + view["y"] for name, view, height in (
        ("low", low, seen), ("whole", whole, box["height"]))}  # fmt: skip
    assert centre["low"] == pytest.approx(centre["whole"], abs=2)
    # From side to side it is the middle of what the buttons at the left leave free.
    tools = page.locator(".tools").first.bounding_box()
    assert tools is not None
    middle_px = (tools["x"] + tools["width"] - box["x"] + box["width"]) / 2
    across = [middle_px / view["scale"] + view["x"] for view in (low, whole)]
    assert across[0] == pytest.approx(across[1], abs=2)

    # Nearer, the small map shows where; a press on it goes there.
    small = page.locator("canvas.map").first
    expect(small).to_be_hidden()
    for _ in range(6):
        page.get_by_role("button", name="Zoom in").click()
    expect(small).to_be_visible()
    near = look(page)
    small.click(position={"x": 84, "y": 110})
    settle(page)
    assert look(page)["y"] > near["y"] and look(page)["scale"] == near["scale"]


@pytest.mark.repeated
def test_axe_finds_nothing_of_ours_in_the_open_explorer(explored):
    page = explored
    move_to(page, "blocks × 6")
    for scheme in ("dark", "light"):
        in_scheme(page, scheme)
        faults = violations(page)
        if faults:
            # The answer to the last key may have come while the page was looked at: what fades has no contrast.
            settle(page)
            faults = violations(page)
        assert not faults, (scheme, faults)


def violations(page: Page) -> list[tuple[str, list[str]]]:
    """What axe finds of ours, and where."""
    return [
        (violation["id"], [node["html"][:200] for node in violation["nodes"]])
        for violation in Axe().run(page).response["violations"]
        if violation["id"] not in ("list", "listitem")
    ]

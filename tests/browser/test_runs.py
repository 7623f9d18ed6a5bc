"""A training run on its page: a rank is killed and the page shows that it recovers; it is stopped, and goes on."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser.access import in_scheme, ours, too_wide_for_a_phone
from tests.support.browser.pages import heading, press
from tests.support.browser.settle import settle
from tests.support.seeds import repeated
from tests.support.training.folders import left_folder
from torchsplit_core.training import RunFolder
from torchsplit_core.training.stored_runs import RUNS_SETTING
from torchsplit_core.workspace.store import Store

pytestmark = pytest.mark.browser
BEGUN_MS = 180_000
"""For processes that load torch on a busy machine."""


def steps_of(folder: Path) -> list[int]:
    return [line["step"] for line in RunFolder(folder).steps()]


def until_step(page: Page, folder: Path, more: int) -> None:
    """Wait until so many steps more are done."""
    wanted, end = max(steps_of(folder), default=0) + more, time.monotonic() + BEGUN_MS / 1000
    while max(steps_of(folder), default=0) < wanted:
        assert time.monotonic() < end
        page.wait_for_timeout(200)


@pytest.mark.repeated
def test_a_run_whose_rank_is_killed_is_seen_to_recover(session, address, home):
    workspace = Store(home).create("a run that is killed")
    page = session()
    page.goto(f"{address}/runs?workspace={workspace.id}")
    heading(page, "Training runs")
    page.get_by_label("Steps", exact=True).fill("100000")
    page.get_by_label("Steps", exact=True).press("Enter")
    settle(page)
    press(page, "Start the run")
    heading(page, "clip-1")
    folder = workspace.runs / "clip-1"
    happened = page.locator(".st-key-run-event-rows")
    expect(happened).to_contain_text("begins at step 1 with 2 processes", timeout=BEGUN_MS)
    expect(page.get_by_text("running", exact=True)).to_be_visible(timeout=BEGUN_MS)
    until_step(page, folder, 15)
    os.kill(json.loads((folder / "watch" / "rank-1.json").read_text())["pid"], signal.SIGKILL)
    expect(happened).to_contain_text(
        re.compile(r"rank 1 was ended by SIGKILL, at step \d+"), timeout=BEGUN_MS
    )
    expect(happened).to_contain_text(
        re.compile(r"goes on after step \d+.*with 2 processes"), timeout=BEGUN_MS
    )
    expect(page.get_by_text("running", exact=True)).to_be_visible(timeout=BEGUN_MS)
    until_step(page, folder, 5)
    press(page, "Checkpoint now")
    until_step(page, folder, 2)
    # Another visit, of somebody who was not there, sees the same.
    other = session()
    other.goto(page.url)
    expect(other.locator(".st-key-run-event-rows")).to_contain_text("SIGKILL")
    other.goto("about:blank")
    press(page, "Stop the run")
    expect(page.get_by_text("stopped", exact=True).first).to_be_visible(timeout=BEGUN_MS)
    done = steps_of(folder)
    assert done == list(range(1, len(done) + 1))
    page.get_by_label("To step").fill(str(done[-1] + 3))
    page.get_by_label("To step").press("Enter")
    settle(page)
    press(page, "Resume")
    expect(page.get_by_text("finished", exact=True).first).to_be_visible(timeout=BEGUN_MS)
    assert steps_of(folder) == list(range(1, done[-1] + 4))


@pytest.fixture(scope="module")
def runs(home) -> str:
    """The id of a workspace with two runs, one that ended and one that broke off."""
    made = Store(home).create("runs")
    left_folder(made.runs / "diamond-1")
    left_folder(made.runs / "llama-1", steps=5, wanted=9)
    made.set_setting(RUNS_SETTING, [{"name": name, "path": None} for name in ("diamond-1", "llama-1")])
    return made.id


@repeated("scheme", ["light", "dark"], kept=0)
def test_axe_finds_nothing_of_ours_on_a_run_and_nothing_scrolls_sideways(session, address, runs, scheme):
    """Every other page in that scheme, those between them in the other."""
    page = session()
    found = []
    for title, where in (("Training runs", ""), ("diamond-1", "&run=diamond-1"), ("llama-1", "&run=llama-1")):
        page.goto(f"{address}/{'run' if where else 'runs'}?workspace={runs}{where}")
        heading(page, title)
        # The menu marks where one is, once.
        assert marked(page) == [title]
        in_scheme(page, scheme)
        found += [f"{scheme} {title}: {line}" for line in ours(page)]
        found += [f"{title}: {line}" for line in too_wide_for_a_phone(page)]
        scheme = {"light": "dark", "dark": "light"}[scheme]
    assert not found, "\n".join(found)
    page.go_back()
    heading(page, "diamond-1")
    # The address that earlier versions gave it leads there too.
    page.goto(f"{address}/runs?workspace={runs}&run=diamond-1")
    heading(page, "diamond-1")


def marked(page: Page) -> list[str]:
    """The entries of the menu that are shown as the page one is on."""
    links = page.locator(".st-key-menu").get_by_test_id("stPageLink-NavLink").all()
    clear = "element => getComputedStyle(element).backgroundColor === 'rgba(0, 0, 0, 0)'"
    return [link.inner_text().split("\n")[-1] for link in links if not link.evaluate(clear)]


def test_what_is_chosen_in_the_table_is_drawn_opened_and_copied(session, address, runs):
    page = session()
    page.goto(f"{address}/runs?workspace={runs}")
    heading(page, "Training runs")
    legend = page.locator(".st-key-saved-runs-picture .legendtext")
    expect(legend.filter(has_text="llama-1")).to_be_visible()
    expect(legend.filter(has_text="diamond-1")).to_be_visible()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy Training runs").click()
    expect(page.get_by_text("Copied", exact=True)).to_be_visible()
    head, *lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert head.startswith("run\tstate\tmodel\t")
    assert [line.split("\t")[:3] for line in lines] == [
        ["llama-1", "interrupted", "sample:diamond"],
        ["diamond-1", "finished", "sample:diamond"],
    ]
    page.get_by_role("button", name="Copy loss").click()
    expect(page.locator(".st-key-saved-runs-picture").get_by_text("Copied", exact=True)).to_be_visible()
    kinds = "navigator.clipboard.read().then(items => items.map(item => item.types))"
    assert page.evaluate(kinds) == [["image/png"]]
    page.context.clear_permissions()
    # Where the browser refuses, the file is named.
    page.evaluate("() => { navigator.clipboard.write = () => Promise.reject(new Error('refused')); }")
    page.get_by_role("button", name="Copy loss").click()
    expect(page.get_by_text("The browser does not let this page copy: take the PNG.")).to_be_visible()
    # The box of the first row, then its name.
    table = page.get_by_test_id("stDataFrame").first
    table.click(position={"x": 17, "y": 52})
    expect(legend.filter(has_text="llama-1")).to_have_count(0)
    table.click(position={"x": 135, "y": 87})
    heading(page, "diamond-1")
    page.go_back()
    heading(page, "Training runs")
    expect(legend.filter(has_text="llama-1")).to_have_count(0)

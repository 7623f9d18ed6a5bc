"""The dashboard in Chromium as users meet it: pages, links, a job beside an edit, and the server's memory.

Times of pages are from the click until the page says what it is about and has stopped running. Those of the map are
taken in the page, from the click or from when the browser sets out for the address to the first frame that shows it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.explorer_speed import FLAGS, server
from torchsplit_core import workflow
from torchsplit_core.jobs.quick_start import measured_mix
from torchsplit_core.workspace.store import Store, Workspace

GOAL_PAGE_S, GOAL_LINK_S, GOAL_DOOR_S, GOAL_SHIFT_PX = 0.6, 1.5, 3.0, 0
WALK = ("Models", "Plan", "LLM placements", "Workspace", "Overview")
"""Pages of the menu in the order of the walk."""
IDLE = '[data-testid="stApp"][data-test-script-state="notRunning"]'
SEEN = {"name": "torchsplit_tour", "value": "seen"}
MIB = 2**20
MAP = ".st-key-slices .picture svg"
DRAWN = f"""
  addEventListener('click', () => {{ window.clicked = performance.now(); }}, true);
  const look = () => {{
    if (document.querySelector('{MAP}')?.checkVisibility()) window.drawn = performance.now();
    else requestAnimationFrame(look);
  }};
  look();
"""
"""Times of the last click and of the map's first display, in ms since the browser began to load the page."""
WATCH = """() => {
  const parts = ['.st-key-plan-inputs', '.st-key-numbers', '.st-key-plan-results', '[role="tablist"]'];
  const top = part => document.querySelector(part)?.getBoundingClientRect().top;
  const first = parts.map(top);
  window.moved = 0;
  const look = () => {
    parts.forEach((part, place) => {
      const now = top(part);
      if (now !== undefined && first[place] !== undefined)
        window.moved = Math.max(window.moved, Math.abs(now - first[place]));
    });
    requestAnimationFrame(look);
  };
  look();
}"""
"""Largest shift, in any frame, of inputs, cards, tabs and map from their current positions, px."""


def settled(page: Page) -> None:
    """Wait until the page's script has stopped running."""
    page.wait_for_selector(IDLE, timeout=60_000)


def changes(page: Page, address: str, workspace: Workspace, turns: int) -> list[float]:
    """Seconds from a click on the menu to the new page, completely drawn; the first turn only warms up."""
    page.goto(f"{address}/?workspace={workspace.id}")
    page.wait_for_selector("h1")
    settled(page)
    found = []
    for turn in range(turns + 1):
        for title in WALK:
            began = time.perf_counter()
            page.locator(".st-key-menu").get_by_text(title, exact=True).click()
            page.locator("h1", has_text=title).wait_for()
            settled(page)
            if turn:
                found.append(time.perf_counter() - began)
            page.wait_for_timeout(200)
    return found


def links(page: Page, address: str, workspace: Workspace, turns: int) -> list[float]:
    """Seconds from a plan's address to its map."""
    found = []
    for turn in range(turns + 1):
        page.goto("about:blank")
        page.goto(f"{address}/plan?workspace={workspace.id}")
        page.wait_for_selector(MAP, timeout=60_000)
        if turn:
            found.append(page.evaluate("window.drawn") / 1000)
    return found


def doors(browser: Browser, address: str, turns: int) -> list[float]:
    """Seconds from a click on the first door to a map, each in an empty workspace."""
    found = []
    for _ in range(turns):
        page = opened(browser, address)
        page.goto(address)
        page.wait_for_selector("h1")
        settled(page)
        button = page.get_by_role("button", name="Plan the measured mix")
        button.click()
        page.wait_for_selector(MAP, timeout=120_000)
        found.append(page.evaluate("window.drawn - window.clicked") / 1000)
        page.context.close()
    return found


def shift(page: Page, address: str, workspace: Workspace) -> float:
    """Largest shift, px, of a plan page's parts during a new search and explanation."""
    page.goto(f"{address}/plan?workspace={workspace.id}")
    page.wait_for_selector(MAP, timeout=60_000)
    settled(page)
    page.wait_for_timeout(1500)
    page.evaluate(WATCH)
    page.get_by_role("button", name="Plan", exact=True).click()
    page.get_by_role("button", name="Cancel").first.wait_for(timeout=60_000)
    page.wait_for_function(
        "() => ![...document.querySelectorAll('button')].some(one => one.innerText === 'Cancel')",
        timeout=240_000,
    )
    page.wait_for_timeout(1000)
    return float(page.evaluate("() => window.moved"))


def memory(
    browser: Browser,
    address: str,
    process: int,
    workspace: Workspace,
    reruns: int,
    sessions: int,
    rest_s: float,
) -> tuple[float, float, float]:
    """MiB of the server: after a warm-up of a third of the reruns, after the reruns, after the sessions have ended."""
    page = opened(browser, address)
    page.goto(f"{address}/plan?workspace={workspace.id}")
    page.wait_for_selector(MAP, timeout=60_000)
    settled(page)
    slider = page.locator(".st-key-plan-inputs").get_by_role("slider").nth(1)

    def run(times: int) -> None:
        for turn in range(times):
            slider.focus()
            page.keyboard.press("ArrowRight" if turn % 2 == 0 else "ArrowLeft")
            page.wait_for_timeout(150)
            settled(page)

    run(max(2, reruns // 3))
    warm = resident(process)
    run(reruns)
    after = resident(process)
    page.context.close()
    for _ in range(sessions):
        other = opened(browser, address)
        other.goto(f"{address}/plan?workspace={workspace.id}")
        other.wait_for_selector(MAP, timeout=60_000)
        settled(other)
        other.context.close()
    # Streamlit keeps an ended session for two minutes, in case its browser returns.
    time.sleep(rest_s)
    return warm, after, resident(process)


def resident(process: int) -> float:
    """Resident memory of a process, MiB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def opened(browser: Browser, address: str) -> Page:
    """A page for a user who has seen the tour."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.add_cookies([{**SEEN, "url": address}])  # type: ignore[typeddict-item]
    context.add_init_script(DRAWN)
    return context.new_page()


def filled(store: Store, name: str, *, answered: bool) -> Workspace:
    """The measured mix with a plan; not `answered`: the plan of an earlier request, so that it can be planned again."""
    workspace = store.create(name)
    mix = measured_mix(workspace)
    request = workspace.get("plan_request", mix)
    if answered:
        workspace.put("plan", mix, workflow.plan(request))
    else:
        outcome = workflow.plan(replace(request, solver=replace(request.solver, time_limit_s=3.0)))
        workspace.put("plan", mix, replace(outcome, request_sha256="0" * 64))
    return workspace


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--reruns", type=int, default=200)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument(
        "--rest", type=float, default=150.0, help="seconds until ended sessions are forgotten"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        store = Store(Path(home))
        planned, earlier = filled(store, "planned", answered=True), filled(store, "earlier", answered=False)
        with (
            sync_playwright() as playwright,
            server(TORCHSPLIT_HOME=home) as (address, process),
        ):
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(FLAGS))
            page = opened(browser, address)
            turned = changes(page, address, planned, options.turns)
            linked = links(page, address, planned, options.turns)
            moved = shift(page, address, earlier)
            entered = doors(browser, address, options.turns)
            sizes = memory(browser, address, process, planned, options.reruns, options.sessions, options.rest)
            browser.close()
    print("| what | times | median | p95 | goal |")
    print("|---|---|---|---|---|")
    for what, times, goal in (
        ("page change, s", turned, GOAL_PAGE_S),
        ("a plan's map from its address, s", linked, GOAL_LINK_S),
        ("first door to a map, s", entered, GOAL_DOOR_S),
    ):
        ordered = sorted(times)
        p95 = ordered[max(0, round(0.95 * len(ordered)) - 1)]
        print(f"| {what} | {len(times)} | {statistics.median(times):.2f} | {p95:.2f} | {goal:g} |")
    print(f"| furthest move of a part while a plan is made, px | 1 | {moved:.0f} | – | {GOAL_SHIFT_PX} |")
    print()
    print("| memory of the server, MiB | |")
    print("|---|---|")
    warm, after, last = sizes
    print(f"| after {max(2, options.reruns // 3)} reruns | {warm:.0f} |")
    print(f"| after {options.reruns} more | {after:.0f} |")
    print(f"| after {options.sessions} sessions, {options.rest:g} s later | {last:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

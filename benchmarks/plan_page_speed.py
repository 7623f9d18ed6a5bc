"""The Plan page in Chromium: from moving a slider to the new map, and from an address to a large stored plan.

The dashboard as users start it. A change is timed in the page itself: from the key that moves the slider to
the moment the picture of the slices has changed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from app.plans.report import report
from benchmarks.explorer_speed import FLAGS, server
from benchmarks.planner_instances import instance
from torchsplit_core import workflow
from torchsplit_core.pictures.colours import model_colours
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import PlanRequest
from torchsplit_core.workspace.store import Store, Workspace

GOAL_CHANGE_MS, GOAL_PAINT_S, GOAL_REPORT_MB = 500, 3.0, 5.0
CHANGED = """words => { window.changed = new Promise(found => {
  const shown = () =>
    (document.querySelector('.st-key-slices .picture') ?? document.querySelector('.picture'))?.dataset.shown
    + (words ? document.querySelector('.st-key-draft-bar')?.innerText ?? '' : '');
  const before = shown();
  document.addEventListener('keydown', () => {
    const began = performance.now();
    const look = () => {
      const now = shown();
      if (now && now !== before) found(performance.now() - began);
      else if (performance.now() - began > 30000) found(-1);
      else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  }, { once: true, capture: true });
}); }"""
"""Milliseconds from the next key to another picture (or, with `words`, another draft bar); -1 after 30 s."""


def stored(store: Store, name: str, request: PlanRequest, seconds: float) -> Workspace:
    """A workspace with a request and its plan, found within `seconds`."""
    workspace = store.create(name)
    limited = replace(request, solver=replace(request.solver, time_limit_s=seconds))
    outcome = replace(workflow.plan(limited), request_sha256=request_hash(request))
    workspace.put("plan_request", name, request)
    workspace.put("plan", name, outcome)
    return workspace


def changes(page: Page, address: str, workspace: Workspace, count: int, *, words: bool) -> list[float]:
    """Milliseconds of `count` moves of the first model's demand, up and down in turn; `words`: the map may stay."""
    page.goto(f"{address}/plan?workspace={workspace.id}")
    page.wait_for_selector(".picture svg", timeout=60_000)
    page.wait_for_timeout(3000)
    slider = page.locator(".st-key-inputs-models").get_by_role("slider").first
    found = []
    for turn in range(count + 1):
        slider.focus()
        page.evaluate(CHANGED, words)
        page.keyboard.press("ArrowRight" if turn % 2 == 0 else "ArrowLeft")
        found.append(page.evaluate("() => window.changed"))
        page.wait_for_timeout(700)
    if min(found) < 0:
        raise SystemExit("a move of the slider did not change the map")
    return found[1:]  # the first move warms up the server


def paint(page: Page, address: str, workspace: Workspace, turns: int) -> list[float]:
    """Seconds from the address to the picture of the slices."""
    found = []
    for _ in range(turns):
        page.goto("about:blank")
        began = time.perf_counter()
        page.goto(f"{address}/plan?workspace={workspace.id}")
        page.wait_for_selector(".picture svg", timeout=120_000)
        found.append(time.perf_counter() - began)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--size", default="16x64")
    parser.add_argument("--large", default="64x1024")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    models, gpus = map(int, options.size.split("x"))
    many, fleet = map(int, options.large.split("x"))
    with tempfile.TemporaryDirectory() as home:
        store = Store(Path(home))
        small = {
            sharing: stored(store, f"{options.size} {sharing}", instance(models, gpus, sharing=sharing), 2.0)
            for sharing in ("fractional", "exclusive")
        }
        asked = instance(many, fleet, sharing="fractional")
        large = stored(store, options.large, asked, 10.0)
        with sync_playwright() as playwright, server(TORCHSPLIT_HOME=home) as (address, _):
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(FLAGS))
            page = browser.new_context(viewport={"width": 1440, "height": 1000}).new_page()
            moved = {
                name: changes(page, address, space, options.moves, words=name == "exclusive")
                for name, space in small.items()
            }
            painted = paint(page, address, large, options.turns)
            browser.close()
        planned = large.get("plan", options.large)
        megabytes = (
            len(report("large", asked, planned, model_colours(m.name for m in asked.models)).encode()) / 1e6
        )
    print(
        f"| slider to new map, {models} models on {gpus} GPUs | moves | median, ms | p95, ms | longest, ms | goal p95 |"
    )
    print("|---|---|---|---|---|---|")
    for name, times in moved.items():
        ordered = sorted(times)
        p95 = ordered[max(0, round(0.95 * len(ordered)) - 1)]
        goal = f"{GOAL_CHANGE_MS}" if name == "fractional" else "–"
        print(
            f"| {name} | {len(times)} | {statistics.median(times):.0f} | {p95:.0f} | {ordered[-1]:.0f} | {goal} |"
        )
    print()
    print(f"| a stored plan of {many} models on {fleet} GPUs | result | goal |")
    print("|---|---|---|")
    print(
        f"| first paint, s (median of {len(painted)}) | {statistics.median(painted):.2f} | {GOAL_PAINT_S:g} |"
    )
    print(f"| its report, MB | {megabytes:.2f} | {GOAL_REPORT_MB:g} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

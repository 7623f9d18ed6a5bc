"""A what-if session on the Plan page in Chromium: how soon a move of a slider has its plan, and that nothing jumps.

The published mix on five A100, drawn requests of 64 GPUs, and an LLM beside batch models, whose engines every plan
simulates; the dashboard as users start it. Each move is drawn at
random: which slider, and where to. It is timed in the page itself, from the event of the slider to the frame in which
the page shows what comes of it: another picture of the slices, other cards, or what the model gets now. Known moves go
to numbers of GPUs whose plans a sweep has proven before. In every frame of every move it is looked at how far the
parts of the page stand from where they stood.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, sync_playwright

from benchmarks.dashboard_speed import filled, opened, settled
from benchmarks.explorer_speed import FLAGS, server
from benchmarks.plan_page_speed import stored
from benchmarks.planner_instances import instance
from torchsplit_core import files, workflow
from torchsplit_core.planning.sweep.points import SweepRequest, sweep_requests
from torchsplit_core.workspace.plan_cache.cache import PlanCache
from torchsplit_core.workspace.store import Store, Workspace

GOAL_MOVE_MS, GOAL_LLM_MS, GOAL_KNOWN_MS, GOAL_SHIFT_PX = 1000, 2000, 300, 0
LLM_REQUEST = Path("examples/llm/chat_and_vision.json")
MAP = ".st-key-slices .picture svg"
GPUS = (3, 4, 5, 6, 7, 8)
"""Numbers of GPUs whose plans are proven and cached."""
PARTS = (
    '[role="tablist"]',
    ".st-key-plan-inputs",
    ".st-key-numbers",
    ".st-key-draft-bar",
    ".st-key-slices",
    ".st-key-results",
)
MOVE = """([label, place]) => new Promise(answer => {
  const input = document.querySelector(`input[type=range][aria-label="${CSS.escape(label)}"]`);
  const shown = () => ['.st-key-draft-bar p.draft-line', '.st-key-plan-inputs', '.st-key-numbers'].map(
    part => document.querySelector(part)?.innerText).join()
    + document.querySelector('.st-key-slices .picture')?.dataset.shown;
  const words = shown(), parts = PARTS, top = part => document.querySelector(part)?.getBoundingClientRect().top;
  const first = [...parts.map(top), input.getBoundingClientRect().top];
  let shift = 0, done = 0;
  const began = performance.now();
  input.value = place;
  input.dispatchEvent(new Event('input', { bubbles: true }));
  input.dispatchEvent(new Event('change', { bubbles: true }));
  const look = () => {
    const now = performance.now();
    [...parts.map(top), input.getBoundingClientRect().top].forEach((at, number) => {
      if (at !== undefined && first[number] !== undefined) shift = Math.max(shift, Math.abs(at - first[number]));
    });
    if (!done && shown() !== words) done = now - began;
    // A while longer: what comes after the plan may not move anything either.
    if ((done && now - began > done + 700) || now - began > 20000) answer([done || -1, shift, input.isConnected]);
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})""".replace("PARTS", json.dumps(PARTS))
"""Milliseconds until the page shows the move's result (-1: never), and the largest shift of a part meanwhile, px."""


def places(page: Page) -> dict[str, tuple[int, int]]:
    """Current and last position of each input slider, by its label."""
    found: dict[str, tuple[int, int]] = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('.st-key-plan-inputs input[type=range]')].map(one =>
        [one.getAttribute('aria-label'), [Number(one.value), Number(one.max)]]))"""
    )
    return found


def moved(page: Page, label: str, place: int) -> tuple[float, float]:
    """Milliseconds until the move's plan is shown, and the largest shift of a part, px."""
    ms, shift, _ = page.evaluate(MOVE, [label, place])
    settled(page)
    if ms < 0:
        raise SystemExit(f"a move of {label} to place {place} was never answered")
    return ms, shift


def random_moves(page: Page, draw: random.Random, count: int) -> list[tuple[float, float]]:
    """Move random sliders to random positions, `count` times."""
    found = []
    for _ in range(count):
        label, (now, last) = draw.choice(sorted(places(page).items()))
        place = draw.choice([place for place in range(last + 1) if place != now])
        found.append(moved(page, label, place))
    return found


def known_moves(page: Page, draw: random.Random, count: int) -> list[tuple[float, float]]:
    """Move the number of GPUs between values whose plans are known."""
    label = next(label for label in places(page) if "A100" in label)
    found, number = [], 5
    for _ in range(count):
        number = draw.choice([one for one in GPUS if one != number])
        # Position 0 is one GPU. At the stored number there is no draft; the bar says that too.
        found.append(moved(page, label, number - 1))
    return found


def learn(workspace: Workspace) -> None:
    """Plan and cache what a sweep over the number of GPUs would."""
    (name,) = {found.name for found in workspace.artifacts("plan_request")}
    request = workspace.get("plan_request", name)
    kind = request.gpus[0].type
    for _, asked in sweep_requests(request, SweepRequest("gpus", kind, tuple(map(float, GPUS)))):
        outcome = workflow.plan(replace(asked, solver=replace(asked.solver, time_limit_s=30.0)))
        if outcome.status != "optimal":
            raise SystemExit(f"{asked.gpus[0].count} GPUs are not proven in time")
        PlanCache(workspace).store(asked, outcome)


def large(store: Store, sharing: Literal["exclusive", "fractional"]) -> Workspace:
    """A drawn request for a larger fleet, with the plan of a short search."""
    return stored(store, f"large {sharing}", instance(16, 64, sharing=sharing), 2.0)


def bottom(page: Page) -> float:
    """Where the map ends, in px from the window's top, with the page scrolled to its top."""
    return float(
        page.evaluate(
            "q => document.querySelector(q).closest('.picture').getBoundingClientRect().bottom", MAP
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=30)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--only", default="", help="sessions whose name contains this")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as home:
        store = Store(Path(home))
        unknown, known = filled(store, "moves", answered=True), filled(store, "known", answered=True)
        learn(known)
        sessions = [("11 models on A100, any move", unknown, random_moves, GOAL_MOVE_MS)]
        sessions += [
            (f"16 models on 64 GPUs, {sharing}, any move", large(store, sharing), random_moves, GOAL_MOVE_MS)
            for sharing in ("exclusive", "fractional")
        ]
        _, chat = files.read_file(LLM_REQUEST, expected="torchsplit.plan_request")
        chats = stored(store, "chat and vision", chat, 20.0)
        sessions += [("an LLM and 4 models on 4 H100, any move", chats, random_moves, GOAL_LLM_MS)]
        sessions += [("11 models on A100, to a known plan", known, known_moves, GOAL_KNOWN_MS)]
        sessions = [session for session in sessions if options.only in session[0]]
        with sync_playwright() as playwright, server(TORCHSPLIT_HOME=home) as (address, _):
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(FLAGS))
            page = opened(browser, address)
            timed, ends = {}, []
            for what, workspace, moves, _ in sessions:
                page.goto(f"{address}/plan?workspace={workspace.id}")
                page.wait_for_selector(MAP, timeout=60_000)
                settled(page)
                page.wait_for_timeout(2000)
                ends.append(bottom(page))
                moves(page, random.Random(1), 2)  # the first moves warm up the server
                timed[what] = moves(page, draw, options.moves)
            faults = [one["id"] for one in Axe().run(page).response["violations"]]
            browser.close()
    print(
        "| slider to a verified plan | moves | median, ms | p95, ms | longest, ms | goal p95 "
        "| furthest shift, px |"
    )
    print("|---|---|---|---|---|---|---|")
    for (what, found), (*_, goal) in zip(timed.items(), sessions, strict=True):
        ordered = sorted(ms for ms, _ in found)
        p95 = ordered[max(0, round(0.95 * len(ordered)) - 1)]
        shift = max(px for _, px in found)
        print(
            f"| {what} | {len(found)} | {statistics.median(ordered):.0f} | {p95:.0f} | {ordered[-1]:.0f} | {goal} "
            f"| {shift:.0f} |"
        )
    print()
    print("| the Plan page at 1440 × 900 | result | goal |")
    print("|---|---|---|")
    print(f"| where the map of five GPUs ends, px | {ends[0]:.0f} | 900 |")
    print(f"| rules that axe finds broken | {len(faults)} | 0 |")
    if faults:
        print()
        print(", ".join(faults))
    return 1 if faults or any(px > GOAL_SHIFT_PX for found in timed.values() for _, px in found) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Takes screenshots of every page with results, light, dark and narrow, and those of `docs/images/`.

    python -m tools.screenshots [FOLDER]

Starts a dashboard with an empty store on a free port, plans the measured mix, profiles and cuts a large sample, and
takes the screenshots. With FOLDER it also traces a sample in the browser and writes screenshots of all pages there;
without it it writes only those of the documents.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser, Page, expect, sync_playwright

from torchsplit_core import workflow
from torchsplit_core.files import read_file
from torchsplit_core.jobs.job_kinds import PartitionParameters, ProfileParameters, RequestParameters
from torchsplit_core.jobs.partition import partition_job
from torchsplit_core.jobs.place import place_job, placement_frontier_job
from torchsplit_core.jobs.profile import profile_job
from torchsplit_core.values import ignore_progress
from torchsplit_core.workspace.store import Store

ROOT = Path(__file__).resolve().parent.parent
PLAN_PICTURE = ROOT / "docs" / "images" / "plan.png"
GRAPH_PICTURE = ROOT / "docs" / "images" / "graph.png"
PREPARATION_PICTURE = ROOT / "docs" / "images" / "preparation.png"
PLACE_PICTURE = ROOT / "docs" / "images" / "place.png"
DOOR_MODEL = "library:bert"
EXPLORED = "sample:bert@large"
OPENED = ("module:encoder.layer", "module:encoder.layer.3", "module:encoder.layer.3.attention")
SELECTED = "node:scaled_dot_product_attention_3"
PLAN_TABS = ("plan", "under-load", "run-it", "sweep", "baselines", "compare", "by-hand", "history", "deploy")
MODEL_TABS = ("graph", "profile", "cuts")
PLAIN = (
    "overview", "models", "placements", "trainings", "runs", "host", "evaluation", "activity", "workspace", "help",
)  # fmt: skip
VIEWS = (
    ("light", 1440, 900), ("dark", 1440, 900), ("light", 1024, 900), ("dark", 1024, 900), ("light", 390, 900),
    ("dark", 390, 900),
)  # fmt: skip
TOUR_SEEN = "torchsplit_tour"
"""The cookie of users who have seen the tour; `app.plans.screen.tour` sets it."""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
WAIT_MS = 180_000


def main() -> None:
    """Start the dashboard, create the results, take the screenshots, stop."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as home:
        server = subprocess.Popen(
            [sys.executable, "-m", "streamlit", "run", "app/main.py", "--server.port", str(port)],
            cwd=ROOT,
            env=os.environ | {"TORCHSPLIT_HOME": home, "TORCHSPLIT_EXECUTION": "allowed"},
            stdout=subprocess.DEVNULL,
        )
        try:
            wait_for(address)
            with sync_playwright() as playwright:
                chromium = next(
                    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
                )
                browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
                workspace = walk(browser, address, trace=folder is not None)
                photograph(browser, address, workspace, folder)
                explore(browser, address, Path(home))
                prepare(browser, address, Path(home))
                place(browser, address, Path(home), folder)
                browser.close()
        finally:
            server.terminate()
            server.wait(timeout=20)


def wait_for(address: str) -> None:
    """Wait until the server answers; exit after about a minute."""
    for _ in range(300):
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise SystemExit("the dashboard did not start within a minute")


def opened(browser: Browser, address: str, width: int, height: int, scheme: str = "light") -> Page:
    """A page in a window of that size, for a user who has seen the tour."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
    )
    context.set_default_timeout(WAIT_MS)
    context.add_cookies([{"name": TOUR_SEEN, "value": "seen", "url": address}])
    return context.new_page()


def addresses(workspace: str, model: str) -> dict[str, str]:
    """The address of each view, by name."""
    own = f"workspace={workspace}"
    found = {name: f"{'' if name == 'overview' else name}?{own}" for name in PLAIN}
    found |= {f"model-{tab}": f"model?{own}&model={model}&tab={tab}" for tab in MODEL_TABS}
    found |= {"present": f"present?{own}"}
    return found | {f"plan-{tab}": f"plan?{own}&tab={tab}" for tab in PLAN_TABS}


def walk(browser: Browser, address: str, *, trace: bool) -> str:
    """Create a workspace with results through the pages, and return its id."""
    page = opened(browser, address, 1440, 1000)
    page.goto(address)
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]')
    if trace:
        page.get_by_text("Or trace a sample model").click()
        page.wait_for_timeout(700)  # a click while the expander unfolds misses the button
        page.get_by_role("button", name="Trace and profile it").click()
        expect(page.get_by_role("button", name="Cancel")).to_be_visible(timeout=WAIT_MS)
        expect(page.get_by_role("button", name="Cancel")).to_have_count(0, timeout=WAIT_MS)
        kept = parse_qs(urlsplit(page.url).query)["workspace"][0]
        page.goto(f"{address}/models?workspace={kept}")
        page.get_by_text("Plan something ready").click()
        page.wait_for_timeout(700)
    page.get_by_role("button", name="Plan the measured mix").click()
    expect(page.get_by_text("proven optimal").filter(visible=True)).to_be_visible(timeout=WAIT_MS)
    # The explanation is computed after the plan.
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0, timeout=WAIT_MS)
    return parse_qs(urlsplit(page.url).query)["workspace"][0]


def photograph(browser: Browser, address: str, workspace: str, folder: Path | None) -> None:
    """Take the screenshot of the plan, and with a folder those of all views of all pages."""
    PLAN_PICTURE.parent.mkdir(parents=True, exist_ok=True)
    page = opened(browser, address, 1440, 900)
    take(page, f"{address}/plan?workspace={workspace}", PLAN_PICTURE)
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for scheme, width, height in VIEWS:
        page = opened(browser, address, width, height, scheme)
        for name, where in addresses(workspace, DOOR_MODEL).items():
            take(page, f"{address}/{where}", folder / f"{name}-{scheme}-{width}.png")


def explore(browser: Browser, address: str, home: Path) -> None:
    """Take a screenshot of the Graph page: one block of a large model open, times measured on this machine."""
    workspace = Store(home).create("Explored")
    measured = ProfileParameters((EXPLORED,), batch_sizes=(2,), point_budget_s=1.0)
    profile_job(workspace, measured, ignore_progress)
    partition_job(workspace, PartitionParameters(EXPLORED, 2), ignore_progress)
    look = {
        "opened": list(OPENED),
        "item": SELECTED,
        "node": SELECTED.removeprefix("node:"),
        "overlay": "time",
    }
    workspace.set_setting(f"explorer {EXPLORED}", look)
    page = opened(browser, address, 1440, 1080, "dark")
    take(page, f"{address}/model?workspace={workspace.id}&model={EXPLORED}", GRAPH_PICTURE)


def prepare(browser: Browser, address: str, home: Path) -> None:
    """Take a screenshot of the Graph page: preparation panel open, all steps applied, preparation overlay."""
    workspace = Store(home).create("Prepared")
    workspace.put("graph", EXPLORED, workflow.trace(EXPLORED))
    workspace.set_setting(f"explorer {EXPLORED}", {"opened": list(OPENED[:2]), "overlay": "preparation"})
    page = opened(browser, address, 1440, 1000)
    page.goto(f"{address}/model?workspace={workspace.id}&model={EXPLORED}")
    page.get_by_text("Preparation for cutting").click()
    page.get_by_role("columnheader", name="cut points without it").wait_for()
    page.wait_for_timeout(4000)
    page.screenshot(path=PREPARATION_PICTURE)


def place(browser: Browser, address: str, home: Path, folder: Path | None) -> None:
    """Take screenshots of the Place page: a decode placement on 16 GPUs, and its curve."""
    workspace = Store(home).create("Placed")
    request = read_file(ROOT / "examples" / "placements" / "decode_70b.json")[1]
    workspace.put("placement_request", "decode 70B", request)
    place_job(workspace, RequestParameters("decode 70B"), ignore_progress)
    placement_frontier_job(workspace, RequestParameters("decode 70B"), ignore_progress)
    where = f"{address}/placement?workspace={workspace.id}&placement=decode+70B"
    page = opened(browser, address, 1440, 1240)
    take(page, where, PLACE_PICTURE)
    if folder is None:
        return
    for scheme, width, height in VIEWS:
        page = opened(browser, address, width, height, scheme)
        take(page, where, folder / f"place-{scheme}-{width}.png")


def take(page: Page, url: str, path: Path) -> None:
    """Open the address, wait until everything is drawn, take the screenshot."""
    page.goto(url)
    page.wait_for_selector("h1")
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]')
    page.wait_for_timeout(4000)
    page.screenshot(path=path)


if __name__ == "__main__":
    main()

"""The dashboard as a user meets it: a server of its own on a free port, and Chromium."""

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.browser.access import WIDE
from tests.support.browser.hurry import hurried
from tests.support.paths import ROOT
from tests.support.ports import free_port

# Fixtures end with this package: while Playwright runs, this process has an event loop, and tests elsewhere start one.

# Without a GPU, without a sandbox (tests may run as root in a container), without calls home.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
DOOR_SAMPLES = "sample:diamond,sample:bert"
"""The second door with small samples: the same walk in seconds."""

PATIENCE_MS = 60_000
"""How long a test waits for what it expects: a page that takes seconds on a busy machine is not at fault."""
expect.set_options(timeout=PATIENCE_MS)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/_stcore/health", timeout=10) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="package")
def home(tmp_path_factory) -> Path:
    """Where the running dashboard has its store."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="package")
def address(home) -> Iterator[str]:
    """A running dashboard with an empty store."""
    port = free_port()
    environment = os.environ | {
        "TORCHSPLIT_HOME": str(home),
        "TORCHSPLIT_EXECUTION": "allowed",
        "TORCHSPLIT_DOOR_SAMPLES": DOOR_SAMPLES,
    }
    command = [sys.executable, "-m", "app.server", "127.0.0.1", str(port), "127.0.0.1"]
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        found = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 180
        while not _answers(found):
            assert process.poll() is None, (home / "server.log").read_text()
            assert time.monotonic() < deadline, "the dashboard did not start within three minutes"
            time.sleep(0.2)
        yield found
    finally:
        process.terminate()
        process.wait(timeout=120)


@pytest.fixture(scope="package")
def shared(tmp_path_factory) -> Iterator[BrowserContext]:
    """Chromium without a window: one context for the pages of all tests, and what was loaded once is in its cache.

    Its profile is a folder: Chromium keeps the compiled scripts of the pages in it, a quarter of what a page costs.
    """
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert path, "no Chromium: run `make setup-browser`"
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"), executable_path=path, args=list(FLAGS)
        )
        context.set_default_timeout(PATIENCE_MS)
        yield context
        context.close()


@pytest.fixture(scope="package")
def browser(shared) -> Browser:
    """The same Chromium, for contexts of other users."""
    assert shared.browser is not None
    return shared.browser


@pytest.fixture
def session(browser, shared) -> Iterator[Callable[..., Page]]:
    """Open a page: a session of its own. The test's first finds nothing remembered, a second is another user's."""
    pages = []
    others = []

    def open_session(width=WIDE, scheme="light"):
        if pages:
            others.append(browser.new_context())
            others[-1].set_default_timeout(PATIENCE_MS)
        pages.append(hurried(others[-1] if others else shared))
        pages[-1].set_viewport_size({"width": width, "height": 1000})
        pages[-1].emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        return pages[-1]

    yield open_session
    for page in pages:
        if page.url.startswith("http"):
            page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
        page.close()
    shared.clear_cookies()
    for context in others:
        context.close()

"""A dashboard that requires a login, and a provider of the test's own: in by it, out again, nothing without it."""

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.support.browser.hurry import hurried
from tests.support.browser.openid_provider import CLIENT_ID, CLIENT_SECRET, Provider, running_provider
from tests.support.browser.settle import settle
from tests.support.paths import ROOT
from tests.support.ports import free_port
from torchsplit_core.workspace.store import Store

PATIENCE_MS = 90_000
"""A page stores a workspace and what was uploaded, synced: on a busy disk that alone may take half a minute."""
pytestmark = pytest.mark.browser


@dataclass(frozen=True)
class Dashboard:
    port: int
    folder: Path
    provider: Provider

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def names(self) -> list[str]:
        return [info.name for info in Store(self.folder / "store").workspaces()]

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def status(self, path: str, method: str = "GET", cookie: str = "") -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, headers={"Cookie": cookie})
        status = connection.getresponse().status
        connection.close()
        return status


def _write_secrets(folder: Path, port: int, provider: Provider) -> None:
    file = folder / ".streamlit" / "secrets.toml"
    file.parent.mkdir()
    file.write_text(
        f"""[auth]
redirect_uri = "http://127.0.0.1:{port}/oauth2callback"
cookie_secret = "0123456789abcdef0123456789abcdef"
client_id = "{CLIENT_ID}"
client_secret = "{CLIENT_SECRET}"
server_metadata_url = "{provider.discovery}"

[torchsplit]
allowed_emails = ["ann@example.com"]
"""
    )


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory) -> Iterator[Dashboard]:
    """`torchsplit app` of a user whose home has such secrets."""
    folder = tmp_path_factory.mktemp("login")
    port = free_port()
    with running_provider() as provider:
        _write_secrets(folder, port, provider)
        found = Dashboard(port, folder, provider)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "torchsplit_core", "app", "--port", str(port)], cwd=ROOT,
                env=os.environ | {"HOME": str(folder), "TORCHSPLIT_HOME": str(folder / "store")}, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            deadline = time.monotonic() + 120
            while not _answers(found):
                assert process.poll() is None, found.log()
                assert time.monotonic() < deadline, "the dashboard did not start"
                time.sleep(0.2)
            yield found
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=60)


def _answers(dashboard: Dashboard) -> bool:
    try:
        return dashboard.status("/_stcore/health") == 200
    except OSError:
        return False


@pytest.fixture
def context(browser) -> Iterator[BrowserContext]:
    """A browser that nobody has logged in with."""
    found = browser.new_context()
    found.set_default_timeout(PATIENCE_MS)
    yield found
    found.close()


def at_the_gate(page: Page) -> None:
    expect(page.get_by_role("button", name="Log in")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.get_by_role("heading")).to_have_text(["TorchSplit"])
    assert page.get_by_test_id("stPageLink").count() == 0


@pytest.mark.repeated
def test_a_login_opens_the_dashboard_and_a_logout_closes_it(dashboard, context):
    provider = dashboard.provider
    provider.account = {"sub": "1", "email": "Ann@Example.com", "email_verified": True}
    before = dashboard.names()
    page = hurried(context)
    for path in ("/", "/Plan", "/?workspace=0123456789ab"):
        page.goto(f"{dashboard.address}{path}")
        at_the_gate(page)
    assert dashboard.names() == before == []
    assert "/authorize" not in provider.seen

    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Overview", exact=True)).to_be_visible(timeout=PATIENCE_MS)
    expect(page.get_by_test_id("stSidebar").get_by_text("Ann@Example.com")).to_be_visible(timeout=PATIENCE_MS)
    assert {"/authorize", "/token", "/jwks"} <= set(provider.seen)
    assert dashboard.names() == []  # a visit stores nothing
    page.reload()
    expect(page.get_by_role("heading", name="Overview", exact=True)).to_be_visible(timeout=PATIENCE_MS)

    page.get_by_role("button", name="Log out").click()
    at_the_gate(page)
    page.goto(f"{dashboard.address}/Plan")
    at_the_gate(page)
    assert "/end" in provider.seen


@pytest.mark.repeated
def test_who_is_not_on_the_list_gets_no_further(dashboard, context):
    dashboard.provider.account = {"sub": "2", "email": "bob@example.com", "email_verified": True}
    before = dashboard.names()
    page = hurried(context)
    page.goto(dashboard.address)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("bob@example.com is not among those whom this dashboard admits.")).to_be_visible(
        timeout=PATIENCE_MS
    )
    assert dashboard.names() == before
    assert dashboard.status("/media/a.txt", cookie=_cookies(context)) == 401
    page.get_by_role("button", name="Log out").click()
    at_the_gate(page)


@pytest.mark.repeated
def test_files_pass_after_a_login_alone(dashboard, context):
    """Streamlit keeps downloads and uploads apart from its sessions: there, the cookie decides."""
    dashboard.provider.account = {"sub": "1", "email": "ann@example.com", "email_verified": True}
    page = hurried(context)
    page.goto(dashboard.address)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="Workspace").click()
    expect(page.get_by_role("heading", name="Workspace", exact=True)).to_be_visible(timeout=PATIENCE_MS)
    settle(page)
    with page.expect_response(lambda answer: "/_stcore/upload_file/" in answer.url) as uploaded:
        page.locator("input[type=file]").first.set_input_files(ROOT / "examples" / "plan_request.json")
    assert uploaded.value.status == 204
    expect(page.get_by_text("Stored plan_request.json")).to_be_visible(timeout=PATIENCE_MS)
    with page.expect_download() as download:
        page.get_by_test_id("stDownloadButton").get_by_role("button").first.click()
    path = download.value.url.removeprefix(dashboard.address)
    assert path.startswith("/media/")
    cookies = _cookies(context)
    assert dashboard.status(path, cookie=cookies) == 200
    forged = cookies.replace("_streamlit_user=", "_streamlit_user=x")
    for cookie in ("", forged):
        assert dashboard.status(path, cookie=cookie) == 401
        assert dashboard.status("/_stcore/upload_file/a/b", "PUT", cookie) == 401
        assert dashboard.status("/_stcore/upload_file/a/b", "DELETE", cookie) == 401
        assert dashboard.status("/_stcore/metrics", cookie=cookie) == 401
    assert dashboard.status("/_stcore/upload_file/a/b", "PUT", cookies) != 401
    assert dashboard.status("/_stcore/health") == 200


def test_whoever_starts_it_is_told(dashboard):
    assert "A login at 127.0.0.1 is required; it admits ann@example.com." in dashboard.log()
    assert CLIENT_SECRET not in dashboard.log()


def _cookies(context: BrowserContext) -> str:
    return "; ".join(f"{cookie['name']}={cookie['value']}" for cookie in context.cookies())

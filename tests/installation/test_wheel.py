"""The wheel, installed where nothing else is: one package, all it needs, and commands that run far from a checkout."""

import json
import socket
import subprocess
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.installed import Installed, build_wheel, install
from tests.support.paths import EXAMPLES, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.repeated]

PAGES = """
import os, time
from streamlit.testing.v1 import AppTest
from torchsplit_core import bundle, jobs
from torchsplit_core.workspace.store import Store
os.chdir(bundle.root())
def opened(file, **query):
    page = AppTest.from_file(str(bundle.root() / file), default_timeout=60)
    page.query_params.update(query)
    page.run()
    print([told.value for told in page.exception], page.title[0].value)
    return page
opened("app/main.py")
opened("pages/help.py")
opened("pages/placements.py", tab="placements").button(key="example 0").click().run()
(found,) = Store().workspaces()
workspace = Store().open(found.id)
while (job := jobs.statuses(workspace)[0]).state == "running":
    time.sleep(0.1)
print(job.title, job.state, job.fault)
"""
"""The first page, the guides, an example that is placed: files that lie beside the core, and a job's process."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def made(wheel, tmp_path_factory) -> Callable[..., Installed]:
    """Environments with these extras."""

    def make(*extras):
        return install(wheel, tmp_path_factory.mktemp("installed") / "-".join(("env", *extras)), extras)

    return make


@pytest.fixture(scope="module")
def plain(made) -> Installed:
    return made()


@pytest.fixture(scope="module")
def with_app(made) -> Installed:
    return made("app")


@pytest.fixture
def server(with_app) -> Iterator[str]:
    """The address of the dashboard of an installation."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with_app.store.mkdir(exist_ok=True)
    process = subprocess.Popen(
        with_app.command("app", "--port", str(port)), cwd=with_app.store, env=with_app.environment
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None and time.monotonic() < deadline, "the dashboard did not start"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=10).close()
                break
            except OSError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(120)


def test_its_one_package_is_the_core_and_carries_all_that_lies_beside_it(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
        assert {name.split("/")[0] for name in names} == {"torchsplit_core", info}
        assert archive.read(f"{info}/top_level.txt").split() == [b"torchsplit_core"]
        assert b"torchsplit = torchsplit_core.cli:main" in archive.read(f"{info}/entry_points.txt")
    for room in ("app", "pages", "sample_models", "torchsplit_core"):
        inside = "torchsplit_core/" if room == "torchsplit_core" else "torchsplit_core/_bundle/"
        files = [path for path in (ROOT / room).rglob("*") if path.is_file() and path.suffix != ".pyc"]
        expected = {inside.removesuffix("torchsplit_core/") + str(path.relative_to(ROOT)) for path in files}
        assert expected - names == set()
    assert "torchsplit_core/_bundle/.streamlit/config.toml" in names


def test_planning_needs_nothing_but_the_base(plain):
    assert plain.run("--version").stdout.startswith("torchsplit ")
    found = plain.run("plan", EXAMPLES / "plan_request.json", "--json")
    assert (found.returncode, json.loads(found.stdout)["status"]) == (0, "optimal")
    assert plain.python("import app").returncode != 0
    assert plain.python("import sample_models").returncode != 0


@pytest.mark.parametrize(("arguments", "message"), [
    (("trace", "sample:diamond"), "torchsplit trace needs torch. Install torchsplit[trace]."),
    (("app",), "torchsplit app needs streamlit. Install torchsplit[app]."),
    (("serve", EXAMPLES / "plan.json", "--request", EXAMPLES / "plan_request.json"),
     "torchsplit serve needs orjson. Install torchsplit[serve]."),
    (("route", EXAMPLES / "routes.json"), "torchsplit route needs uvloop. Install torchsplit[serve]."),
    (("train", "sample:llama", "--strategy", EXAMPLES / "training" / "two_ranks.json", "-o", "run"),
     "torchsplit train needs torch. Install torchsplit[train]."),
])  # fmt: skip
def test_a_command_without_its_extra_says_which_it_is(plain, arguments, message):
    found = plain.run(*arguments)
    assert (found.returncode, found.stdout, found.stderr) == (2, "", f"{message}\n")


@pytest.mark.torch
def test_a_sample_is_traced_as_in_a_checkout(made):
    found = made("trace").run("trace", "sample:diamond", "--json")
    assert found.returncode == 0, found.stderr
    traced = json.loads(found.stdout)
    places = {node["source"] for node in traced["nodes"] if node["kind"] == "op"}
    assert places and all(place.startswith("diamond.py:") for place in places)


def test_the_dashboard_answers_and_its_pages_run(with_app, server):
    with urllib.request.urlopen(server, timeout=30) as answer:
        assert b"<title>" in answer.read()
    with urllib.request.urlopen(f"{server}/_stcore/host-config", timeout=30) as answer:
        assert answer.headers["X-Frame-Options"] == "SAMEORIGIN"
    found = with_app.python(PAGES)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [
        "[] Overview", "[] Help", "[] LLM placements", "Place Llama 70B on 16 GPUs done None",
    ]  # fmt: skip

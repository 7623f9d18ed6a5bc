"""What was acknowledged survives a power cut; a full or read-only disk locks nobody out of what is stored."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.seeds import repeated
from tests.support.workspace.disk_scenarios import may_mount
from tests.support.workspace.storage_writer import request
from torchsplit_core.workspace import Database
from torchsplit_core.workspace.store import Store

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "tests" / "support" / "workspace" / "disk_scenarios.py"


def run(prefix: list[str], name: str, folder: Path) -> None:
    found = subprocess.run(
        [*prefix, sys.executable, str(SCRIPT), name, str(folder)], capture_output=True, text=True,
        check=False, env=os.environ | {"TMPDIR": str(folder)},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
    assert found.stdout.strip().endswith('"held"')


@repeated("name", ["full", "read_only", "pages"])
def test_on_a_disk_that_takes_nothing(name, tmp_path):
    prefix = may_mount(loop=False)
    if prefix is None:
        pytest.skip("no file system can be mounted here")
    run(prefix, name, tmp_path)


def test_what_was_acknowledged_survives_a_power_cut(tmp_path, monkeypatch):
    prefix = may_mount(loop=True)
    if prefix is not None:
        run(prefix, "power_cut", tmp_path)
    # Also, and where no loop device may be used alone, by the order of what the disk is told.
    told = recorded(monkeypatch)
    store = Store(tmp_path / "home")
    workspace = store.create("w")
    told.clear()
    digest = workspace.put("plan_request", "mix", request()).sha256
    path = store.blobs.path(digest)
    content = next(event for event in told if event.startswith("sync ") and event.endswith(" with content"))
    order = [content, f"move to {path}", f"sync {path.parent}", "row"]
    # The first transaction asks what the workspace holds, before anything is written.
    assert [event for event in told if event in order] == ["row", *order]
    assert f"sync {store.blobs.folder}" in told[: told.index(content)]


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this process tells the disk from now on: syncs by path, moves, and transactions that end."""
    told = []
    sync, replace, end = os.fsync, Path.replace, Database.connect

    def fsync(handle):
        path = Path(f"/proc/self/fd/{handle}").readlink()
        size = os.fstat(handle).st_size
        sync(handle)
        told.append(f"sync {path}" + (" with content" if path.is_file() and size else ""))

    def moved(self, target):
        told.append(f"move to {target}")
        return replace(self, target)

    def connect(self, *, write=False):
        told.append("row")
        return end(self, write=write)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", moved)
    monkeypatch.setattr(Database, "connect", connect)
    return told

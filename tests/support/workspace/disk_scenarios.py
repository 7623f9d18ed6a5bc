"""Scenarios on a disk of their own: full, read-only, cut off from power. Run as a script in a mount namespace.

`python disk_scenarios.py NAME FOLDER`, with the project's root on PYTHONPATH: mounts
vanish with the namespace. Ends with 0 where all held.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.workspace.storage_writer import request
from torchsplit_core import jobs
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.job_kinds import PLAN, RequestParameters
from torchsplit_core.values import InputFault
from torchsplit_core.workspace import StoreFault
from torchsplit_core.workspace.archive import export_workspace, import_workspace
from torchsplit_core.workspace.store import Store, Workspace

MIB = 2**20


def mount(what: str, at: Path, *options: str) -> Path:
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", *options, what, str(at)], check=True)
    return at


def fill(folder: Path) -> None:
    """Leave not a byte: large pieces, then small ones, then single bytes and names."""
    block = b"\0" * MIB
    for size in (MIB, 4096, 1):
        with contextlib.suppress(OSError), (folder / f"filler-{size}").open("wb", buffering=0) as stream:
            while stream.write(block[:size]):
                pass
    assert os.statvfs(folder).f_bfree == 0


def filled_store(folder: Path) -> tuple[Store, Workspace]:
    """A store with a workspace, a second one that is large, and one damaged nowhere."""
    store = Store(folder)
    workspace = store.create("review")
    workspace.put("plan_request", "mix", request(3))
    workspace.set_setting("scenario", "mix")
    store.create("large").put_bytes("upload", "large.pt2", os.urandom(2 * MIB))
    record = workspace.add_job("Plan mix", PLAN, {"request": "mix"})
    runner._write(store, record.id, {"state": "done", "seconds": 2.0})
    return store, workspace


def everything_is_read(store: Store, identity: str) -> None:
    assert {info.name for info in store.workspaces()} >= {"review"}
    workspace = store.open(identity)
    assert workspace.get("plan_request", "mix") == request(3)
    assert workspace.setting("scenario") == "mix"
    assert [status.state for status in jobs.statuses(workspace)] == ["done"]
    assert len(export_workspace(workspace)) > 100


def refuses(kind: str, work: Callable[[], object]) -> None:
    try:
        work()
    except StoreFault as fault:
        assert fault.kind == kind, fault
        return
    raise AssertionError(f"nothing was refused: {work}")


def full(folder: Path) -> None:
    """0 bytes free: everything stored is read, nothing is stored, a deletion works and makes room."""
    disk = mount("tmpfs", folder / "disk", "-t", "tmpfs", "-o", "size=12m")
    store, workspace = filled_store(disk / "home")
    identity = workspace.id
    archive = export_workspace(workspace)
    fill(disk)
    for again in (store, Store(store.root)):  # the server that ran, and one that starts now
        everything_is_read(again, identity)
        assert "full" in str(again.disk_warning())
        own = again.open(identity)
        refuses("full", partial(own.put_bytes, "upload", "new", os.urandom(MIB)))
        refuses("full", partial(own.set_setting, "x", "y" * 100_000))
        refuses("full", partial(import_workspace, again, archive))
        refuses("full", partial(jobs.start, own, "Plan", PLAN, RequestParameters("mix")))
        everything_is_read(again, identity)
    large = next(info for info in store.workspaces() if info.name == "large")
    store.delete(large.id)
    assert [info.name for info in store.workspaces()] == ["review"]
    store.open(identity).put_bytes("upload", "small", b"there is room again")
    fill(disk)
    store.open(identity).remove("upload", "small")
    everything_is_read(store, identity)
    fill(disk)
    store.delete(identity)
    assert store.workspaces() == ()


def read_only(folder: Path) -> None:
    """Everything is read, and each change is one message."""
    disk = mount("tmpfs", folder / "disk", "-t", "tmpfs", "-o", "size=16m")
    _, workspace = filled_store(disk / "home")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    store = Store(disk / "home")
    everything_is_read(store, workspace.id)
    assert "read-only" in str(store.disk_warning())
    own = store.open(workspace.id)
    for work in (
        lambda: store.create("new"),
        lambda: store.delete(own.id),
        lambda: own.put("plan_request", "new", request()),
        lambda: own.remove("plan_request", "mix"),
        lambda: own.set_setting("x", 1),
        lambda: jobs.start(own, "Plan", PLAN, RequestParameters("mix")),
    ):
        refuses("read-only", work)
    everything_is_read(store, workspace.id)


def pages(folder: Path) -> None:
    """Every page of a filled workspace on a full disk, then read-only: it draws, and says what the matter is."""
    import streamlit as st
    from streamlit.testing.v1 import AppTest

    from tests.support.app.packages import look_once
    from tests.support.app.values import SOURCE, cuts, graph, plan, profile
    from tests.support.app.values import request as plan_request

    look_once()
    disk = mount("tmpfs", folder / "disk", "-t", "tmpfs", "-o", "size=16m")
    os.environ |= {"TORCHSPLIT_HOME": str(disk / "home"), "TORCHSPLIT_EXECUTION": "allowed"}
    workspace = Store(disk / "home").create("review")
    for kind, name, value in (
        ("graph", SOURCE, graph()), ("profile", SOURCE, profile()), ("partition", f"{SOURCE} in 2", cuts()),
        ("plan_request", "review", plan_request()), ("plan", "review", plan()),
    ):  # fmt: skip
        workspace.put(kind, name, value)
    workspace.set_setting("scenario", "review")
    root = ROOT

    def draw_all(word: str) -> None:
        for path in sorted((root / "pages").glob("[a-z]*.py")):
            st.cache_resource.clear()
            test = AppTest.from_file(str(path), default_timeout=60)
            test.query_params["workspace"] = workspace.id
            test.run()
            assert not test.exception, (path.name, test.exception)
            assert any(word in element.value.replace("\\", "") for element in test.warning), path.name
            assert not test.error, (path.name, [element.value for element in test.error])

    fill(disk)
    draw_all("full")
    # Who comes without an address is told, and finds the way to what is stored; a visit stores nothing.
    test = AppTest.from_file(str(root / "pages" / "overview.py"), default_timeout=60).run()
    assert not test.exception, test.exception
    assert any("full" in found.value for found in test.warning), [element.value for element in test.warning]
    assert "Earlier workspaces" in [element.value for element in test.header]
    assert [getattr(element, "label", None) for element in test.get("page_link")] == ["review"]
    assert "workspace" not in test.query_params
    for path in disk.glob("filler-*"):
        path.unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    draw_all("read-only")


WRITES: tuple[tuple[str, Callable[[Store, Workspace], object]], ...] = (
    ("small", lambda store, own: own.put_bytes("upload", "small", b"small" * 100)),
    ("large", lambda store, own: own.put_bytes("upload", "large", b"large" * MIB)),
    ("again", lambda store, own: own.put_bytes("upload", "again", b"small" * 100)),
    ("value", lambda store, own: own.put("plan_request", "mix", request(7))),
    ("archive", lambda store, own: import_workspace(store, export_workspace(own))),
)
"""What is acknowledged, one after the other; "again" is a content that is there already."""


def power_cut(folder: Path) -> None:
    """After each acknowledgement the image is taken as the disk has it; started from it, nothing is missing."""
    # Images in memory: what is copied and thrown away here would keep a real disk busy for a minute.
    folder = mount("tmpfs", folder / "images", "-t", "tmpfs", "-o", "size=1g")
    image = folder / "disk.img"
    with image.open("wb") as stream:
        stream.truncate(96 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    disk = mount(str(image), folder / "disk", "-o", "loop")
    store = Store(disk / "home")
    workspace = store.create("review")
    for number, (name, write) in enumerate(WRITES):
        write(store, workspace)
        after = folder / f"after-{name}.img"
        # The file behind the loop device has what the file system has handed down, and nothing else.
        subprocess.run(["cp", "--sparse=always", str(image), str(after)], check=True)
        restarted = mount(str(after), folder / f"after-{name}", "-o", "loop")
        reopened = Store(restarted / "home")
        own = reopened.open(workspace.id)
        names = {"small", "large", "again"}
        for kept in [item for item in [done for done, _ in WRITES[: number + 1]] if item in names]:
            content = {"small": b"small" * 100, "large": b"large" * MIB, "again": b"small" * 100}[kept]
            assert own.get_bytes("upload", kept) == content, (name, kept)
        if number >= 3:
            assert own.get("plan_request", "mix") == request(7)
        assert len(reopened.workspaces()) == (2 if name == "archive" else 1)
        for info in reopened.workspaces():
            opened = reopened.open(info.id)
            for item in opened.artifacts():
                opened.get_bytes(item.kind, item.name)
        subprocess.run(["umount", str(restarted)], check=True)
        after.unlink()


@contextlib.contextmanager
def told() -> Iterator[None]:
    try:
        yield
    except InputFault as fault:
        raise AssertionError(str(fault)) from fault


SCENARIOS = {"full": full, "read_only": read_only, "pages": pages, "power_cut": power_cut}


def may_mount(loop: bool) -> list[str] | None:
    """The command before the script under which it may mount (a loop device), None where it may not."""
    for prefix in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        if shutil.which("unshare") is None:
            return None
        probe = "mount -t tmpfs tmpfs /mnt"
        if loop:
            probe = (
                "d=$(mktemp -d) && truncate -s 8M $d/i && mkfs.ext4 -q -F $d/i && mkdir $d/m "
                "&& mount -o loop $d/i $d/m && umount $d/m && rm -r $d"
            )
        if subprocess.run([*prefix, "sh", "-c", probe], capture_output=True, check=False).returncode == 0:
            return prefix
    return None


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with told():
        SCENARIOS[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps("held"))

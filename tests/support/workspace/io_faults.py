"""Every system call by which the store reaches its disk fails in turn, or is the last one before kill -9.

After Sullivan and others' tests of SQLite (https://www.sqlite.org/testing.html, "I/O error testing"): an operation is
done once, counting its calls; then it is done again for each call and each error that the call may have. The calls
are those of this process to libc, Python's and SQLite's alike, counted by `io_faults.c`, which is compiled here.
`run` starts this module as a script with it loaded.
"""

import ctypes
import datetime
import errno
import json
import os
import shutil
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.support.paths import ROOT
from tests.support.workspace.storage_writer import request
from torchsplit_core.jobs.job_kinds import PLAN
from torchsplit_core.profiling.points import MeasuredPoint
from torchsplit_core.values import InputFault
from torchsplit_core.workspace import make_daily_copy
from torchsplit_core.workspace.archive import export_workspace, import_workspace
from torchsplit_core.workspace.drafts import DraftStore, StoredDraft
from torchsplit_core.workspace.measured_points import PointStore
from torchsplit_core.workspace.store import Store, Workspace
from torchsplit_core.workspace.versions import VersionStore

SOURCE = Path(__file__).with_suffix(".c")
ONCE, FROM_THERE, KILL_BEFORE, KILL_HALF, KILL_AFTER = range(5)
"""Modes of `io_faults.c`."""
KILLS = (KILL_BEFORE, KILL_HALF, KILL_AFTER)
ERRORS = {
    "open": (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EACCES, errno.EINTR),
    "read": (errno.EIO, errno.EINTR),
    "write": (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EINTR),
    "sync": (errno.EIO, errno.ENOSPC, errno.EINTR),
    "truncate": (errno.EIO, errno.ENOSPC, errno.EINTR),
    "allocate": (errno.ENOSPC, errno.EIO),
    "rename": (errno.EIO, errno.ENOSPC),
    "link": (errno.EIO, errno.ENOSPC),
    "unlink": (errno.EIO, errno.EROFS),
    "rmdir": (errno.EIO, errno.EROFS),
    "mkdir": (errno.ENOSPC, errno.EIO),
    "lock": (errno.EIO, errno.ENOLCK, errno.EINTR),
}
"""What each call may fail with (its manual page)."""

Work = Callable[[], object]


@dataclass(frozen=True)
class Operation:
    """Something done to the store under a folder: `begin` looks up what it needs and gives what is tried."""

    name: str
    begin: Callable[[Path], Work]
    new: bool = False
    """On a folder without a store."""


def _own(root: Path, name: str = "review") -> Workspace:
    store = Store(root)
    return store.open(next(info.id for info in store.workspaces() if info.name == name))


def _of(work: Callable[[Workspace], object]) -> Callable[[Path], Work]:
    def begin(root: Path) -> Work:
        own = _own(root)
        return lambda: work(own)

    return begin


def _bring_back(root: Path) -> Work:
    store = Store(root)
    with store.connect() as database:
        (gone,) = database.execute("SELECT workspace FROM deleted").fetchone()
    return lambda: store.undelete(gone)


def _import(root: Path) -> Work:
    own = _own(root)
    archive = export_workspace(own)
    return lambda: import_workspace(own.store, archive)


NEW = b"new" * 5000
POINT = MeasuredPoint("a" * 64, "batch", 8, {"latency_ms": 1.5})
OPERATIONS = (
    Operation("open: a new store", lambda root: lambda: Store(root), new=True),
    Operation("open: a store", lambda root: lambda: Store(root)),
    Operation("put: new", _of(lambda own: own.put_bytes("upload", "new", NEW))),
    Operation("put: in place of another", _of(lambda own: own.put_bytes("upload", "large.pt2", NEW))),
    Operation("put: the same content", _of(lambda own: own.put("plan_request", "again", request(3)))),
    Operation(
        "put: three", _of(lambda own: own.put_all("upload", [(f"n{i}", NEW + bytes([i])) for i in range(3)]))
    ),
    Operation("remove", _of(lambda own: own.remove("upload", "large.pt2"))),
    Operation("setting", _of(lambda own: own.set_setting("scenario", "x" * 9000))),
    Operation("setting: changed", _of(lambda own: own.change_setting("scenario", lambda old: [old]))),
    Operation("job", _of(lambda own: own.add_job("Plan more", PLAN, {"request": "mix"}))),
    Operation("version", _of(lambda own: VersionStore(own, "mix").save("x"))),
    Operation(
        "draft", _of(lambda own: DraftStore(own, "mix").save("tab", StoredDraft("", request(4), None, "s")))
    ),
    Operation("draft: forgotten", _of(lambda own: DraftStore(own, "mix").delete("old"))),
    Operation("point", _of(lambda own: PointStore(own.store, "here").save(POINT))),
    Operation("workspace: new", _of(lambda own: own.store.create("another"))),
    Operation("workspace: renamed", _of(lambda own: own.store.rename(own.id, "renamed"))),
    Operation("workspace: copied", _of(lambda own: own.store.copy(own.id, "copy"))),
    Operation("workspace: discarded", _of(lambda own: own.store.soft_delete(own.id))),
    Operation("workspace: brought back", _bring_back),
    Operation("workspace: deleted", _of(lambda own: own.store.delete(own.id))),
    Operation("archive: imported", _import),
    Operation("archive: exported", _of(export_workspace)),
    Operation("tended", _of(lambda own: own.store.maintain())),
    Operation("read", _of(lambda own: (own.get("plan_request", "mix"), own.setting("scenario"), own.job_records()))),
    Operation("checked", _of(lambda own: own.store.check())),
)  # fmt: skip


def filled(root: Path) -> None:
    """A store in which every operation finds what it works on."""
    store = Store(root)
    workspace = store.create("review")
    workspace.put("plan_request", "mix", request(3))
    workspace.put_bytes("upload", "large.pt2", b"large" * 6000)  # an archive of more is checked in a child
    workspace.set_setting("scenario", "mix")
    job = workspace.add_job("Plan mix", PLAN, {"request": "mix"})
    (root / "jobs" / f"{job.id}.json").write_text("{}")
    (workspace.runs / "a" / "b").mkdir(parents=True)
    (workspace.runs / "a" / "b" / "log").write_text("log")
    for day in range(1, 4):
        make_daily_copy(store.database, datetime.date(2020, 1, day))
    VersionStore(workspace, "mix").save("")
    workspace.put("plan_request", "mix", request(5))
    DraftStore(workspace, "mix").save("old", StoredDraft("", request(2), None, "said"))
    other = store.create("gone")
    other.put_bytes("upload", "b", b"b" * 1000)
    store.soft_delete(other.id)
    # What a process that was killed has left behind.
    (root / "blobs" / "00").mkdir(exist_ok=True)
    (root / "blobs" / "00" / "tmpleft").write_bytes(b"half")
    (root / "jobs" / f"{'0' * 16}.json").write_text("{}")


def seen(root: Path) -> Any:
    """All that can be read of the store, without ids and times."""
    store = Store(root)
    store.check()
    found: dict[str, Any] = {"points": [point.content for point in PointStore(store, "here").load()]}
    for info in store.workspaces():
        own = store.open(info.id)
        found[info.name] = {
            "results": {
                (item.kind, item.name): own.get_bytes(item.kind, item.name) for item in own.artifacts()
            },
            "scenario": own.setting("scenario"),
            "jobs": [(job.title, job.name, job.parameters) for job in own.job_records()],
            "versions": [(one.number, one.note, one.changes) for one in VersionStore(own, "mix").list()],
            "drafts": [(one.said, one.request) for one in DraftStore(own, "mix").all()],
        }
    with store.connect() as database:
        found["deleted"] = database.execute("SELECT name FROM deleted ORDER BY number").fetchall()
    return found


def leftovers(root: Path) -> list[str]:
    """What lies in the store's folder after it was tended, on the next day, and belongs to nothing."""
    store = Store(root)
    store.maintain(datetime.date.today() + datetime.timedelta(days=1))
    with store.connect() as database:
        used = {row[0] for row in database.execute("SELECT sha256 FROM artifacts")}
        known = {f"jobs/{row[0]}.json" for row in database.execute("SELECT id FROM jobs")}
        runs = {f"runs/{row[0]}" for row in database.execute("SELECT id FROM workspaces")}
    # SQLite empties its journal with the next change.
    known |= {"workspaces.sqlite", "workspaces.sqlite-journal", "blobs.lock", "reserve"}
    return [
        str(path.relative_to(root))
        for path in sorted(root.rglob("*"))
        if path.is_file()
        and str(path.relative_to(root)) not in known
        and "/".join(path.relative_to(root).parts[:2]) not in runs
        and not (path.parent.parent.name == "blobs" and path.name in used)
        and not (path.parent.name == "copies" and path.suffix == ".sqlite")
    ]


@dataclass
class Told:
    """What was tried of an operation and what came of it."""

    calls: int = 0
    tries: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Disk:
    """The library that counts and fails calls; it was loaded before libc."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.fault_name.restype = ctypes.c_char_p
        self._library.fault_count.restype = ctypes.c_long

    def during(self, root: Path, at: int, error: int, mode: int, work: Work) -> None:
        """Do `work` while its call number `at` below the folder fails."""
        self._library.fault_arm(os.fsencode(root), ctypes.c_long(at), error, mode)
        try:
            work()
        finally:
            self._library.fault_disarm()

    def calls(self) -> list[str]:
        """The calls of the last work."""
        last = self._library.fault_count()
        return [self._library.fault_name(ctypes.c_long(number)).decode() for number in range(1, last + 1)]


class Trial:
    """One operation under every fault."""

    def __init__(self, folder: Path, operation: Operation, disk: Disk) -> None:
        self.operation, self.disk, self.told = operation, disk, Told()
        self.base, self.home = folder / "base", folder / "home"
        shutil.rmtree(self.base, ignore_errors=True)
        if not operation.new:
            filled(self.base)
        self.before = self._fresh_seen()
        work = self._fresh()
        disk.during(self.home, 0, 0, ONCE, work)
        self.calls = disk.calls()
        self.told.calls = len(self.calls)
        self.after = seen(self.home)

    def _fresh(self) -> Work:
        shutil.rmtree(self.home, ignore_errors=True)
        if self.operation.new:
            self.home.mkdir()
        else:
            shutil.copytree(self.base, self.home)
        return self.operation.begin(self.home)

    def _fresh_seen(self) -> Any:
        self._fresh()
        return seen(self.home)

    def fault(self, at: int, error: int, mode: int, *, sweep: bool = True) -> None:
        """Call `at` fails: the operation is done, or refused in one message and can be done again.

        `sweep`: and nothing is left once the store was tended.
        """
        what = f"{self.operation.name}: call {at} of {len(self.calls)} ({self.calls[at - 1]}), "
        what += errno.errorcode[error] + (" from there on" if mode == FROM_THERE else "")
        work, done = self._fresh(), False
        try:
            self.disk.during(self.home, at, error, mode, work)
            done = True
            self.told.tries["done"] += 1
        except InputFault as fault:
            self.told.tries["refused"] += 1
            if not fault.problem or not fault.remedy:
                self.told.failures.append(f"{what}: {fault!r}")
        except Exception:  # noqa: BLE001 - whatever it is, it is what this looks for
            self.told.tries["refused"] += 1
            self.told.failures.append(f"{what}: {traceback.format_exc(limit=-4)}")
        self._look(what, done=done, sweep=sweep)

    def kill(self, at: int, mode: int) -> None:
        """kill -9 at call `at`: the operation is done or not, and can be done again."""
        what = f"{self.operation.name}: kill -9 {('', '', 'before', 'in', 'after')[mode]} call {at} of "
        what += f"{len(self.calls)} ({self.calls[at - 1]})"
        work = self._fresh()
        if (child := os.fork()) == 0:
            try:
                self.disk.during(self.home, at, 0, mode, work)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            self.told.failures.append(f"{what}: it lived on")
        self.told.tries["killed"] += 1
        self._look(what, done=False, sweep=True)

    def _look(self, what: str, *, done: bool, sweep: bool) -> None:
        try:
            found = seen(self.home)
            if sweep and (left := leftovers(self.home)):
                self.told.failures.append(f"{what}: left behind: {left}")
            if found == self.before and (not done or self.before == self.after):
                self.operation.begin(self.home)()  # the disk is well again
                if (again := seen(self.home)) != self.after:
                    self.told.failures.append(f"{what}: done again it gives {_difference(again, self.after)}")
            elif found != self.after:
                self.told.failures.append(f"{what}: {'acknowledged' if done else 'refused'}, and there is "
                                          f"{_difference(found, self.after)}")  # fmt: skip
        except Exception:  # noqa: BLE001 - whatever it is, it is what this looks for
            self.told.failures.append(f"{what}: afterwards {traceback.format_exc(limit=-4)}")


def _difference(found: Any, wanted: Any) -> str:
    keys = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
    return "; ".join(f"{key}: {str(found.get(key))[:200]} for {str(wanted.get(key))[:200]}" for key in keys)


Tries = Literal["few", "errors", "kills"]
"""`few`: one error for two of three calls that write, all that follow with it now and then, a kill at every fifth.
`errors`: every error of every call, and all writes from there on. `kills`: before, in and after every call that
writes."""


def tried(folder: Path, operation: Operation, tries: Tries) -> Told:
    """An operation under its faults."""
    trial = Trial(folder, operation, Disk())
    few = tries == "few"
    for at, name in enumerate(trial.calls, 1):
        writes, errors = name not in ("read", "lock"), ERRORS[name]
        if few:
            errors = errors[at % len(errors) :][:1] if writes and at % 3 else ()
        for error in () if tries == "kills" else errors:
            trial.fault(at, error, ONCE, sweep=not few or at % 5 == 0)
        if writes and (tries == "errors" or (few and at % 6 == 0)):
            trial.fault(at, errno.ENOSPC, FROM_THERE)
        if writes and tries == "kills":
            for mode in KILLS:
                trial.kill(at, mode)
        elif writes and few and at % 5 == 2:
            trial.kill(at, KILLS[at // 5 % 3])
    return trial.told


def run(folder: Path, tries: Tries, operation: str = "") -> list[dict[str, Any]] | None:
    """Try the operations (one, where it is named) in a process that the library is loaded into: name, calls, tries
    and failures of each. None where there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "io_faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(folder), tries, operation],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env=os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def main(folder: Path, tries: Tries, chosen: str) -> None:
    """Print a line of JSON an operation."""
    for operation in OPERATIONS:
        if chosen in ("", operation.name):
            told = tried(folder, operation, tries)
            row = {
                "name": operation.name, "calls": told.calls, "tries": dict(told.tries),
                "failures": told.failures,
            }  # fmt: skip
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])  # type: ignore[arg-type]

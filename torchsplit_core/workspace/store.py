"""The workspace: named results of one user's work, stored on disk between runs.

One SQLite file holds names and times; contents are files addressed by their SHA-256, so equal results share a file and
a partial one is never seen. Acknowledged data is on disk: the content is synced before the row that names it, and
checked on every read. Several processes (browser sessions, jobs, the command line) may use a store at once.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from torchsplit_core.files import read_text, write_text
from torchsplit_core.files.data_folder import data_folder
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.names import free_name
from torchsplit_core.workspace import (
    BlobStore,
    Database,
    disk_problem,
    make_daily_copy,
    remove_orphaned_job_files,
    remove_orphaned_runs,
)
from torchsplit_core.workspace.faults import check_quota, fault_from_os_error
from torchsplit_core.workspace.rows import (
    KINDS,
    Artifact,
    check_space,
    checked_kind,
    checked_name,
    digests_of,
    insert_workspace,
    report_taken_name,
    used_digests,
    write_artifact,
)

__all__ = ["KINDS", "Artifact", "JobRecord", "Store", "Workspace", "WorkspaceInfo", "default_root"]


NOT_DELETED = "id NOT IN (SELECT workspace FROM deleted)"
"""Condition on a workspace's row: not deleted."""
MOST_DELETED = 3
"""Deleted workspaces that can be restored."""
RUNS_FOLDER = "runs"
"""Folder of the workspaces' run folders: they grow, so no content hash addresses them."""


def default_root() -> Path:
    """The user's data folder."""
    return data_folder()


@dataclass(frozen=True, slots=True)
class WorkspaceInfo:
    """A workspace's id (as in its address), its name and its creation time (Unix seconds)."""

    id: str
    name: str
    created: float


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as requested; its progress is in its progress file (see jobs).

    `name` is its kind and `parameters` JSON: see jobs/job_kinds.py.
    """

    id: str
    workspace: str
    title: str
    name: str
    parameters: Any
    created: float


class Store:
    """All workspaces under one folder. Raises InputFault if the folder cannot be used.

    On a full or read-only disk everything stored can be read; on a full one it can also be deleted.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()
        self.blobs = BlobStore(self.root)
        self.database = Database(self.root)
        try:
            for folder in (self.root, self.root / "jobs"):
                if not folder.is_dir():
                    folder.mkdir(parents=True, exist_ok=True)
            self.blobs.prepare()
        except OSError as error:
            raise InputFault(
                "workspace folder",
                f"{self.root} cannot be written: {error.strerror or error}",
                "Set TORCHSPLIT_HOME to another folder.",
            ) from error
        self.database.migrate()
        self.database.allocate_reserve()

    @contextlib.contextmanager
    def connect(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction, see `Database.connect`. Raises StoreFault."""
        with self.database.connect(write=write) as database:
            yield database

    def disk_warning(self) -> str | None:
        """A sentence if the disk takes nothing more, otherwise None."""
        return disk_problem(self.root)

    @contextlib.contextmanager
    def lock_file(self, name: str) -> Iterator[IO[str]]:
        """A file of the store to lock, open for writing. Raises StoreFault if the disk refuses."""
        try:
            lock = (self.root / name).open("w")
        except OSError as error:
            raise fault_from_os_error(self.root, error) from error
        with lock:
            yield lock

    def check(self) -> None:
        """Raise StoreFault, with the remedy, if the database is damaged."""
        self.database.check()

    def maintain(self, day: datetime.date | None = None) -> None:
        """Copy the database once a day and remove leftovers. Raises StoreFault."""
        remove_orphaned_job_files(self.database)
        remove_orphaned_runs(self.database, self.root / RUNS_FOLDER)
        make_daily_copy(self.database, day or datetime.date.today())
        self.remove_unused_blobs()

    def _check_types(self, row: tuple[Any, ...], *types: type) -> tuple[Any, ...]:
        """The row, after checking its types: SQLite stores any type anywhere, and so does damage."""
        if not all(isinstance(value, kind) for value, kind in zip(row, types, strict=True)):
            raise self.database.damaged_fault("a stored value has another type")
        return row

    # workspaces

    def workspaces(self) -> tuple[WorkspaceInfo, ...]:
        """All workspaces, newest first."""
        with self.connect() as database:
            rows = database.execute(
                f"SELECT id, name, created FROM workspaces WHERE {NOT_DELETED} ORDER BY rowid DESC"
            ).fetchall()
        return tuple(WorkspaceInfo(*self._check_types(row, str, str, float)) for row in rows)

    def create(self, name: str, identity: str | None = None) -> Workspace:
        """A new, empty workspace, with this id if given.

        Raises InputFault for an empty, overlong or taken name.
        """
        with report_taken_name(name), self.connect() as database:
            return Workspace(self, insert_workspace(database, name, identity))

    def add(
        self,
        name: str,
        results: Iterable[tuple[str, str, Iterable[bytes]]],
        finish: Callable[[sqlite3.Connection, str], None] = lambda database, identity: None,
    ) -> Workspace:
        """A new workspace with these results (kind, name, content in blocks; oldest first), completely or not at all.

        It is called `name`, with the first free number if that is taken. `finish` may write more for the new
        workspace's id in the same transaction. Raises InputFault for an invalid name or kind, and for contents above
        the quota.
        """
        with self.blobs.write_lock():
            stored: list[tuple[str, str, str]] = []
            sizes: dict[str, int] = {}
            for kind, title, blocks in results:
                digest, size = self.blobs.put_blocks(blocks)
                stored.append((checked_kind(kind), checked_name(title), digest))
                sizes[digest] = size
                check_quota(0, sum(sizes.values()))
            with self.connect(write=True) as database:
                taken = {row[0] for row in database.execute("SELECT name FROM workspaces")}
                identity = insert_workspace(database, free_name(name, taken))
                for kind, title, digest in stored:
                    write_artifact(database, identity, kind, title, digest)
                finish(database, identity)
        return Workspace(self, identity)

    def free_name(self, name: str) -> str:
        """The name itself, or the name with the first free number."""
        return free_name(name, {info.name for info in self.workspaces()})

    def open(self, identity: str) -> Workspace:
        """The workspace with this id. Raises InputFault if there is none."""
        with self.connect() as database:
            row = database.execute(
                f"SELECT 1 FROM workspaces WHERE id = ? AND {NOT_DELETED}", (identity,)
            ).fetchone()
        if not row:
            raise _missing_workspace_fault(identity)
        return Workspace(self, identity)

    def rename(self, identity: str, name: str) -> None:
        """Rename a workspace. Raises InputFault like `create`."""
        with report_taken_name(name), self.connect() as database:
            database.execute("UPDATE workspaces SET name = ? WHERE id = ?", (checked_name(name), identity))

    def soft_delete(self, identity: str) -> None:
        """Delete a workspace such that `undelete` can restore it; only the last `MOST_DELETED` can be restored."""

        def work(database: sqlite3.Connection) -> list[str]:
            database.execute(
                f"INSERT INTO deleted (workspace, name) SELECT id, name FROM workspaces WHERE id = ? AND {NOT_DELETED}",
                (identity,),
            )
            # The name is free from now on.
            database.execute("UPDATE workspaces SET name = id WHERE id = ?", (identity,))
            rows = database.execute("SELECT workspace FROM deleted ORDER BY number DESC").fetchall()
            return [row[0] for row in rows[MOST_DELETED:]]

        for oldest in self.database.delete(work):
            self.delete(oldest)

    def deleted_name(self, identity: str) -> str | None:
        """The name of a deleted workspace that can be restored; None if there is none with this id."""
        with self.connect() as database:
            row = database.execute("SELECT name FROM deleted WHERE workspace = ?", (identity,)).fetchone()
        return None if row is None else str(row[0])

    def undelete(self, identity: str) -> Workspace:
        """Undo `soft_delete`; if its name was taken meanwhile, the workspace gets the first free number.

        Raises InputFault if it was deleted for good.
        """
        with self.connect(write=True) as database:
            row = database.execute("SELECT name FROM deleted WHERE workspace = ?", (identity,)).fetchone()
            if row is None:
                raise InputFault(
                    "workspace", f"{quoted(identity)} was deleted for good", "Import its archive."
                )
            taken = {other[0] for other in database.execute("SELECT name FROM workspaces")}
            database.execute("DELETE FROM deleted WHERE workspace = ?", (identity,))
            database.execute(
                "UPDATE workspaces SET name = ? WHERE id = ?", (free_name(row[0], taken), identity)
            )
        return Workspace(self, identity)

    def delete(self, identity: str) -> None:
        """Delete a workspace for good, with its jobs' files and the contents that no other workspace uses."""

        def work(database: sqlite3.Connection) -> tuple[list[str], set[str]]:
            jobs = [
                row[0] for row in database.execute("SELECT id FROM jobs WHERE workspace = ?", (identity,))
            ]
            database.execute("DELETE FROM workspaces WHERE id = ?", (identity,))
            return jobs, used_digests(database)

        with self.blobs.collect_lock():
            jobs, used = self.database.delete(work)
            self.blobs.remove_unused(used)
        for job in jobs:
            for path in (self.root / "jobs").glob(f"{job}.*"):
                with contextlib.suppress(OSError):  # maintenance removes it later
                    path.unlink()
        shutil.rmtree(self.root / RUNS_FOLDER / identity, ignore_errors=True)
        self.database.allocate_reserve()

    def remove_unused_blobs(self) -> int:
        """Remove contents that no workspace names; returns the bytes freed."""
        with self.blobs.collect_lock():
            with self.connect() as database:
                used = used_digests(database)
            return self.blobs.remove_unused(used)

    def copy(self, identity: str, name: str) -> Workspace:
        """A new workspace with the same results, settings, sweeps and versions. Raises InputFault like `create`."""
        source = self.open(identity)
        with report_taken_name(name), self.connect(write=True) as database:
            target = Workspace(self, insert_workspace(database, name))
            for table, columns, order in (
                ("artifacts", "kind, name, sha256, changed", "id"),
                ("settings", "key, value", "rowid"),
                ("sweeps", "scenario, asked, request", "rowid"),
                ("sweep_plans", "scenario, request_sha256, limit_s, plan", "rowid"),
                ("drafts", "scenario, tab, ground_sha256, request, plan, said", "rowid"),
                (
                    "versions",
                    "scenario, number, kept, request_sha256, plan_sha256, request, plan, said",
                    "rowid",
                ),
            ):
                database.execute(
                    f"INSERT INTO {table} (workspace, {columns}) "
                    f"SELECT ?, {columns} FROM {table} WHERE workspace = ? ORDER BY {order}",
                    (target.id, source.id),
                )
        return target


class Workspace:
    """One workspace's results. Cheap to make; holds no connection."""

    def __init__(self, store: Store, identity: str) -> None:
        self.store = store
        self.id = identity

    @property
    def name(self) -> str:
        """Its current name."""
        with self.store.connect() as database:
            row = database.execute("SELECT name FROM workspaces WHERE id = ?", (self.id,)).fetchone()
        if row is None:
            raise _missing_workspace_fault(self.id)
        return str(row[0])

    @property
    def runs(self) -> Path:
        """The folder of its training runs, which is deleted with it."""
        return self.store.root / RUNS_FOLDER / self.id

    def artifacts(self, kind: str | None = None) -> tuple[Artifact, ...]:
        """Its results (of one kind), newest first."""
        with self.store.connect() as database:
            rows = database.execute(
                "SELECT kind, name, sha256, changed FROM artifacts WHERE workspace = ? AND (? IS NULL OR kind = ?) "
                "ORDER BY id DESC",
                (self.id, kind, kind),
            ).fetchall()
        return tuple(Artifact(*self.store._check_types(row, str, str, str, float)) for row in rows)

    def find(self, kind: str, name: str) -> Artifact | None:
        """The result of (kind, name); None if there is none."""
        with self.store.connect() as database:
            row = database.execute(
                "SELECT kind, name, sha256, changed FROM artifacts WHERE workspace = ? AND kind = ? AND name = ?",
                (self.id, kind, name),
            ).fetchone()
        return None if row is None else Artifact(*self.store._check_types(row, str, str, str, float))

    def put(self, kind: str, name: str, value: Any) -> Artifact:
        """Store a value as its contract file under (kind, name), replacing an earlier one."""
        return self.put_bytes(kind, name, write_text(value).encode())

    def put_bytes(self, kind: str, name: str, data: bytes) -> Artifact:
        """Store bytes under (kind, name), replacing an earlier one."""
        return self.put_all(kind, [(name, data)])[0]

    def put_all(self, kind: str, contents: Iterable[tuple[str, bytes]]) -> tuple[Artifact, ...]:
        """Store bytes under (kind, each name), replacing earlier ones: all of them or none.

        Raises InputFault, before any is written, if the workspace would exceed its quota.
        """
        kind, blobs = checked_kind(kind), self.store.blobs
        by_name = {checked_name(name): data for name, data in contents}
        incoming = {
            (kind, name): (hashlib.sha256(data).hexdigest(), len(data)) for name, data in by_name.items()
        }
        with blobs.write_lock():
            with self.store.connect() as database:
                check_space(database, blobs, self.id, incoming)
            digests = {name: blobs.put(data) for name, data in by_name.items()}
            with self._existing_workspace(), self.store.connect(write=True) as database:
                # Again: others may have stored meanwhile, and from here on none can.
                check_space(database, blobs, self.id, incoming)
                return tuple(
                    write_artifact(database, self.id, kind, name, digest) for name, digest in digests.items()
                )

    def bytes_of(self, artifacts: Iterable[Artifact]) -> int:
        """Bytes of these results' contents, equal ones once."""
        return self.store.blobs.size(item.sha256 for item in artifacts)

    def get_bytes(self, kind: str, name: str) -> bytes:
        """The bytes of (kind, name). Raises InputFault if there are none, or they are damaged."""
        artifact, kind_text = self.find(kind, name), kind.replace("_", " ")
        if artifact is None:
            raise InputFault(
                "", f"there is no {kind_text} {quoted(name)} in the workspace", "Make it, or import it."
            )
        return self.store.blobs.get(artifact.sha256, kind_text, name)

    def get(self, kind: str, name: str) -> Any:
        """The value of (kind, name). Raises InputFault if there is none or its file is damaged."""
        return read_text(self.get_bytes(kind, name).decode(), origin=f"{kind} {name}")[1]

    def remove(self, kind: str, name: str) -> None:
        """Remove (kind, name), and its content if nothing else has the same."""
        key = (self.id, kind, name)

        def work(database: sqlite3.Connection) -> tuple[set[str], set[str]]:
            rows = database.execute(
                "SELECT sha256 FROM artifacts WHERE workspace = ? AND kind = ? AND name = ?", key
            ).fetchall()
            database.execute("DELETE FROM artifacts WHERE workspace = ? AND kind = ? AND name = ?", key)
            return digests_of(rows), used_digests(database)

        store = self.store
        with store.blobs.collect_lock():
            gone, used = store.database.delete(work)
            store.blobs.remove_unused(used, gone)
        store.database.allocate_reserve()

    # settings

    def setting(self, key: str, default: Any = None) -> Any:
        """A JSON value stored for the pages."""
        with self.store.connect() as database:
            row = database.execute(
                "SELECT value FROM settings WHERE workspace = ? AND key = ?", (self.id, key)
            ).fetchone()
        return default if row is None else self._parse_json(row[0])

    def set_setting(self, key: str, value: Any) -> None:
        """Store a JSON value for the pages."""
        with self._existing_workspace(), self.store.connect() as database:
            database.execute(
                "INSERT INTO settings VALUES (?, ?, ?) "
                "ON CONFLICT (workspace, key) DO UPDATE SET value = excluded.value",
                (self.id, key, json.dumps(value)),
            )

    def change_setting(self, key: str, change: Callable[[Any], Any]) -> None:
        """Replace a setting by `change` of it (None without one), atomically."""
        with self._existing_workspace(), self.store.connect(write=True) as database:
            row = database.execute(
                "SELECT value FROM settings WHERE workspace = ? AND key = ?", (self.id, key)
            ).fetchone()
            database.execute(
                "INSERT INTO settings VALUES (?, ?, ?) "
                "ON CONFLICT (workspace, key) DO UPDATE SET value = excluded.value",
                (self.id, key, json.dumps(change(None if row is None else self._parse_json(row[0])))),
            )

    # jobs

    def add_job(self, title: str, name: str, parameters: dict[str, Any]) -> JobRecord:
        """Record a job that is about to start."""
        record = JobRecord(secrets.token_hex(8), self.id, title, name, parameters, time.time())
        with self._existing_workspace(), self.store.connect() as database:
            database.execute(
                "INSERT INTO jobs (id, workspace, title, target, parameters, created) VALUES (?, ?, ?, ?, ?, ?)",
                (record.id, self.id, title, name, json.dumps(parameters), record.created),
            )
        return record

    def job_records(self) -> tuple[JobRecord, ...]:
        """Its jobs, newest first."""
        with self.store.connect() as database:
            rows = database.execute(
                "SELECT id, workspace, title, target, parameters, created FROM jobs WHERE workspace = ? "
                "ORDER BY number DESC",
                (self.id,),
            ).fetchall()
        checked = (self.store._check_types(row, str, str, str, str, str, float) for row in rows)
        return tuple(
            JobRecord(identity, workspace, title, name, self._parse_json(parameters), created)
            for identity, workspace, title, name, parameters, created in checked
        )

    def _parse_json(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, TypeError) as error:
            raise self.store.database.damaged_fault("a stored value is no JSON") from error

    @contextlib.contextmanager
    def _existing_workspace(self) -> Iterator[None]:
        """Raise InputFault if the workspace was deleted meanwhile."""
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise _missing_workspace_fault(self.id) from error


def _missing_workspace_fault(identity: str) -> InputFault:
    problem = f"there is no workspace {quoted(identity)}: it was deleted, or the link is wrong"
    return InputFault("", problem, "Choose one of the list, or make a new one.")

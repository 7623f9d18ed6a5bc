"""The workspace: named results of one user's work, kept on disk between runs.

One SQLite file holds names and times; contents are files addressed by their SHA-256, so two
equal results cost one file and a half-written one is never seen. Several processes (browser
sessions, jobs, the command line) may use a store at once.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchsplit_core.files import read_text, write_text
from torchsplit_core.values import InputFault

SCHEMA = (
    """
    CREATE TABLE workspaces (id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, created REAL NOT NULL);
    CREATE TABLE artifacts (
        id INTEGER PRIMARY KEY, workspace TEXT NOT NULL REFERENCES workspaces(id) ON DELETE CASCADE,
        kind TEXT NOT NULL, name TEXT NOT NULL, sha256 TEXT NOT NULL, changed REAL NOT NULL,
        UNIQUE (workspace, kind, name));
    CREATE TABLE settings (
        workspace TEXT NOT NULL REFERENCES workspaces(id) ON DELETE CASCADE,
        key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (workspace, key));
    CREATE TABLE jobs (
        id TEXT PRIMARY KEY, workspace TEXT NOT NULL REFERENCES workspaces(id) ON DELETE CASCADE,
        title TEXT NOT NULL, target TEXT NOT NULL, parameters TEXT NOT NULL, created REAL NOT NULL);
    """,
    """
    CREATE TABLE points (
        place TEXT NOT NULL, architecture_hash TEXT NOT NULL, kind TEXT NOT NULL, batch_size INTEGER NOT NULL,
        content TEXT NOT NULL, kept REAL NOT NULL,
        PRIMARY KEY (place, architecture_hash, kind, batch_size));
    """,
    """
    CREATE TABLE sweeps (
        workspace TEXT NOT NULL REFERENCES workspaces(id) ON DELETE CASCADE,
        scenario TEXT NOT NULL, asked TEXT NOT NULL, request TEXT NOT NULL, PRIMARY KEY (workspace, scenario));
    CREATE TABLE sweep_plans (
        workspace TEXT NOT NULL, scenario TEXT NOT NULL, request_sha256 TEXT NOT NULL,
        limit_s REAL NOT NULL, plan TEXT NOT NULL, PRIMARY KEY (workspace, scenario, request_sha256),
        FOREIGN KEY (workspace, scenario) REFERENCES sweeps (workspace, scenario) ON DELETE CASCADE);
    """,
)
"""One script a schema version; an older store is brought forward by running the missing ones."""

KINDS = (
    "graph",
    "profile",
    "partition",
    "plan_request",
    "plan",
    "placement_request",
    "placement",
    "placement_frontier",
    "upload",
)
"""What a workspace keeps. All but `upload` are contract files."""


def default_root() -> Path:
    """TORCHSPLIT_HOME, or the user's data folder."""
    home = os.environ.get("TORCHSPLIT_HOME")
    if home:
        return Path(home)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "torchsplit"


@dataclass(frozen=True, slots=True)
class Artifact:
    """One stored result: what it is, its name within its kind, and when it last changed (Unix seconds)."""

    kind: str
    name: str
    sha256: str
    changed: float


@dataclass(frozen=True, slots=True)
class WorkspaceInfo:
    """A workspace's id (as in the address bar), its name and its age (Unix seconds)."""

    id: str
    name: str
    created: float


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as it was asked for; how far it came stands in its progress file (see jobs)."""

    id: str
    workspace: str
    title: str
    target: str
    parameters: dict[str, Any]
    created: float


class Store:
    """All workspaces under one folder. Raises InputFault where the folder cannot be used."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()
        try:
            (self.root / "blobs").mkdir(parents=True, exist_ok=True)
            (self.root / "jobs").mkdir(exist_ok=True)
            with self.connect() as database:
                self._migrate(database)
        except (OSError, sqlite3.DatabaseError) as error:
            raise InputFault(
                "workspace folder",
                str(self.root),
                f"the folder can be written ({error})",
                "Set TORCHSPLIT_HOME to another.",
            ) from error

    @contextlib.contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own for one transaction: committed at the end, rolled back on a fault.

        Raises InputFault where the disk is full.
        """
        database = sqlite3.connect(self.root / "workspaces.sqlite", timeout=30)
        try:
            database.execute("PRAGMA foreign_keys = ON")
            with database:
                yield database
        except sqlite3.OperationalError as error:
            if "full" in str(error):
                raise self.full(error) from error
            raise
        finally:
            database.close()

    def full(self, error: Exception) -> InputFault:
        """The fault of a disk without room: what is stored stays as it was."""
        return InputFault(
            "workspace folder",
            str(self.root),
            f"there is room on its disk ({error})",
            "Free some space and start again: what was stored before is kept.",
        )

    def _migrate(self, database: sqlite3.Connection) -> None:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version > len(SCHEMA):
            raise InputFault(
                "workspace folder",
                version,
                f"this TorchSplit knows store versions up to {len(SCHEMA)}",
                "Update TorchSplit, or set TORCHSPLIT_HOME to another folder.",
            )
        if version == len(SCHEMA):
            return
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("BEGIN IMMEDIATE")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        for number, script in enumerate(SCHEMA[version:], version + 1):
            for statement in filter(str.strip, script.split(";")):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {number}")

    # workspaces

    def workspaces(self) -> tuple[WorkspaceInfo, ...]:
        """All workspaces, newest first."""
        with self.connect() as database:
            rows = database.execute(
                "SELECT id, name, created FROM workspaces ORDER BY created DESC, id"
            ).fetchall()
        return tuple(WorkspaceInfo(*row) for row in rows)

    def create(self, name: str) -> Workspace:
        """A new, empty workspace. Raises InputFault for an empty, overlong or taken name."""
        name = _checked_name(name)
        identity = secrets.token_hex(6)
        try:
            with self.connect() as database:
                database.execute("INSERT INTO workspaces VALUES (?, ?, ?)", (identity, name, time.time()))
        except sqlite3.IntegrityError as error:
            raise InputFault("workspace name", name, "names are unique", "Choose another name.") from error
        return Workspace(self, identity)

    def free_name(self, name: str) -> str:
        """The name itself, or the name with the first free number."""
        taken = {info.name for info in self.workspaces()}
        number = 2
        candidate = name
        while candidate in taken:
            candidate = f"{name} {number}"
            number += 1
        return candidate

    def open(self, identity: str) -> Workspace:
        """The workspace with that id. Raises InputFault where there is none."""
        with self.connect() as database:
            found = database.execute("SELECT 1 FROM workspaces WHERE id = ?", (identity,)).fetchone()
        if not found:
            raise InputFault(
                "workspace", identity, "the workspace exists", "Choose one of the list, or make a new one."
            )
        return Workspace(self, identity)

    def rename(self, identity: str, name: str) -> None:
        """Give a workspace another name. Raises InputFault like `create`."""
        try:
            with self.connect() as database:
                database.execute(
                    "UPDATE workspaces SET name = ? WHERE id = ?", (_checked_name(name), identity)
                )
        except sqlite3.IntegrityError as error:
            raise InputFault("workspace name", name, "names are unique", "Choose another name.") from error

    def delete(self, identity: str) -> None:
        """Remove a workspace; contents that no other workspace uses are removed too."""
        with self.connect() as database:
            database.execute("DELETE FROM workspaces WHERE id = ?", (identity,))
            used = {row[0] for row in database.execute("SELECT DISTINCT sha256 FROM artifacts")}
            for path in (self.root / "blobs").glob("*/*"):
                # A blob of the last minute may belong to a result whose row is about to be written.
                if path.name not in used and path.stat().st_mtime < time.time() - 60:
                    path.unlink(missing_ok=True)

    def copy(self, identity: str, name: str) -> Workspace:
        """A new workspace with the same results, settings and sweeps. Raises InputFault like `create`."""
        source = self.open(identity)
        target = self.create(name)
        with self.connect() as database:
            database.execute(
                "INSERT INTO artifacts (workspace, kind, name, sha256, changed) "
                "SELECT ?, kind, name, sha256, changed FROM artifacts WHERE workspace = ?",
                (target.id, source.id),
            )
            for table, columns in (
                ("settings", "key, value"),
                ("sweeps", "scenario, asked, request"),
                ("sweep_plans", "scenario, request_sha256, limit_s, plan"),
            ):
                database.execute(
                    f"INSERT INTO {table} (workspace, {columns}) SELECT ?, {columns} FROM {table} WHERE workspace = ?",
                    (target.id, source.id),
                )
        return target

    # contents

    def put_blob(self, data: bytes) -> str:
        """Store bytes under their SHA-256."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.blob_path(digest)
        if path.exists():
            os.utime(path)
            return digest
        path.parent.mkdir(exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            Path(temporary).replace(path)
        except OSError as error:
            Path(temporary).unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self.full(error) from error
            raise
        return digest

    def blob_path(self, digest: str) -> Path:
        """Where bytes with that SHA-256 lie."""
        return self.root / "blobs" / digest[:2] / digest


class Workspace:
    """One workspace's results. Cheap to make; holds no connection."""

    def __init__(self, store: Store, identity: str) -> None:
        self.store = store
        self.id = identity

    @property
    def name(self) -> str:
        """Its present name."""
        with self.store.connect() as database:
            row = database.execute("SELECT name FROM workspaces WHERE id = ?", (self.id,)).fetchone()
        if row is None:
            raise InputFault("workspace", self.id, "the workspace exists", "Choose one of the list.")
        return str(row[0])

    def artifacts(self, kind: str | None = None) -> tuple[Artifact, ...]:
        """Its results (of one kind), newest first."""
        with self.store.connect() as database:
            rows = database.execute(
                "SELECT kind, name, sha256, changed FROM artifacts WHERE workspace = ? AND (? IS NULL OR kind = ?) "
                "ORDER BY changed DESC, id DESC",
                (self.id, kind, kind),
            ).fetchall()
        return tuple(Artifact(*row) for row in rows)

    def put(self, kind: str, name: str, value: Any) -> Artifact:
        """Store a value as its contract file under (kind, name), replacing what stood there."""
        return self.put_bytes(kind, name, write_text(value).encode())

    def put_bytes(self, kind: str, name: str, data: bytes) -> Artifact:
        """Store bytes under (kind, name), replacing what stood there."""
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r}")
        digest = self.store.put_blob(data)
        now = time.time()
        with self.store.connect() as database:
            database.execute(
                "INSERT INTO artifacts (workspace, kind, name, sha256, changed) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (workspace, kind, name) "
                "DO UPDATE SET sha256 = excluded.sha256, changed = excluded.changed",
                (self.id, kind, _checked_name(name), digest, now),
            )
        return Artifact(kind, name, digest, now)

    def get_bytes(self, kind: str, name: str) -> bytes:
        """The bytes under (kind, name). Raises InputFault where there are none."""
        with self.store.connect() as database:
            row = database.execute(
                "SELECT sha256 FROM artifacts WHERE workspace = ? AND kind = ? AND name = ?",
                (self.id, kind, name),
            ).fetchone()
        if row is None:
            raise InputFault(f"workspace {kind}", name, "the result exists", "Make it again, or import it.")
        try:
            return self.store.blob_path(row[0]).read_bytes()
        except OSError as error:
            raise InputFault(
                f"workspace {kind}",
                name,
                "its file is in the workspace folder",
                "Make it again, or import it.",
            ) from error

    def get(self, kind: str, name: str) -> Any:
        """The value under (kind, name). Raises InputFault where there is none or its file is damaged."""
        return read_text(self.get_bytes(kind, name).decode(), origin=f"{kind} {name}")[1]

    def remove(self, kind: str, name: str) -> None:
        """Forget (kind, name)."""
        with self.store.connect() as database:
            database.execute(
                "DELETE FROM artifacts WHERE workspace = ? AND kind = ? AND name = ?", (self.id, kind, name)
            )

    # settings

    def setting(self, key: str, default: Any = None) -> Any:
        """A JSON value kept for the pages."""
        with self.store.connect() as database:
            row = database.execute(
                "SELECT value FROM settings WHERE workspace = ? AND key = ?", (self.id, key)
            ).fetchone()
        return default if row is None else json.loads(row[0])

    def set_setting(self, key: str, value: Any) -> None:
        """Keep a JSON value for the pages."""
        with self.store.connect() as database:
            database.execute(
                "INSERT INTO settings VALUES (?, ?, ?) "
                "ON CONFLICT (workspace, key) DO UPDATE SET value = excluded.value",
                (self.id, key, json.dumps(value)),
            )

    # jobs

    def add_job(self, title: str, target: str, parameters: dict[str, Any]) -> JobRecord:
        """Write down a job that is about to start."""
        record = JobRecord(secrets.token_hex(8), self.id, title, target, parameters, time.time())
        with self.store.connect() as database:
            database.execute(
                "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?)",
                (record.id, self.id, title, target, json.dumps(parameters), record.created),
            )
        return record

    def job_records(self) -> tuple[JobRecord, ...]:
        """Its jobs, newest first."""
        with self.store.connect() as database:
            rows = database.execute(
                "SELECT id, workspace, title, target, parameters, created FROM jobs WHERE workspace = ? "
                "ORDER BY created DESC",
                (self.id,),
            ).fetchall()
        return tuple(
            JobRecord(identity, workspace, title, target, json.loads(parameters), created)
            for identity, workspace, title, target, parameters, created in rows
        )


def _checked_name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > 120 or any(ord(letter) < 32 for letter in name):
        raise InputFault("name", name, "a name has 1 to 120 printable characters", "Choose another name.")
    return name

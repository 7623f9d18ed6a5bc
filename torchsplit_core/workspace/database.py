"""The database of names: one SQLite file, a connection a transaction, every disk fault one message.

It has a rollback journal, not a write-ahead log: reading needs to create the log's file, so nothing could be read on a
full or read-only disk. With `synchronous=FULL` a truncated journal is synced, so a committed row survives a power cut
(https://www.sqlite.org/pragma.html#pragma_synchronous).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from torchsplit_core.values import InputFault
from torchsplit_core.workspace.faults import (
    WHERE,
    StoreFault,
    disk_full_fault,
    fault_from_os_error,
    free_bytes,
    read_only_fault,
)

T = TypeVar("T")

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
    # The order of writing says what is newest, not a clock that may be set back: rows of jobs and workspaces
    # get a number, results are renumbered in their order.
    """
    CREATE TABLE numbered (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, workspace TEXT NOT NULL
        REFERENCES workspaces(id) ON DELETE CASCADE,
        title TEXT NOT NULL, target TEXT NOT NULL, parameters TEXT NOT NULL, created REAL NOT NULL);
    INSERT INTO numbered (id, workspace, title, target, parameters, created)
        SELECT id, workspace, title, target, parameters, created FROM jobs ORDER BY created, rowid;
    DROP TABLE jobs;
    ALTER TABLE numbered RENAME TO jobs;
    CREATE TABLE numbered (
        id INTEGER PRIMARY KEY, workspace TEXT NOT NULL REFERENCES workspaces(id) ON DELETE CASCADE,
        kind TEXT NOT NULL, name TEXT NOT NULL, sha256 TEXT NOT NULL, changed REAL NOT NULL,
        UNIQUE (workspace, kind, name));
    INSERT INTO numbered (workspace, kind, name, sha256, changed)
        SELECT workspace, kind, name, sha256, changed FROM artifacts ORDER BY changed, id;
    DROP TABLE artifacts;
    ALTER TABLE numbered RENAME TO artifacts;
    """,
    # A job's target was a function path, "module:function", and is a job kind now (jobs/job_kinds.py). The column is
    # not renamed, so that a running server of the previous version can read the table. Unknown targets stay.
    """
    UPDATE jobs SET target = CASE substr(target, instr(target, ':') + 1)
        WHEN 'trace_job' THEN 'trace'
        WHEN 'profile_job' THEN 'profile'
        WHEN 'partition_job' THEN 'partition'
        WHEN 'plan_job' THEN 'plan'
        WHEN 'explain_job' THEN 'explain'
        WHEN 'samples_job' THEN 'quick_start'
        WHEN 'place_job' THEN 'place'
        WHEN 'placement_frontier_job' THEN 'placement_frontier'
        WHEN 'ways_job' THEN 'divisions'
        WHEN 'sweep_job' THEN 'sweep'
        WHEN 'trial_job' THEN 'what_if'
        ELSE target END
    WHERE target LIKE 'torchsplit_core.%:%';
    """,
    """
    CREATE TABLE drafts (
        workspace TEXT NOT NULL REFERENCES workspaces(id) ON DELETE CASCADE, scenario TEXT NOT NULL,
        ground_sha256 TEXT NOT NULL, request BLOB NOT NULL, plan BLOB, said TEXT NOT NULL,
        PRIMARY KEY (workspace, scenario));
    CREATE TABLE versions (
        workspace TEXT NOT NULL REFERENCES workspaces(id) ON DELETE CASCADE, scenario TEXT NOT NULL,
        number INTEGER NOT NULL, kept REAL NOT NULL, request_sha256 TEXT NOT NULL, plan_sha256 TEXT NOT NULL,
        request BLOB NOT NULL, plan BLOB, said TEXT NOT NULL, PRIMARY KEY (workspace, scenario, number));
    """,
    # A draft belongs to the tab that edits it; earlier ones belong to no open tab. A deleted workspace that can be
    # restored is in `deleted` with its name, and is named by its id, so that the name is free.
    """
    CREATE TABLE of_tabs (
        workspace TEXT NOT NULL REFERENCES workspaces(id) ON DELETE CASCADE, scenario TEXT NOT NULL,
        tab TEXT NOT NULL, ground_sha256 TEXT NOT NULL, request BLOB NOT NULL, plan BLOB, said TEXT NOT NULL,
        PRIMARY KEY (workspace, scenario, tab));
    INSERT INTO of_tabs SELECT workspace, scenario, '', ground_sha256, request, plan, said FROM drafts;
    DROP TABLE drafts;
    ALTER TABLE of_tabs RENAME TO drafts;
    CREATE TABLE deleted (
        number INTEGER PRIMARY KEY, workspace TEXT NOT NULL UNIQUE REFERENCES workspaces(id) ON DELETE CASCADE,
        name TEXT NOT NULL);
    """,
    # Plans by equivalent request; and the editor and last edit of a draft.
    """
    CREATE TABLE known_plans (
        number INTEGER PRIMARY KEY, workspace TEXT NOT NULL REFERENCES workspaces(id) ON DELETE CASCADE,
        question TEXT NOT NULL, family TEXT NOT NULL, about TEXT NOT NULL, plan BLOB NOT NULL,
        UNIQUE (workspace, question));
    ALTER TABLE drafts ADD COLUMN owner TEXT NOT NULL DEFAULT '';
    ALTER TABLE drafts ADD COLUMN edited REAL NOT NULL DEFAULT 0;
    """,
)
"""One script a schema version; an older store is migrated by the missing ones."""

LOCK_TIMEOUT_S = 30.0
"""How long a transaction waits for that of another process."""
RESERVE_BYTES = 4 * 2**20
"""Reserved so that a deletion on a full disk has room for its journal (which holds the changed pages)."""


class Database:
    """The database under `root`. Raises StoreFault if its file or the disk refuses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "workspaces.sqlite"
        self.reserve = root / "reserve"

    @contextlib.contextmanager
    def connect(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction: committed at the end, rolled back on an exception.

        With `write` no other process writes meanwhile; otherwise the first change takes the lock.
        """
        with self.translate_errors():
            database = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT_S)
            try:
                database.execute("PRAGMA foreign_keys = ON")
                database.execute("PRAGMA journal_mode = TRUNCATE")
                with database:
                    if write:
                        database.execute("BEGIN IMMEDIATE")
                    yield database
            finally:
                database.close()

    def delete(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in a transaction that only deletes; a full disk gets the reserve for it."""
        try:
            return self._run_deletion(work)
        except StoreFault as fault:
            if fault.kind != "full" or not self._release_reserve():
                raise
        return self._run_deletion(work)

    def _run_deletion(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with self.connect(write=True) as database:
                return work(database)
        except sqlite3.IntegrityError as error:  # references are deleted with a row, so none can fail
            raise self.damaged_fault(str(error)) from error

    def _release_reserve(self) -> bool:
        try:
            held = self.reserve.stat().st_size > 0
            os.truncate(self.reserve, 0)
        except OSError:
            return False
        return held

    def allocate_reserve(self) -> None:
        """Allocate the reserve for a deletion on a full disk; without room it is allocated later."""
        with contextlib.suppress(OSError):
            if self.reserve.exists() and self.reserve.stat().st_size == RESERVE_BYTES:
                return
            handle = os.open(self.reserve, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                os.posix_fallocate(handle, 0, RESERVE_BYTES)
            except OSError:
                os.ftruncate(handle, 0)
                raise
            finally:
                os.close(handle)

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Turn errors of SQLite and the disk into StoreFault; constraint errors and misuse pass through."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError):
            raise
        except sqlite3.DatabaseError as error:
            raise self._fault(error) from error
        except UnicodeDecodeError as error:  # in a name quoted in SQLite's message
            raise self.damaged_fault("a name in it is no text") from error

    def _fault(self, error: sqlite3.DatabaseError) -> StoreFault:
        text = str(error)
        if "readonly" in text:
            return read_only_fault(self.root, text)
        if "full" in text or ("disk I/O error" in text and free_bytes(self.root) < RESERVE_BYTES):
            return disk_full_fault(self.root, text)
        if "locked" in text or "busy" in text:
            return StoreFault(
                "busy",
                f"{self.root} has a database that other processes have held for {LOCK_TIMEOUT_S:g} s ({text})",
                "Try again; end a process that hangs.",
            )
        if "unable to open" in text or "disk I/O error" in text:
            return StoreFault(
                "unusable",
                f"{self.path} cannot be opened ({text})",
                "Look at the disk and the folder's owner, or set TORCHSPLIT_HOME to another folder.",
            )
        return self.damaged_fault(text)

    def damaged_fault(self, text: str) -> StoreFault:
        """The fault of a database that SQLite cannot read, with the remedy."""
        copies = self.copies()
        if copies:
            way = (
                f"Stop TorchSplit and put the copy of {copies[-1].stem.rpartition('.')[2]} in its place: "
                f"cp '{copies[-1]}' '{self.path}' (and remove '{self.path}-journal'). What was stored since then "
                "has to be made again."
            )
        else:
            way = f"There is no copy of it yet. Move '{self.path}' away to begin with an empty store."
        return StoreFault("damaged", f"{self.path} is damaged ({text})", way)

    def copies(self) -> tuple[Path, ...]:
        """The daily copies, oldest first."""
        return tuple(sorted((self.root / "copies").glob("workspaces.*.sqlite")))

    # versions

    def migrate(self) -> None:
        """Create or migrate the tables. Raises InputFault for a database of a later TorchSplit."""
        with self.translate_errors():
            database = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT_S)
            try:
                (version,) = database.execute("PRAGMA user_version").fetchone()
                if version > len(SCHEMA):
                    raise InputFault(
                        WHERE,
                        f"{self.root} has store version {version}, and this TorchSplit reads up to {len(SCHEMA)}",
                        "Update TorchSplit, or set TORCHSPLIT_HOME to another folder.",
                    )
                if version < len(SCHEMA):
                    _migrate_schema(database)
            finally:
                database.close()

    def check(self) -> None:
        """Raise StoreFault for damaged pages of the database (SQLite's quick check)."""
        with self.connect() as database:
            messages = [row[0] for row in database.execute("PRAGMA quick_check(3)").fetchall()]
        if messages != ["ok"]:
            raise self.damaged_fault("; ".join(messages)[:200])

    def copy_to(self, path: Path) -> None:
        """Write a consistent copy atomically. Raises StoreFault."""
        temporary = path.with_suffix(".part")
        try:
            path.parent.mkdir(exist_ok=True)
            temporary.unlink(missing_ok=True)
            with self.translate_errors():
                database = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT_S)
                try:
                    database.execute("VACUUM INTO ?", (str(temporary),))
                finally:
                    database.close()
            temporary.replace(path)
        except OSError as error:
            raise fault_from_os_error(self.root, error) from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def _migrate_schema(database: sqlite3.Connection) -> None:
    # Tables with references to them are made anew: referring rows must not be deleted with the old ones.
    database.execute("PRAGMA foreign_keys = OFF")
    database.execute("PRAGMA journal_mode = TRUNCATE")
    database.execute("BEGIN IMMEDIATE")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    for number, script in enumerate(SCHEMA[version:], version + 1):
        for statement in filter(str.strip, script.split(";")):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {number}")
    database.commit()

"""Maintenance of the store: a daily copy of its database, and removal of leftovers."""

from __future__ import annotations

import contextlib
import datetime
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from torchsplit_core.workspace.database import Database

MAX_COPIES = 3
_JOB_FILE = re.compile(r"([0-9a-f]{16})\.")
_WORKSPACE = re.compile("[0-9a-f]{12}")


def make_daily_copy(database: Database, day: datetime.date) -> Path | None:
    """Copy the database unless this day has a copy, keep the last three, and return the copy's path.

    The database is checked first, so that a damaged one never replaces a good copy. Raises StoreFault.
    """
    path = database.root / "copies" / f"workspaces.{day.isoformat()}.sqlite"
    if path.exists():
        return None
    database.check()
    # Left by a process killed while copying, on any day.
    _remove(path.parent.glob("workspaces.*.part*"))
    database.copy_to(path)
    _remove([copy for copy in database.copies() if copy != path][: -(MAX_COPIES - 1)])
    return path


def remove_orphaned_job_files(database: Database) -> int:
    """Remove the files of jobs whose workspace is gone; returns their number. Raises StoreFault.

    A job's row is written before its files, so a file that exists before the rows are read and has no row is orphaned.
    """
    files = [
        (match[1], path)
        for path in (database.root / "jobs").iterdir()
        if (match := _JOB_FILE.match(path.name))
    ]
    with database.connect() as connection:
        known = {row[0] for row in connection.execute("SELECT id FROM jobs")}
    orphaned = [path for job, path in files if job not in known]
    _remove(orphaned)
    return len(orphaned)


def remove_orphaned_runs(database: Database, runs: Path) -> None:
    """Remove the run folders of deleted workspaces, if their deletion was interrupted. Raises StoreFault.

    A workspace's row is written before its folder, as a job's is.
    """
    folders = [path for path in runs.glob("*") if _WORKSPACE.fullmatch(path.name)]
    with database.connect() as connection:
        known = {row[0] for row in connection.execute("SELECT id FROM workspaces")}
    for path in folders:
        if path.name not in known:
            shutil.rmtree(path, ignore_errors=True)


def _remove(paths: Iterable[Path]) -> None:
    """Files that cannot be removed stay until the next time."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()

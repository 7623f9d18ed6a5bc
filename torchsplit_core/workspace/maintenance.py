"""What keeps a store well: a copy of its database each day, and what ended work left behind swept away."""

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
    """Copy the database where this day has no copy yet, and keep the last three; the copy's path.

    The database is checked first, so that a good copy is never pushed out by a damaged one. Raises StoreFault.
    """
    path = database.root / "copies" / f"workspaces.{day.isoformat()}.sqlite"
    if path.exists():
        return None
    database.check()
    # What a process that was killed has left of its copy, on whatever day.
    _remove(path.parent.glob("workspaces.*.part*"))
    database.copy_to(path)
    _remove([copy for copy in database.copies() if copy != path][: -(MAX_COPIES - 1)])
    return path


def remove_orphaned_job_files(database: Database) -> int:
    """Remove the files of jobs whose workspace is gone; how many. Raises StoreFault.

    A job's row is written before its files, so a file that is here before the rows are read and has none is rubbish.
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
    """Remove the run folders of workspaces that are gone: whoever deleted one was cut off. Raises StoreFault.

    A workspace's row is written before its folder, as a job's is.
    """
    folders = [path for path in runs.glob("*") if _WORKSPACE.fullmatch(path.name)]
    with database.connect() as connection:
        known = {row[0] for row in connection.execute("SELECT id FROM workspaces")}
    for path in folders:
        if path.name not in known:
            shutil.rmtree(path, ignore_errors=True)


def _remove(paths: Iterable[Path]) -> None:
    """What the disk does not let go is removed the next time."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()

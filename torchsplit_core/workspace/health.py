"""What keeps a store well: a copy of its database each day, and what ended work left behind swept away."""

from __future__ import annotations

import contextlib
import datetime
import re
from pathlib import Path

from torchsplit_core.workspace.database import Database

KEPT_COPIES = 3
_JOB_FILE = re.compile(r"([0-9a-f]{16})\.")


def copy_of_the_day(database: Database, day: datetime.date) -> Path | None:
    """Copy the database where this day has no copy yet, and keep the last three; the copy's path.

    The database is checked first, so that a good copy is never pushed out by a damaged one. Raises StoreFault.
    """
    path = database.root / "copies" / f"workspaces.{day.isoformat()}.sqlite"
    if path.exists():
        return None
    database.check()
    database.copy_to(path)
    for old in [copy for copy in database.copies() if copy != path][: -(KEPT_COPIES - 1)]:
        old.unlink(missing_ok=True)
    return path


def sweep_job_files(database: Database) -> int:
    """Remove the files of jobs whose workspace is gone; how many. Raises StoreFault.

    A job's row is written before its files, so a file that is here before the rows are read and has none is rubbish.
    """
    files = [
        (match[1], path)
        for path in (database.root / "jobs").iterdir()
        if (match := _JOB_FILE.match(path.name))
    ]
    with database.connect() as opened:
        known = {row[0] for row in opened.execute("SELECT id FROM jobs")}
    gone = [path for job, path in files if job not in known]
    for path in gone:
        with contextlib.suppress(OSError):
            path.unlink()
    return len(gone)

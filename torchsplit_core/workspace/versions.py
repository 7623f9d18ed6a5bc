"""The last states of every scenario of a workspace: request and plan with their time and changes.

They are stored compressed in the database, at most twenty a scenario, and are copied, renamed and deleted with their
scenario, but are not in archives.
"""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass
from typing import Any

from torchsplit_core.planning.comparison.plan_totals import PlanTotals, totals_of
from torchsplit_core.planning.request.difference import describe_changes
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace.drafts import compress_text, read_compressed
from torchsplit_core.workspace.store import Artifact, Workspace

MOST_VERSIONS = 20
COLUMNS = "number, kept, request_sha256, plan_sha256, request, plan, said"
Row = tuple[Any, ...]
"""A version's row, in the order of `COLUMNS`."""


@dataclass(frozen=True, slots=True)
class Version:
    """One state of a scenario: its number from 1, Unix seconds, changes since the previous one, its plan's figures.

    `status` is empty if it was not planned; `note` says whose plan it is, if not the planner's.
    """

    number: int
    kept: float
    changes: tuple[str, ...]
    status: str
    note: str
    figures: PlanTotals | None


class VersionStore:
    """The versions of one scenario."""

    def __init__(self, workspace: Workspace, scenario: str) -> None:
        self.workspace, self.scenario = workspace, scenario
        self._key = (workspace.id, scenario)

    def save(self, note: str | None = None) -> None:
        """Store the scenario's state: as a new version, or in the newest one if that has the same request.

        A plan with another `note` is a separate version; None: the newest one's note. The oldest beyond `MOST_VERSIONS`
        are deleted.
        """
        request_artifact = self.workspace.find("plan_request", self.scenario)
        if request_artifact is None:
            return
        plan_artifact = self.workspace.find("plan", self.scenario)
        with self.workspace.store.connect() as database:
            newest = self._newest(database)
        if newest is not None and newest[2] == request_artifact.sha256:
            if newest[3] == _sha256(plan_artifact):
                return
            details = _parse_details(newest[6])
            if newest[5] is None or note is None or note == details["note"]:
                self._write(
                    newest[0], newest[1], request_artifact, plan_artifact, details["changes"], details["note"]
                )
                return
        number = newest[0] + 1 if newest else 1
        changes = (
            describe_changes(read_compressed(newest[4]), self._value(request_artifact)) if newest else ()
        )
        self._write(number, time.time(), request_artifact, plan_artifact, changes, note or "")

    def list(self) -> tuple[Version, ...]:
        """All versions, newest first."""
        with self.workspace.store.connect() as database:
            rows = database.execute(
                "SELECT number, kept, said FROM versions WHERE workspace = ? AND scenario = ? ORDER BY number DESC",
                self._key,
            ).fetchall()
        return tuple(_version(*row) for row in rows)

    def load(self, number: int) -> tuple[PlanRequest, PlanOutcome | None] | None:
        """Request and plan of that version; None if it is no longer stored."""
        with self.workspace.store.connect() as database:
            row = database.execute(
                "SELECT request, plan FROM versions WHERE workspace = ? AND scenario = ? AND number = ?",
                (*self._key, number),
            ).fetchone()
        if row is None:
            return None
        return read_compressed(row[0]), None if row[1] is None else read_compressed(row[1])

    def rows(self) -> tuple[Row, ...]:
        """The stored rows of all versions, oldest first, for `restore`."""
        with self.workspace.store.connect() as database:
            return tuple(
                database.execute(
                    f"SELECT {COLUMNS} FROM versions WHERE workspace = ? AND scenario = ? ORDER BY number",
                    self._key,
                ).fetchall()
            )

    def restore(self, rows: tuple[Row, ...]) -> None:
        """Replace the scenario's versions by these rows."""
        with self.workspace.store.connect(write=True) as database:
            self._delete(database)
            placeholders = ", ".join("?" * (2 + len(COLUMNS.split(", "))))
            database.executemany(
                f"INSERT INTO versions (workspace, scenario, {COLUMNS}) VALUES ({placeholders})",
                [(*self._key, *row) for row in rows],
            )

    def copy_to(self, scenario: str) -> None:
        """Replace the versions of another scenario of the workspace by these."""
        VersionStore(self.workspace, scenario).restore(self.rows())

    def delete(self) -> None:
        """Remove the scenario's versions."""
        with self.workspace.store.connect(write=True) as database:
            self._delete(database)

    def _delete(self, database: sqlite3.Connection) -> None:
        database.execute("DELETE FROM versions WHERE workspace = ? AND scenario = ?", self._key)

    def _newest(self, database: sqlite3.Connection) -> Row | None:
        row: Row | None = database.execute(
            f"SELECT {COLUMNS} FROM versions WHERE workspace = ? AND scenario = ? ORDER BY number DESC LIMIT 1",
            self._key,
        ).fetchone()
        return row

    def _value(self, stored: Artifact) -> Any:
        return self.workspace.get(stored.kind, stored.name)

    def _write(
        self,
        number: int,
        saved_at: float,
        request_artifact: Artifact,
        plan_artifact: Artifact | None,
        changes: tuple[str, ...],
        note: str,
    ) -> None:
        request = compress_text(self.workspace.get_bytes(request_artifact.kind, request_artifact.name))
        plan = (
            None
            if plan_artifact is None
            else self.workspace.get_bytes(plan_artifact.kind, plan_artifact.name)
        )
        outcome: PlanOutcome | None = None if plan_artifact is None else self._value(plan_artifact)
        figures = None if outcome is None else totals_of(outcome)
        details = {
            "changes": list(changes),
            "note": note,
            "status": "" if outcome is None else outcome.status,
            "figures": None
            if figures is None
            else [figures.least, figures.total_rps, figures.gpus_used, figures.slices],
        }
        row = (
            number, saved_at, request_artifact.sha256, _sha256(plan_artifact), request,
            None if plan is None else compress_text(plan),
            json.dumps(details),
        )  # fmt: skip
        with self.workspace.store.connect(write=True) as database:
            placeholders = ", ".join("?" * (2 + len(row)))
            database.execute(
                f"INSERT OR REPLACE INTO versions (workspace, scenario, {COLUMNS}) VALUES ({placeholders})",
                (*self._key, *row),
            )
            database.execute(
                "DELETE FROM versions WHERE workspace = ? AND scenario = ? AND number <= ?",
                (*self._key, number - MOST_VERSIONS),
            )


def _sha256(planned: Artifact | None) -> str:
    return "" if planned is None else planned.sha256


def _parse_details(text: str) -> dict[str, Any]:
    details = json.loads(text)
    return {**details, "changes": tuple(details["changes"])}


def _version(number: int, saved_at: float, text: str) -> Version:
    details = _parse_details(text)
    figures = None if details["figures"] is None else PlanTotals(*details["figures"])
    return Version(number, saved_at, details["changes"], details["status"], details["note"], figures)

"""The drafts of every scenario of a workspace: edited requests, until they are stored or discarded.

Each belongs to the browser tab that edits it, which alone changes it. A draft is no result: results and archives do not
include it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchsplit_core.files import read_text, read_unchecked, write_text, write_unchecked
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace.store import Workspace

MOST_DRAFTS = 8
COLUMNS = "tab, ground_sha256, request, plan, said, owner, edited"
PLACEHOLDERS = ", ".join("?" * (2 + len(COLUMNS.split(", "))))
Row = tuple[Any, ...]
"""A draft's row, in the order of `COLUMNS`."""
_CONTRACT_PREFIX = b'{\n "format"'
"""The beginning of a contract file."""


@dataclass(frozen=True, slots=True)
class StoredDraft:
    """An edited request and the hash of the request at the beginning of the editing.

    `plan`: if the draft is a chosen plan (a baseline, a manual one); `said`: whose plan it is. `owner`: the name of the
    editor, if users log in. `edited`: the last edit (Unix seconds; 0: unknown).
    """

    ground_sha256: str
    request: PlanRequest
    plan: PlanOutcome | None = None
    said: str = ""
    owner: str = ""
    edited: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftAuthor:
    """A draft's tab, with owner and last edit as in `StoredDraft`."""

    tab: str
    owner: str
    edited: float


class DraftStore:
    """The drafts of one scenario by tab; the oldest beyond `MOST_DRAFTS` are deleted."""

    def __init__(self, workspace: Workspace, scenario: str) -> None:
        self.workspace, self.scenario = workspace, scenario
        self._key = (workspace.id, scenario)

    def load(self, tab: str) -> StoredDraft | None:
        """The draft of a tab; None without one. Raises InputFault for a damaged store."""
        return next(self._read("AND tab = ?", tab), None)

    def others(self, tab: str) -> tuple[StoredDraft, ...]:
        """The drafts of the other tabs, last edited first. Raises InputFault for a damaged store."""
        return tuple(self._read("AND tab != ?", tab))

    def authors(self, tab: str) -> tuple[DraftAuthor, ...]:
        """The authors of the drafts of the other tabs, last edited first."""
        with self.workspace.store.connect() as database:
            rows = database.execute(
                "SELECT tab, owner, edited FROM drafts "
                "WHERE workspace = ? AND scenario = ? AND tab != ? ORDER BY rowid DESC",
                (*self._key, tab),
            ).fetchall()
        return tuple(DraftAuthor(*row) for row in rows)

    def all(self) -> tuple[StoredDraft, ...]:
        """The drafts of all tabs, last edited first. Raises InputFault for a damaged store."""
        return tuple(self._read(""))

    def save(self, tab: str, draft: StoredDraft) -> None:
        """Make it the draft of a tab."""
        plan = None if draft.plan is None else compress_text(write_text(draft.plan).encode())
        request = compress_text(write_unchecked(draft.request))
        row = (draft.ground_sha256, request, plan, draft.said, draft.owner, draft.edited)
        with self.workspace.store.connect(write=True) as database:
            database.execute(
                f"INSERT OR REPLACE INTO drafts (workspace, scenario, {COLUMNS}) VALUES ({PLACEHOLDERS})",
                (*self._key, tab, *row),
            )
            database.execute(
                "DELETE FROM drafts WHERE rowid IN (SELECT rowid FROM drafts "
                "WHERE workspace = ? AND scenario = ? ORDER BY rowid DESC LIMIT -1 OFFSET ?)",
                (*self._key, MOST_DRAFTS),
            )

    def rows(self) -> tuple[Row, ...]:
        """The stored rows of all drafts, oldest first, for `restore`."""
        with self.workspace.store.connect() as database:
            return tuple(
                database.execute(
                    f"SELECT {COLUMNS} FROM drafts WHERE workspace = ? AND scenario = ? ORDER BY rowid",
                    self._key,
                ).fetchall()
            )

    def restore(self, rows: tuple[Row, ...]) -> None:
        """Replace the scenario's drafts by these rows."""
        with self.workspace.store.connect(write=True) as database:
            database.execute("DELETE FROM drafts WHERE workspace = ? AND scenario = ?", self._key)
            database.executemany(
                f"INSERT INTO drafts (workspace, scenario, {COLUMNS}) VALUES ({PLACEHOLDERS})",
                [(*self._key, *row) for row in rows],
            )

    def copy_to(self, scenario: str) -> None:
        """Replace the drafts of another scenario of the workspace by these."""
        DraftStore(self.workspace, scenario).restore(self.rows())

    def delete(self, tab: str | None = None) -> None:
        """Delete the draft of a tab, or every draft of the scenario."""
        with self.workspace.store.connect() as database:
            database.execute(
                "DELETE FROM drafts WHERE workspace = ? AND scenario = ? AND (? IS NULL OR tab = ?)",
                (*self._key, tab, tab),
            )

    def _read(self, where: str, *values: str) -> Iterator[StoredDraft]:
        with self.workspace.store.connect() as database:
            rows = database.execute(
                "SELECT ground_sha256, request, plan, said, owner, edited FROM drafts "
                f"WHERE workspace = ? AND scenario = ? {where} ORDER BY rowid DESC",
                (*self._key, *values),
            ).fetchall()
        for ground, request, plan, *rest in rows:
            yield StoredDraft(
                ground, _draft_request(request), None if plan is None else read_compressed(plan), *rest
            )


def _draft_request(content: bytes) -> PlanRequest:
    """A draft's request; earlier versions stored a contract file."""
    text = zlib.decompress(content)
    if text.startswith(_CONTRACT_PREFIX):
        request: PlanRequest = read_compressed(content)
        return request
    return read_unchecked(text, PlanRequest, origin="the draft of a scenario")


def compress_text(content: bytes) -> bytes:
    """Compress a text for a table: to a twentieth, because points of a model are alike."""
    return zlib.compress(content, 6)


def read_compressed(content: bytes) -> Any:
    """The value of a compressed file. Raises InputFault if it is none."""
    return read_text(zlib.decompress(content).decode(), origin="a stored state of a scenario")[1]

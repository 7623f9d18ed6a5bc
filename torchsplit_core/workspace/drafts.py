"""The drafts of every scenario of a workspace: requests that somebody edits, until they are kept or discarded.

Each belongs to the tab of a browser that edits it, which alone changes it. A draft is no result: it is not listed
among them, and an archive does not have it.
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
"""A draft as its table has it, in the order of `COLUMNS`."""
_CONTRACT_PREFIX = b'{\n "format"'
"""How a contract file begins."""


@dataclass(frozen=True, slots=True)
class StoredDraft:
    """An edited request and the hash of the one that stood when the editing began.

    `plan` is there where the draft is a plan that somebody chose (a baseline, one by hand), and `said` says whose.
    `owner` is the name of who edits, where people log in, and `edited` when that was last (Unix seconds; 0: not known).
    """

    ground_sha256: str
    request: PlanRequest
    plan: PlanOutcome | None = None
    said: str = ""
    owner: str = ""
    edited: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftAuthor:
    """Whose a draft is: the tab that edits it, and the name and last edit as `StoredDraft` has them."""

    tab: str
    owner: str
    edited: float


class DraftStore:
    """The drafts of one scenario, by the tabs that edit it; the oldest beyond `MOST_DRAFTS` go."""

    def __init__(self, workspace: Workspace, scenario: str) -> None:
        self.workspace, self.scenario = workspace, scenario
        self._key = (workspace.id, scenario)

    def load(self, tab: str) -> StoredDraft | None:
        """The draft of a tab; None where it has none. Raises InputFault for a damaged store."""
        return next(self._read("AND tab = ?", tab), None)

    def others(self, tab: str) -> tuple[StoredDraft, ...]:
        """The drafts of the other tabs, what was edited last first. Raises InputFault for a damaged store."""
        return tuple(self._read("AND tab != ?", tab))

    def authors(self, tab: str) -> tuple[DraftAuthor, ...]:
        """Whose the drafts of the other tabs are, what was edited last first."""
        with self.workspace.store.connect() as database:
            rows = database.execute(
                "SELECT tab, owner, edited FROM drafts "
                "WHERE workspace = ? AND scenario = ? AND tab != ? ORDER BY rowid DESC",
                (*self._key, tab),
            ).fetchall()
        return tuple(DraftAuthor(*row) for row in rows)

    def all(self) -> tuple[StoredDraft, ...]:
        """The drafts of all tabs, what was edited last first. Raises InputFault for a damaged store."""
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
        """All drafts as they are stored, oldest first, for `restore`."""
        with self.workspace.store.connect() as database:
            return tuple(
                database.execute(
                    f"SELECT {COLUMNS} FROM drafts WHERE workspace = ? AND scenario = ? ORDER BY rowid",
                    self._key,
                ).fetchall()
            )

    def restore(self, rows: tuple[Row, ...]) -> None:
        """Give the scenario these drafts, in place of those it has."""
        with self.workspace.store.connect(write=True) as database:
            database.execute("DELETE FROM drafts WHERE workspace = ? AND scenario = ?", self._key)
            database.executemany(
                f"INSERT INTO drafts (workspace, scenario, {COLUMNS}) VALUES ({PLACEHOLDERS})",
                [(*self._key, *row) for row in rows],
            )

    def copy_to(self, scenario: str) -> None:
        """Give another scenario of the workspace these drafts, in place of those it has."""
        DraftStore(self.workspace, scenario).restore(self.rows())

    def delete(self, tab: str | None = None) -> None:
        """Remove the draft of a tab, or every draft of the scenario."""
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
    """A draft's request; of earlier versions a contract file."""
    text = zlib.decompress(content)
    if text.startswith(_CONTRACT_PREFIX):
        request: PlanRequest = read_compressed(content)
        return request
    return read_unchecked(text, PlanRequest, origin="the draft of a scenario")


def compress_text(content: bytes) -> bytes:
    """A text as a table keeps it: a twentieth of its size, for points of a model look alike."""
    return zlib.compress(content, 6)


def read_compressed(content: bytes) -> Any:
    """The value of a packed file. Raises InputFault where it is none."""
    return read_text(zlib.decompress(content).decode(), origin="a stored state of a scenario")[1]

"""The draft of every scenario of a workspace: a request that somebody edits, until it is kept or discarded.

A draft is no result: it is not listed among them, and an archive does not have it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from torchsplit_core.files import read_text, read_unchecked, write_text, write_unchecked
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace.store import Workspace

_CONTRACT = b'{\n "format"'
"""How a contract file begins."""


@dataclass(frozen=True, slots=True)
class KeptDraft:
    """An edited request and the hash of the one that stood when the editing began.

    `plan` is there where the draft is a plan that somebody chose (a baseline, one by hand), and `said` says whose.
    """

    ground_sha256: str
    request: PlanRequest
    plan: PlanOutcome | None = None
    said: str = ""


class DraftStore:
    """The draft of one scenario."""

    def __init__(self, workspace: Workspace, scenario: str) -> None:
        self.workspace, self.scenario = workspace, scenario
        self._key = (workspace.id, scenario)

    def load(self) -> KeptDraft | None:
        """The draft; None where there is none. Raises InputFault for a damaged store."""
        with self.workspace.store.connect() as database:
            row = database.execute(
                "SELECT ground_sha256, request, plan, said FROM drafts WHERE workspace = ? AND scenario = ?",
                self._key,
            ).fetchone()
        if row is None:
            return None
        ground, request, plan, said = row
        return KeptDraft(ground, _edited(request), None if plan is None else unpacked(plan), said)

    def save(self, draft: KeptDraft) -> None:
        """Make it the scenario's draft."""
        plan = None if draft.plan is None else packed(write_text(draft.plan).encode())
        row = (draft.ground_sha256, packed(write_unchecked(draft.request)), plan, draft.said)
        with self.workspace.store.connect(write=True) as database:
            database.execute("INSERT OR REPLACE INTO drafts VALUES (?, ?, ?, ?, ?, ?)", (*self._key, *row))

    def copy_to(self, scenario: str) -> None:
        """Give another scenario of the workspace this draft, in place of the one it has; none gives none."""
        with self.workspace.store.connect(write=True) as database:
            database.execute(
                "DELETE FROM drafts WHERE workspace = ? AND scenario = ?", (self._key[0], scenario)
            )
            database.execute(
                "INSERT INTO drafts SELECT workspace, ?, ground_sha256, request, plan, said FROM drafts "
                "WHERE workspace = ? AND scenario = ?",
                (scenario, *self._key),
            )

    def forget(self) -> None:
        """Remove the scenario's draft."""
        with self.workspace.store.connect() as database:
            database.execute("DELETE FROM drafts WHERE workspace = ? AND scenario = ?", self._key)


def _edited(content: bytes) -> PlanRequest:
    """A draft's request; of earlier versions a contract file."""
    text = zlib.decompress(content)
    if text.startswith(_CONTRACT):
        found: PlanRequest = unpacked(content)
        return found
    return read_unchecked(text, PlanRequest, origin="the draft of a scenario")


def packed(content: bytes) -> bytes:
    """A text as a table keeps it: a twentieth of its size, for points of a model look alike."""
    return zlib.compress(content, 6)


def unpacked(content: bytes) -> Any:
    """The value of a packed file. Raises InputFault where it is none."""
    return read_text(zlib.decompress(content).decode(), origin="a stored state of a scenario")[1]

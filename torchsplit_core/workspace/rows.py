"""Validation and writing of the database's rows."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchsplit_core.values import InputFault, quoted
from torchsplit_core.workspace.blobs import BlobStore, is_digest
from torchsplit_core.workspace.faults import check_quota

LONGEST_NAME = 120
KINDS = (
    "graph",
    "profile",
    "partition",
    "plan_request",
    "plan",
    "day",
    "day_replay",
    "placement_request",
    "placement",
    "placement_frontier",
    "strategy_request",
    "strategy",
    "evaluation",
    "measurement",
    "host_state",
    "prices",
    "upload",
)
"""Kinds of results. All but `upload` are contract files."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One stored result: its kind, its name within the kind, and its last change (Unix seconds)."""

    kind: str
    name: str
    sha256: str
    changed: float


@contextlib.contextmanager
def report_taken_name(name: str) -> Iterator[None]:
    """Raise InputFault for a workspace name that is taken."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        problem = f"there is already a workspace {quoted(name)}"
        raise InputFault("", problem, "Choose another name.") from error


def new_identity() -> str:
    """An id for a workspace, as in its address."""
    return secrets.token_hex(6)


def insert_workspace(database: sqlite3.Connection, name: str, identity: str | None = None) -> str:
    """The row of a new workspace, with this id if given; returns its id.

    Raises InputFault for an invalid name.
    """
    identity = identity or new_identity()
    database.execute("INSERT INTO workspaces VALUES (?, ?, ?)", (identity, checked_name(name), time.time()))
    return identity


def write_artifact(
    database: sqlite3.Connection, workspace: str, kind: str, name: str, digest: str
) -> Artifact:
    """The row of a result. Replacing gives it a new, highest id: the highest is the newest, whatever the clock."""
    now = time.time()
    database.execute(
        "INSERT OR REPLACE INTO artifacts (workspace, kind, name, sha256, changed) VALUES (?, ?, ?, ?, ?)",
        (workspace, kind, name, digest, now),
    )
    return Artifact(kind, name, digest, now)


def check_space(
    database: sqlite3.Connection,
    blobs: BlobStore,
    workspace: str,
    incoming: Mapping[tuple[str, str], tuple[str, int]],
) -> None:
    """Raise InputFault if contents (SHA-256 and size) under these (kind, name) would exceed the workspace's quota.

    Equal contents count once.
    """
    rows = database.execute(
        "SELECT kind, name, sha256 FROM artifacts WHERE workspace = ?", (workspace,)
    ).fetchall()
    held = {(kind, name): digest for kind, name, digest in rows if is_digest(digest)}
    sizes = dict(incoming.values())
    remaining = {digest for key, digest in held.items() if key not in incoming} - sizes.keys()
    check_quota(blobs.size(held.values()), blobs.size(remaining) + sum(sizes.values()))


def used_digests(database: sqlite3.Connection) -> set[str]:
    """The contents of all results."""
    return digests_of(database.execute("SELECT DISTINCT sha256 FROM artifacts").fetchall())


def digests_of(rows: Iterable[Any]) -> set[str]:
    """The first value of each row, if it is a valid digest."""
    return {row[0] for row in rows if is_digest(row[0])}


def checked_kind(kind: str) -> str:
    """The kind. Raises ValueError for an unknown one."""
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}")
    return kind


def checked_name(name: str) -> str:
    """The name, stripped. Raises InputFault for one that is empty, long or not printable."""
    name = name.strip()
    if (
        not name
        or len(name) > LONGEST_NAME
        or any(ord(letter) < 32 or "\ud800" <= letter <= "\udfff" for letter in name)
    ):
        problem = (
            "is empty"
            if not name
            else f"has {len(name)} characters, more than {LONGEST_NAME}"
            if len(name) > LONGEST_NAME
            else f"{quoted(name)} holds a character that cannot be printed"
        )
        raise InputFault("name", problem, "Choose another name.")
    return name

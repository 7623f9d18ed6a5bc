"""The stored workspaces as lists show them: name, content, time of the last change."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from torchsplit_core.workspace.store import Artifact, Store, Workspace

_UNNAMED = re.compile(r"(New )?[Ww]orkspace( \d+)?")
"""Names of workspaces that no user has named."""
COUNTED_KINDS: Mapping[str, str] = {"graph": "graph", "profile": "profile", "plan_request": "scenario",
                              "placement_request": "placement", "strategy_request": "training",
                              "upload": "file"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkspaceSummary:
    """A workspace with content; `changed` in Unix seconds."""

    id: str
    name: str
    counts: str
    changed: float

    @property
    def description(self) -> str:
        """Its content, and how long ago it changed."""
        return f"{self.counts} · {format_age(time.time() - self.changed)}"


def list_workspaces(store: Store) -> tuple[WorkspaceSummary, ...]:
    """The workspaces with content, the last changed first."""
    summaries = []
    for info in store.workspaces():
        content = Workspace(store, info.id).artifacts()
        if content:
            name = f"{info.name}: {_main_artifact(content)}" if _UNNAMED.fullmatch(info.name) else info.name
            summaries.append(
                WorkspaceSummary(
                    info.id, name, describe_counts(content), max(item.changed for item in content)
                )
            )
    return tuple(sorted(summaries, key=lambda summary: -summary.changed))


def describe_counts(content: tuple[Artifact, ...]) -> str:
    """How many results of each kind, in words."""
    number = Counter(item.kind for item in content)
    parts = [
        f"{number[kind]} {word}{'s' if number[kind] != 1 else ''}"
        for kind, word in COUNTED_KINDS.items()
        if number[kind]
    ]
    return ", ".join(parts) or f"{len(content)} result{'s' if len(content) != 1 else ''}"


def _main_artifact(content: tuple[Artifact, ...]) -> str:
    """The name of the result that describes a workspace best: the newest of the first kind that it has."""
    for kind in ("plan_request", "placement_request", "strategy_request", "graph", "profile"):
        for item in content:
            if item.kind == kind:
                return item.name
    return content[0].name


def format_age(seconds: float) -> str:
    """An age in words; a clock set back makes it negative, which reads "just now"."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            number = int(seconds / size)
            return f"{number} {unit}{'s' if number != 1 else ''} ago"
    return "just now"

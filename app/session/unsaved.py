"""A workspace that nothing was put in yet: it is kept from its first content on, and called after that.

One that begins with a scenario is not: the menu of the scenarios, beside that of the workspaces, has that name.
"""

from __future__ import annotations

from typing import Any

from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.rows import new_identity
from torchsplit_core.workspace.store import Artifact, JobRecord, Store, Workspace

NAME = "New workspace"
"""What it is called until then."""
UNTITLED = "Workspace"
"""What one is called that begins with a scenario; lists say what is in it."""
LONGEST_NAME = 80


class Unsaved(Workspace):
    """Empty, and in this session alone; its row is written with the first result or job."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, new_identity())
        self.saved = False
        self._looks: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """Its present name."""
        return super().name if self.saved else NAME

    def save(self, title: str) -> None:
        """Keep it from now on, called `title`, with a number where that is taken."""
        if self.saved:
            return
        name = " ".join(title.split())[:LONGEST_NAME] or NAME
        self.store.create(self.store.free_name(name), self.id)
        self.saved = True
        for key, value in self._looks.items():
            super().set_setting(key, value)

    def put_bytes(self, kind: str, name: str, data: bytes) -> Artifact:
        """Store bytes; the first content keeps the workspace."""
        self.save(UNTITLED if kind in named_results.SCENARIO_KINDS else name)
        return super().put_bytes(kind, name, data)

    def add_job(self, title: str, name: str, parameters: dict[str, Any]) -> JobRecord:
        """Write down a job; the first keeps the workspace."""
        # "Trace sample:bert" is work on what the workspace will be about.
        self.save(title.partition(" ")[2] or title)
        return super().add_job(title, name, parameters)

    def setting(self, key: str, default: Any = None) -> Any:
        """What is looked at, in this session until it is kept."""
        return super().setting(key, default) if self.saved else self._looks.get(key, default)

    def set_setting(self, key: str, value: Any) -> None:
        """Where one looks is no content: it keeps no workspace."""
        if self.saved:
            super().set_setting(key, value)
        else:
            self._looks[key] = value


def begin(workspace: Workspace, title: str = UNTITLED) -> None:
    """Keep the workspace under this name, where it is not kept yet."""
    if isinstance(workspace, Unsaved):
        workspace.save(title)

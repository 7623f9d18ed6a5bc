"""A workspace without content: its first content stores it and gives it its name.

One that begins with a scenario gets UNTITLED: the menu of the scenarios, beside that of the workspaces, has the name.
"""

from __future__ import annotations

from typing import Any

from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.rows import new_identity
from torchsplit_core.workspace.store import Artifact, JobRecord, Store, Workspace

NAME = "New workspace"
"""Its name until then."""
UNTITLED = "Workspace"
"""The name of one that begins with a scenario; lists add its content."""
LONGEST_NAME = 80


class Unsaved(Workspace):
    """An empty workspace in this session alone; the first result or job writes its row."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, new_identity())
        self.saved = False
        self._looks: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """Its current name."""
        return super().name if self.saved else NAME

    def save(self, title: str) -> None:
        """Store it as `title`, with a number where another workspace has that name."""
        if self.saved:
            return
        name = " ".join(title.split())[:LONGEST_NAME] or NAME
        self.store.create(self.store.free_name(name), self.id)
        self.saved = True
        for key, value in self._looks.items():
            super().set_setting(key, value)

    def put_bytes(self, kind: str, name: str, data: bytes) -> Artifact:
        """Store bytes; the first content stores the workspace."""
        self.save(UNTITLED if kind in named_results.SCENARIO_KINDS else name)
        return super().put_bytes(kind, name, data)

    def add_job(self, title: str, name: str, parameters: dict[str, Any]) -> JobRecord:
        """Record a job; the first job stores the workspace."""
        # The title "Trace sample:bert" names the model that the workspace will be about.
        self.save(title.partition(" ")[2] or title)
        return super().add_job(title, name, parameters)

    def setting(self, key: str, default: Any = None) -> Any:
        """A setting, which stays in this session until the workspace is stored."""
        return super().setting(key, default) if self.saved else self._looks.get(key, default)

    def set_setting(self, key: str, value: Any) -> None:
        """Set a setting; a setting is no content and does not store the workspace."""
        if self.saved:
            super().set_setting(key, value)
        else:
            self._looks[key] = value


def begin(workspace: Workspace, title: str = UNTITLED) -> None:
    """Store the workspace under this name, unless it is stored already."""
    if isinstance(workspace, Unsaved):
        workspace.save(title)

"""The files that users brought: which one is behind a model, and what may not be done with it untrusted."""

from __future__ import annotations

from collections.abc import Iterable

from torchsplit_core.values import InputFault
from torchsplit_core.workspace.store import Artifact, Workspace


def upload_of(workspace: Workspace, source: str) -> Artifact | None:
    """The stored file behind a model that is no sample; None where there is none."""
    return workspace.find("upload", _file_of(source))


def uploads_of(uploads: Iterable[Artifact], sources: Iterable[str]) -> dict[str, Artifact]:
    """Of the stored files the one behind each of these sources that has one, by source."""
    stored = {item.name: item for item in uploads}
    return {source: stored[file] for source in sources if (file := _file_of(source)) in stored}


def _file_of(source: str) -> str:
    return source.rpartition(":")[0] if ".py:" in source else source


def refuse_untrusted(file: str, trust: bool) -> None:
    """Raises InputFault for a Python file that is not trusted: to trace it is to execute it."""
    if file.endswith(".py") and not trust:
        raise InputFault(
            file, "is not trusted, and to read a .py file is to execute it", "Tick the box, or upload a .pt2."
        )

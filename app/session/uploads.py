"""The files that users uploaded: which one a model comes from, and the refusal of untrusted Python files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from torchsplit_core.jobs.trace import safe_file_name
from torchsplit_core.training.stored_runs import trained_step
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.store import Artifact, Workspace


def needs_file(workspace: Workspace, source: str) -> bool:
    """Whether a file of the user's is behind a model; a sample, and a run that trained one, need none."""
    return not _built_by(workspace, source).startswith("sample:")


def upload_of(workspace: Workspace, source: str) -> Artifact | None:
    """The uploaded file of a model; None for samples and where the file is missing."""
    return uploads_of(workspace, [source]).get(source)


def uploads_of(workspace: Workspace, sources: Iterable[str | None]) -> dict[str, Artifact]:
    """The uploaded file of each of these sources that has one, by source."""
    stored = {item.name: item for item in workspace.artifacts("upload")}
    by_safe_name = {safe_file_name(name): item for name, item in stored.items()}
    behind = {}
    for source in filter(None, sources):
        built_by = _built_by(workspace, source)
        file = built_by.rpartition(":")[0] if ".py:" in built_by else built_by
        # A run stores its file under the name by which its ranks load it.
        item = stored.get(file) or (by_safe_name.get(PurePath(file).name) if built_by != source else None)
        if item is not None:
            behind[source] = item
    return behind


def _built_by(workspace: Workspace, source: str) -> str:
    """What builds the model of a source; of a run that is gone the source itself."""
    try:
        step = trained_step(workspace, source)
        return source if step is None else step.built_by
    except InputFault:
        return source


def refuse_untrusted(file: str, trust: bool) -> None:
    """Raises InputFault for a Python file without trust: tracing it executes it."""
    if file.endswith(".py") and not trust:
        raise InputFault(
            file, "is not trusted, and to read a .py file is to execute it", "Tick the box, or upload a .pt2."
        )

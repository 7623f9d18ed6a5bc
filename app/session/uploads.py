"""The files that users brought: which one is behind a model, and what may not be done with it untrusted."""

from __future__ import annotations

from torchsplit_core.values import InputFault
from torchsplit_core.workspace.store import Artifact, Workspace


def upload_of(workspace: Workspace, source: str) -> Artifact | None:
    """The stored file behind a model that is no sample; None where there is none."""
    file = source.rpartition(":")[0] if ".py:" in source else source
    return workspace.find("upload", file)


def refuse_untrusted(file: str, trust: bool) -> None:
    """Raises InputFault for a Python file that is not trusted: to trace it is to execute it."""
    if file.endswith(".py") and not trust:
        raise InputFault(
            "upload",
            file,
            "a .py file is executed only when it is trusted",
            "Tick the box, or upload a .pt2.",
        )

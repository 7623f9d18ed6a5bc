"""Traces a model as a job of a workspace, and provides the files of uploaded sources."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsplit_core import workflow
from torchsplit_core.isolation import private_temp_dir
from torchsplit_core.isolation.trust_policy import is_trusted, require_execution_allowed
from torchsplit_core.jobs.job_kinds import TraceParameters, UploadedFile
from torchsplit_core.training.stored_runs import trained_step
from torchsplit_core.values import InputFault, Progress, quoted

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace


@contextlib.contextmanager
def local_source(workspace: Workspace, source: str, file: UploadedFile | None) -> Iterator[tuple[str, bool]]:
    """Yield the source as a path or sample name, and whether it is trusted; an upload is a file inside the block.

    Raises InputFault for an upload that is gone, for a Python file that is not trusted (tracing executes it), and for
    a file whose content differs from the trusted one.
    """
    step = trained_step(workspace, source)
    built_by = source if step is None else step.built_by
    if step is not None and file is not None:
        _, content, trust = read_upload(workspace, file)
        path = Path(built_by.rpartition(":")[0])
        # A run of this workspace has a copy of the file that it was started with, in a separate folder.
        if not path.is_relative_to(workspace.runs) or path.read_bytes() != content:
            raise InputFault(
                step.display_name,
                f"was trained from another content of {quoted(file.upload)} than there is now",
                "Upload the file that it was started with.",
            )
        yield step.text, trust
        return
    if file is None:
        if not built_by.startswith("sample:"):
            raise InputFault(
                "source", f"{quoted(source)} is neither a sample nor an upload", "Upload the file first."
            )
        yield source if step is None else step.text, False
        return
    name, content, trust = read_upload(workspace, file)
    with private_temp_dir() as folder:
        path = folder / name
        path.write_bytes(content)
        tail = source.rpartition(":")[2]
        yield (f"{path}:{tail}" if path.suffix == ".py" else str(path)), trust


def read_upload(workspace: Workspace, file: UploadedFile) -> tuple[str, bytes, bool]:
    """The file name of a stored upload, its content, and whether that is trusted.

    Raises InputFault like `local_source`.
    """
    upload = file.upload
    content = workspace.get_bytes("upload", upload)
    content_sha256 = hashlib.sha256(content).hexdigest()
    trust = is_trusted(upload, content_sha256, file.trusted_sha256, any_content=file.trust)
    name = safe_file_name(upload)
    if name.endswith(".py") and not trust:
        require_execution_allowed(upload)
        raise InputFault(
            "upload",
            f"{quoted(upload)} is not trusted, and a .py file is executed",
            "Tick the box, or upload a .pt2.",
        )
    return name, content, trust


def safe_file_name(upload: str) -> str:
    """The upload's name, for messages, reduced to a file name: never a path."""
    return re.sub(r"[^\w.-]", "_", upload)[-80:].lstrip(".")


def trace_job(workspace: Workspace, parameters: TraceParameters, progress: Progress) -> dict[str, Any]:
    """Trace the source into the workspace."""
    name = parameters.source
    with local_source(workspace, name, parameters.file) as (source, trust):
        graph = workflow.trace(source, trust=trust, progress=progress)
    workspace.put("graph", name, graph)
    return {"graph": name, "nodes": len(graph.nodes)}

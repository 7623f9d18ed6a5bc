"""The box by which a user trusts the uploaded model that a run executes."""

from __future__ import annotations

from pathlib import PurePath

import streamlit as st

from app.session import trust
from torchsplit_core.jobs.job_kinds import UploadedFile
from torchsplit_core.jobs.trace import safe_file_name
from torchsplit_core.workspace.store import Workspace


def upload_box(workspace: Workspace, source: str) -> tuple[UploadedFile | None, bool]:
    """The uploaded file of a source, and whether the user trusts its content; a sample needs no trust."""
    if source.startswith("sample:"):
        return None, False
    # A started run stores its file under the name by which its ranks load it.
    file = safe_file_name(PurePath(source).name.rpartition(":")[0])
    upload = next(
        (artifact for artifact in workspace.artifacts("upload") if safe_file_name(artifact.name) == file),
        None,
    )
    if upload is None:
        st.caption("Its file is not in this workspace (any more): upload it again.")
        return None, False
    ticked = trust.trust_box({upload.name: upload.sha256}, "trust-run", confined=False)
    return UploadedFile(upload.name, upload.sha256 if ticked else None), ticked

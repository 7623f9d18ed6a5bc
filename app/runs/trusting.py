"""The box of trust for a model that a run executes: an upload's, by its content."""

from __future__ import annotations

from pathlib import PurePath

import streamlit as st

from app.session import trust
from app.session.uploads import upload_of
from torchsplit_core.jobs.names import UploadedFile
from torchsplit_core.workspace.store import Workspace


def upload_box(workspace: Workspace, source: str) -> tuple[UploadedFile | None, bool]:
    """The upload behind a source with the content that is trusted, and whether it is; a sample needs none."""
    if source.startswith("sample:"):
        return None, False
    found = upload_of(workspace, PurePath(source).name)
    if found is None:
        st.caption("Its file is not in this workspace (any more): upload it again.")
        return None, False
    ticked = trust.trust_box({found.name: found.sha256}, "trust-run", confined=False)
    return UploadedFile(found.name, found.sha256 if ticked else None), ticked

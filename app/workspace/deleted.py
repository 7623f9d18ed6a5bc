"""The workspace that this session deleted: it can be brought back, or deleted for good."""

from __future__ import annotations

import streamlit as st

from app.session.workspace import fresh, store, use
from app.shell import frame, navigation
from torchsplit_core import jobs
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.workspace.store import Workspace

_KEY = "deleted workspace"


def delete(workspace: Workspace) -> None:
    """End its jobs, delete it, and open the start page, which offers to bring it back."""
    for status in jobs.statuses(workspace):
        jobs.cancel(workspace, status.id)
    store().soft_delete(workspace.id)
    st.session_state[_KEY] = workspace.id
    use(fresh())
    navigation.go("Overview")


def undo() -> None:
    """Name the workspace deleted last, and offer to bring it back or to free its disk space."""
    gone: str = st.session_state.get(_KEY, "")
    name = store().deleted_name(gone) if gone else None
    if name is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", border=True, key="workspace-deleted"):
        st.markdown(f"Deleted the workspace **{escape_markdown(name)}**.", width="content")
        with frame.fault_boundary():
            if st.button("Undo", key="workspace-undo"):
                use(store().undelete(gone))
                st.rerun()
            if st.button("Delete for good", key="workspace-gone", help="Frees its disk space."):
                store().delete(gone)
                frame.notify(f"Deleted the workspace {name} for good.")
                st.rerun()

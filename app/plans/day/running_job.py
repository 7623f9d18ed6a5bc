"""A job of the tab while it runs: its progress, and a button that ends it."""

from __future__ import annotations

import streamlit as st

from app.shell import frame
from torchsplit_core import jobs
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.workspace.store import Workspace


def render(workspace: Workspace, name: str, kind: str, stop_key: str | None = None) -> None:
    """Draw the progress anew every second, and rerun the page when the job has ended.

    `stop_key`: the key of the button; None where the page has one elsewhere.
    """
    st.fragment(_progress, run_every=1.0)(workspace, name, kind, stop_key)


def _progress(workspace: Workspace, name: str, kind: str, stop_key: str | None) -> None:
    # A run of the fragment alone is outside the page's fault boundary.
    with frame.fault_boundary():
        running = jobs.running(workspace, (kind,), name)
        if not running:
            st.rerun(scope="app")
        st.progress(running[0].share, text=escape_markdown(running[0].message))
        if stop_key is not None and st.button("Stop", key=stop_key):
            jobs.end(workspace, (kind,), name)
            st.rerun(scope="app")

"""What a browser session sees of the stored workspaces: which one is open, and its results, read once.

The address carries the workspace (`?workspace=ID`), so a reload, a bookmark and a restart of the
server all come back to it; two sessions with two addresses work side by side.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import streamlit as st

from torchsplit_core.files import read_text
from torchsplit_core.storage import Store, Workspace, default_root
from torchsplit_core.values import InputFault

PARAMETER = "workspace"
"""The query parameter and the session key that hold the workspace's id."""
_AUTOMATIC = "made automatically"
_ABANDONED_S = 24 * 3600.0


@st.cache_resource
def _store(root: str) -> Store:
    return Store(Path(root))


def store() -> Store:
    """The store under TORCHSPLIT_HOME or the user's data folder. Raises InputFault where it cannot be used."""
    return _store(str(default_root()))


def current() -> Workspace:
    """The open workspace: of the address, else of this session, else a new one."""
    # Moving through the menu drops the query, so the session remembers; a reload forgets the
    # session, so the address is set again on every run.
    asked = st.query_params.get(PARAMETER) or st.session_state.get(PARAMETER)
    workspace = _open(asked) if asked else None
    if workspace is None:
        if asked:
            st.toast(f"There is no workspace {asked!r} here (any more): this is a new one.")
        _forget_abandoned()
        workspace = store().create(store().free_name("workspace"))
        workspace.set_setting(_AUTOMATIC, True)
    use(workspace)
    return workspace


def use(workspace: Workspace) -> None:
    """Open a workspace in this session."""
    st.session_state[PARAMETER] = workspace.id
    if st.query_params.get(PARAMETER) != workspace.id:
        st.query_params[PARAMETER] = workspace.id


def _open(identity: str) -> Workspace | None:
    try:
        return store().open(identity)
    except InputFault:
        return None


def _forget_abandoned() -> None:
    """Remove workspaces that a visit made a day ago or earlier and nothing was put in."""
    for info in store().workspaces():
        workspace = Workspace(store(), info.id)
        old = info.created < time.time() - _ABANDONED_S
        if (
            old
            and workspace.setting(_AUTOMATIC)
            and not workspace.artifacts()
            and not workspace.job_records()
        ):
            store().delete(info.id)


def keep_name(workspace: Workspace) -> None:
    """The user cares for this workspace: never remove it as abandoned."""
    workspace.set_setting(_AUTOMATIC, False)


def read(workspace: Workspace, kind: str, name: str) -> Any:
    """The value under (kind, name), parsed once for all sessions; None where there is none."""
    for artifact in workspace.artifacts(kind):
        if artifact.name == name:
            return read_content(str(workspace.store.root), artifact.sha256, f"{kind} {name}")
    return None


@st.cache_resource(max_entries=64, show_spinner=False)
def read_content(root: str, sha256: str, _origin: str) -> Any:
    """The value of a stored file. Its hash is the whole key: equal bytes are equal values."""
    path = Path(root) / "blobs" / sha256[:2] / sha256
    try:
        return read_text(path.read_text(encoding="utf-8"), origin=_origin)[1]
    except OSError as error:
        raise InputFault(
            _origin, "its file", "the file is in the workspace folder", "Make the result again, or import it."
        ) from error


def names(workspace: Workspace, kind: str) -> tuple[str, ...]:
    """The names of its results of a kind, newest first."""
    return tuple(artifact.name for artifact in workspace.artifacts(kind))

"""What a browser session sees of the stored workspaces: the open one, and its results, read once.

The address carries the workspace (`?workspace=ID`), so a reload, a bookmark and a restart of the
server all return to it, and two sessions with two addresses work side by side. A visit without an address
stores nothing: it opens the workspace that this browser had last, else an empty one that its first content stores.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from app.session.unsaved import Unsaved
from torchsplit_core import workflow
from torchsplit_core.files import read_text
from torchsplit_core.isolation import remove_stale_temp_dirs
from torchsplit_core.values import InputFault, PlanRequest
from torchsplit_core.workspace import BlobStore, StoreFault, named_results
from torchsplit_core.workspace.store import Artifact, Store, Workspace, default_root

LONG_S = 1.0
"""Seconds after which a run that simulated engines begins anew."""

PARAMETER = "workspace"
"""The query parameter and the session key that hold the workspace's id."""
COOKIE = "torchsplit-workspace"
"""The browser's cookie with the id of the last workspace, for a visit whose address names none."""
_UNSAVED = "workspace begun empty"
_MAINTENANCE_S = 6 * 3600.0

MAINTENANCE = "tends the store"
"""The name of the maintenance thread."""


@st.cache_resource(show_spinner=False)
def _store(root: str) -> Store:
    """Open the store; check the database once per start of the server, before anything reads it."""
    made = Store(Path(root))
    made.check()
    return made


@st.cache_resource(ttl=_MAINTENANCE_S, show_spinner=False)
def _maintained(root: str) -> threading.Thread:
    """Copy and sweep the store from time to time, in a thread."""

    def tend() -> None:
        try:
            remove_stale_temp_dirs()
            Store(Path(root)).maintain()
        except (InputFault, OSError) as fault:
            print(f"torchsplit: the store was not copied or swept. {fault}", file=sys.stderr)

    thread = threading.Thread(target=tend, daemon=True, name=MAINTENANCE)
    thread.start()
    return thread


def store() -> Store:
    """The store under TORCHSPLIT_HOME or the user's data folder. Raises InputFault where it cannot be used."""
    root = str(default_root())
    opened = _store(root)
    _maintained(root)
    return opened


def find() -> Workspace | None:
    """The open workspace: that of the address, else of this session, else the browser's last one, else an empty one.

    None where the address names an unknown one: no other may silently take its place.
    """
    if requested := st.query_params.get(PARAMETER):
        workspace = _known(requested)
        if workspace is None:
            return None
    else:
        candidates = map(_known, (st.session_state.get(PARAMETER), st.context.cookies.get(COOKIE)))
        workspace = next((candidate for candidate in candidates if candidate is not None), None) or fresh()
    use(workspace)
    return workspace


def current() -> Workspace:
    """The open workspace after `find` ran in this run; this does not query the store again."""
    identity = str(st.session_state[PARAMETER])
    made = st.session_state.get(_UNSAVED)
    return made if isinstance(made, Unsaved) and made.id == identity else Workspace(store(), identity)


def fresh() -> Workspace:
    """Make an empty workspace of this session, which its first content stores."""
    made = Unsaved(store())
    st.session_state[_UNSAVED] = made
    return made


def use(workspace: Workspace) -> None:
    """Open a workspace in this session; the address names it once it is stored."""
    st.session_state[PARAMETER] = workspace.id
    if is_kept(workspace):
        if st.query_params.get(PARAMETER) != workspace.id:
            st.query_params[PARAMETER] = workspace.id
    elif PARAMETER in st.query_params:
        del st.query_params[PARAMETER]


def is_kept(workspace: Workspace) -> bool:
    """Whether it is stored: the first content stores an empty one."""
    return not isinstance(workspace, Unsaved) or workspace.saved


def _known(identity: object) -> Workspace | None:
    return (_unsaved(identity) or _open(identity)) if isinstance(identity, str) and identity else None


def _unsaved(identity: str) -> Workspace | None:
    """This session's empty workspace, where it has this id."""
    made = st.session_state.get(_UNSAVED)
    if not isinstance(made, Unsaved) or made.id != identity:
        return None
    # A stored one that was deleted since is gone like any other.
    return made if not made.saved or _open(identity) is not None else None


def _open(identity: str) -> Workspace | None:
    try:
        return store().open(identity)
    except InputFault:
        return None


def remember(workspace: Workspace, key: str, value: Any) -> None:
    """Store what the user looks at; where the disk refuses it, the pages still show what is stored.

    The head of every page then says that nothing can be stored.
    """
    with contextlib.suppress(StoreFault):
        workspace.set_setting(key, value)


def recall(workspace: Workspace, key: str) -> Any:
    """What `remember_choice` stored in this session, else the workspace's setting."""
    return st.session_state.get(_remembered_choice(workspace, key), workspace.setting(key))


def remember_choice(workspace: Workspace, key: str, value: Any) -> None:
    """`remember`, and remember it in this session even where the disk refuses it."""
    st.session_state[_remembered_choice(workspace, key)] = value
    remember(workspace, key, value)


def selected_name(
    workspace: Workspace, key: str, known: Sequence[str], requested: str | None = None
) -> str | None:
    """Which of the known names to show: the requested one, else this session's, else the workspace's, else the first.

    None where no name is known.
    """
    for find in (
        lambda: requested,
        lambda: st.session_state.get(_remembered_choice(workspace, key)),
        lambda: workspace.setting(key),
    ):
        if (name := find()) in known:
            # Two sessions may show two results: a later choice in the other changes nothing in this one.
            st.session_state[_remembered_choice(workspace, key)] = name
            return str(name)
    return known[0] if known else None


def _remembered_choice(workspace: Workspace, key: str) -> str:
    return f"{key} of {workspace.id}"


def read(workspace: Workspace, kind: str, name: str) -> Any:
    """The value under (kind, name), parsed once for all sessions; None where it is missing."""
    artifact = workspace.find(kind, name)
    return None if artifact is None else read_artifact(workspace, artifact)


def read_artifact(workspace: Workspace, artifact: Artifact) -> Any:
    """The value of a stored result, parsed once for all sessions; the LLMs of a plan request have their engines."""
    root = str(workspace.store.root)
    value = read_content(root, artifact.sha256, f"{artifact.kind} {artifact.name}")
    if not isinstance(value, PlanRequest) or all(model.llm is None for model in value.models):
        return value
    begun = time.monotonic()
    resolved = _with_engines(root, artifact.sha256, value)
    if time.monotonic() - begun > LONG_S:
        # Meanwhile a job may have stored a plan that this run has looked for already.
        st.rerun()
    return resolved


@st.cache_resource(max_entries=64, show_spinner=False)
def read_content(root: str, sha256: str, _origin: str) -> Any:
    """The value of a stored file; its hash alone is the key, since equal bytes are equal values."""
    text = BlobStore(Path(root)).get(sha256, "workspace", _origin).decode()
    return read_text(text, origin=_origin)[1]


@st.cache_resource(max_entries=64, show_spinner="Simulating the engines of its LLMs…")
def _with_engines(root: str, sha256: str, _request: PlanRequest) -> PlanRequest:
    return workflow.with_engine_points(_request)


def read_all(workspace: Workspace, kind: str) -> dict[str, Any]:
    """All values of a kind by their names, newest first."""
    return {artifact.name: read_artifact(workspace, artifact) for artifact in workspace.artifacts(kind)}


def names(workspace: Workspace, kind: str) -> tuple[str, ...]:
    """The names of its results of a kind, newest first."""
    return named_results.names(workspace, kind)

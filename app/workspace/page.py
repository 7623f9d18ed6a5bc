"""The Workspace page: its name, its copies, its results as files, and files back in."""

from __future__ import annotations

import datetime

import streamlit as st

from app.components import saving
from app.session import dropped_files, workspace_list
from app.session.unsaved import begin
from app.session.workspace import fresh, is_kept, store, use
from app.shell import frame, navigation, price_table
from app.workspace import deleted
from torchsplit_core.pictures.numbers import counted, escape_markdown, memory_size
from torchsplit_core.workspace.archive import export_workspace, import_workspace
from torchsplit_core.workspace.faults import quota_bytes
from torchsplit_core.workspace.named_results import PRICES
from torchsplit_core.workspace.store import Artifact, Workspace

KIND_WORDS = {
    "graph": "graph",
    "profile": "profile",
    "partition": "cuts",
    "plan_request": "plan request",
    "plan": "plan",
    "day": "plans over the day",
    "day_replay": "a day under a trace",
    "placement_request": "placement request",
    "placement": "placement",
    "placement_frontier": "throughput against latency",
    "strategy_request": "training request",
    "strategy": "training strategy",
    "evaluation": "evaluation",
    "measurement": "measured run",
    "host_state": "state of GPUs",
    "prices": "prices of GPUs",
    "upload": "uploaded file",
}


def render(workspace: Workspace) -> None:
    """Draw the page."""
    artifacts = workspace.artifacts()
    st.markdown(
        f"**{escape_markdown(workspace.name)}** has {counted(len(artifacts), 'result')} on this machine, "
        f"{memory_size(workspace.bytes_of(artifacts))} of at most {memory_size(quota_bytes())}. "
        "Its address leads back here."
    )
    left, right = st.columns([5, 8], gap="medium")
    with left:
        _name(workspace)
        _switch(workspace)
        _render_import(workspace)
        _delete(workspace)
    with right:
        with st.container(border=True):
            st.header("Results", anchor=False)
            _results(workspace, artifacts)
        with st.container(border=True, key="workspace-prices"):
            st.header("Prices of GPUs", anchor=False)
            stored = any(item.kind == PRICES for item in artifacts)
            price_table.render(workspace, price_table.stored_prices(workspace) if stored else None)


def _name(workspace: Workspace) -> None:
    with st.container(border=True):
        st.header("Name", anchor=False)
        name = st.text_input(
            "Name", workspace.name, key=f"name-{workspace.id}", label_visibility="collapsed", max_chars=120
        )
        with st.container(horizontal=True), frame.fault_boundary():
            if st.button("Rename"):
                begin(workspace, name)
                store().rename(workspace.id, name)
                frame.notify(f"This workspace is now called {name.strip()}.")
                st.rerun()
            if st.button(
                "Copy",
                disabled=not is_kept(workspace),
                help="A new workspace with the same results; this one stays as it is.",
            ):
                copied = store().copy(workspace.id, store().free_name(f"{workspace.name} copy"))
                _enter(copied, f"This is the copy, {copied.name}.")


def _switch(workspace: Workspace) -> None:
    others = [summary for summary in workspace_list.list_workspaces(store()) if summary.id != workspace.id]
    with st.container(border=True):
        st.header("Other workspaces", anchor=False)
        labels = {summary.id: f"{summary.name} ({summary.description})" for summary in others}
        if others:
            # Users search Streamlit's list by typing.
            chosen = st.selectbox("Open another", list(labels), format_func=labels.__getitem__)
        with st.container(horizontal=True), frame.fault_boundary():
            if others and st.button("Open"):
                _enter(store().open(chosen), "")
            if st.button(
                "New workspace", disabled=not is_kept(workspace), help="It is stored once it has content."
            ):
                _enter(fresh(), "")


def _enter(workspace: Workspace, text: str) -> None:
    use(workspace)
    if text:
        frame.notify(text)
    st.rerun()


def _render_import(workspace: Workspace) -> None:
    with st.container(border=True):
        st.header("Files in", anchor=False)
        turn = st.session_state.setdefault("drop-turn", 0)
        file = st.file_uploader(
            "A contract file (JSON) or an exported workspace (zip)", type=["json", "zip"], key=f"drop-{turn}"
        )
        if file is None:
            return
        with frame.fault_boundary():
            if file.name.endswith(".zip"):
                imported = import_workspace(store(), file.getvalue())
                st.session_state["drop-turn"] = turn + 1
                _enter(imported, f"Imported as {imported.name}.")
            artifact = dropped_files.store_dropped(workspace, file.name, file.getvalue())
            st.session_state["drop-turn"] = turn + 1
            frame.notify(f"Stored {file.name} as {KIND_WORDS[artifact.kind]} {artifact.name}.")
            st.rerun()


def _delete(workspace: Workspace) -> None:
    if not is_kept(workspace):
        return
    with st.popover("Delete this workspace…"):
        st.write(
            "It disappears from the list, its work is cancelled and its address stops working. You can undo this."
        )
        if st.button("Delete", key="workspace-delete"):
            with frame.fault_boundary():
                deleted.delete(workspace)


def _results(workspace: Workspace, artifacts: tuple[Artifact, ...]) -> None:
    if not artifacts:
        st.write("Nothing yet: every graph, profile, request and plan you make is listed here to download.")
        navigation.link("Overview", "Begin with a door or a model")
        return
    saving.table(
        {
            "kind": [KIND_WORDS[item.kind] for item in artifacts],
            "name": [item.name for item in artifacts],
            "changed": [
                datetime.datetime.fromtimestamp(item.changed).strftime("%Y-%m-%d %H:%M") for item in artifacts
            ],
        },
        "results",
        key="workspace-results",
        alt="Results of this workspace",
    )
    lost = [item for item in artifacts if not _has_file(workspace, item)]
    if lost:
        named = ", ".join(f"{KIND_WORDS[item.kind]} {item.name}" for item in lost[:5])
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        st.warning(
            f"The file of {escape_markdown(named)}{more} is gone or empty (a damaged disk, or a power cut). "
            "Make it again or remove it; an export leaves it out and says so."
        )
    labels = {(item.kind, item.name): f"{KIND_WORDS[item.kind]}: {item.name}" for item in artifacts}
    chosen = st.selectbox("Result", list(labels), format_func=labels.__getitem__)
    kind, name = chosen
    with st.container(horizontal=True):
        with frame.fault_boundary():
            data = workspace.get_bytes(kind, name)
            file = name if kind == "upload" else f"{name.replace('/', '-')}.{kind}.json"
            st.download_button("Download", data, file, "application/octet-stream", on_click="ignore")
        if st.button("Remove"):
            workspace.remove(kind, name)
            st.rerun()
        st.download_button(
            "Export the workspace (zip)",
            lambda: export_workspace(workspace),
            f"{workspace.name}.zip",
            "application/zip",
            type="primary",
            on_click="ignore",
        )


def _has_file(workspace: Workspace, item: Artifact) -> bool:
    """Whether the file exists and has bytes; reading it later checks its hash."""
    try:
        return workspace.store.blobs.path(item.sha256).stat().st_size > 0
    except OSError:
        return False

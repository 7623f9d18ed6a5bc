"""This machine now: its GPUs with their MIG slices, its cores, memory and disk."""

from __future__ import annotations

import os
import shutil
from typing import Any

import streamlit as st

from app.components import saving
from app.format.gpus import NOTE, gpu_cells
from app.shell import frame, widgets
from torchsplit_core.hardware import CoreTimes, LiveGpu, LiveHost, discover_host, live_host
from torchsplit_core.pictures.numbers import (
    UNKNOWN,
    escape_markdown,
    exact,
    memory_size,
    percent,
    short,
    size,
)
from torchsplit_core.values.units import GIB
from torchsplit_core.workspace.store import Workspace

REFRESH_S = 2.0
_BEFORE = "cores before"


def render(workspace: Workspace) -> None:
    """The whole page; its live part refreshes itself."""
    host = _host()
    st.caption(escape_markdown(f"{host.cpu_name}, {os.uname().sysname} {os.uname().release}"))
    st.fragment(_render_live, run_every=REFRESH_S)(workspace)


@st.cache_resource(ttl=300.0, show_spinner=False)
def _host() -> Any:
    return discover_host()


def _render_live(workspace: Workspace) -> None:
    with frame.fault_boundary():
        host = live_host()
        _cards(workspace, host)
        st.header("GPUs", anchor=False)
        if host.message:
            st.info(escape_markdown(host.message))
        if host.gpus:
            saving.table(gpu_rows(host.gpus), "gpus", key="host-gpus", alt="GPUs of this machine, now")
            st.caption(NOTE)
        rows = slice_rows(host.gpus)
        if rows:
            st.header("MIG slices", anchor=False)
            saving.table(rows, "slices", key="host-slices", alt="MIG slices of this machine, now")


def _cards(workspace: Workspace, host: LiveHost) -> None:
    before: CoreTimes | None = st.session_state.get(_BEFORE)
    busy = host.times.share_since(before) if host.times and before else None
    st.session_state[_BEFORE] = host.times
    cores = len(os.sched_getaffinity(0))
    used = None
    if host.memory_bytes is not None and host.available_bytes is not None:
        used = host.memory_bytes - host.available_bytes
    disk = shutil.disk_usage(workspace.store.root)
    cards = (
        ("Cores", exact(cores), "that this dashboard may use"),
        ("Cores at work", percent(busy), f"{short(host.load)} processes want one, mean of a minute"),
        ("Memory in use", memory_size(used), f"of {memory_size(host.memory_bytes)}"),
        ("Disk free", size(disk.free), f"of {size(disk.total)}, where workspaces are"),
    )
    widgets.metric_cards(cards)


def gpu_rows(gpus: tuple[LiveGpu, ...]) -> list[dict[str, str]]:
    """A row for each GPU."""
    return [_gpu_row(gpu) for gpu in gpus]


def _gpu_row(live: LiveGpu) -> dict[str, str]:
    gpu = live.gpu
    return {
        "GPU": str(gpu.index),
        "name": gpu.name,
        "memory": memory_size(None if gpu.memory_gib is None else gpu.memory_gib * GIB),
        "MIG": {True: "on", False: "off", None: "has none"}[gpu.mig_enabled],
        **gpu_cells(live.state, live.counted),
        "processes": UNKNOWN if live.processes is None else exact(live.processes),
        "UUID": gpu.uuid,
    }


def slice_rows(gpus: tuple[LiveGpu, ...]) -> list[dict[str, str]]:
    """A row for each MIG device."""
    return [
        {
            "GPU": str(live.gpu.index),
            "profile": part.profile or UNKNOWN,
            "memory": memory_size(None if part.memory_gib is None else part.memory_gib * GIB),
            "SMs": UNKNOWN if part.sm_count is None else exact(part.sm_count),
            "UUID": part.uuid,
        }
        for live in gpus
        for part in live.gpu.instances
    ]

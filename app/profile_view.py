"""The Profile page: how fast is each model on which slice, measured or estimated?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app import execution, frame, navigation, scenario
from app.charts.curves import curves
from app.models_view import PROFILE_JOB
from app.numbers import plain, short
from app.workspace import names, read
from torchsplit_core import jobs
from torchsplit_core.hardware import discover_host
from torchsplit_core.storage import Workspace
from torchsplit_core.values import InputFault, Profile, ProfileRow

MOST_BATCH, MOST_BATCHES = 4096, 16


def show(workspace: Workspace) -> None:
    """The whole page."""
    stored = names(workspace, "profile")
    graphs = names(workspace, "graph")
    if not stored and not graphs:
        st.write("Here you will see throughput and latency of every model over batch sizes and slices.")
        navigation.link("Models", "Choose models first")
        return
    profiles = {name: read(workspace, "profile", name) for name in stored}
    if profiles:
        _headline(profiles)
    left, right = st.columns([4, 12], gap="medium")
    with left:
        types = sorted({row.gpu_type for profile in profiles.values() for row in profile.rows})
        chosen, kind, slices, processes, quantity = _filters(profiles, types)
        with st.container(border=True):
            _measure(workspace, graphs, stored)
    with right:
        if not profiles:
            st.info("No profile is here yet: measure a model at the left.")
        elif chosen:
            rows = [
                (name, row)
                for name in chosen
                for row in profiles[name].rows
                if row.gpu_type == kind and (row.profile or "whole") in slices and row.processes in processes
            ]
            _picture(rows, scenario.colours(workspace), kind, quantity)
    if chosen:
        _downloads(workspace, chosen)


def _headline(profiles: dict[str, Profile]) -> None:
    rows = [row for profile in profiles.values() for row in profile.rows]
    measured = sum(row.basis == "measured" for row in rows)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(
            f"**{len(profiles)} profile{'s' if len(profiles) != 1 else ''}**, {short(len(rows))} rows",
            width="content",
        )
        if measured:
            st.badge(f"{short(measured)} rows measured", color="green")
        if emulated := sum(row.basis == "emulated" for row in rows):
            st.badge(f"{short(emulated)} rows emulated", color="gray")
        if estimated := sum(row.basis == "estimated" for row in rows):
            st.badge(f"{short(estimated)} rows estimated", color="yellow")


def _filters(
    profiles: dict[str, Profile], types: list[str]
) -> tuple[list[str], str, list[str], list[int], str]:
    if not profiles:
        return [], "", [], [], "throughput"
    with st.container(border=True):
        st.header("Show", anchor=False)
        chosen = st.multiselect("Models", sorted(profiles), list(profiles)[:4])
        best = max(types, key=lambda kind: (kind == "A100-80GB", kind))
        kind = st.selectbox("Device", types, types.index(best))
        rows = [row for name in chosen for row in profiles[name].rows if row.gpu_type == kind]
        known = sorted({row.profile or "whole" for row in rows})
        slices = st.multiselect("Slices", known, known[:2], key=f"slices-{kind}")
        counts = sorted({row.processes for row in rows})
        processes = counts
        if len(counts) > 1:
            processes = st.multiselect("Processes on a slice", counts, counts[:1])
        quantity = st.radio("Curve", ["throughput", "latency"], horizontal=True)
    return chosen, kind, slices, processes, quantity


def _measure(workspace: Workspace, graphs: tuple[str, ...], stored: tuple[str, ...]) -> None:
    st.header("Measure", anchor=False)
    sources = sorted({name for name in (*graphs, *stored) if name.startswith("sample:")} | set(graphs))
    if not sources:
        st.write(
            "The profiles here were shipped or imported. A model of your own is measured after it is traced."
        )
        navigation.link("Models", "Add a model")
        return
    chosen = st.multiselect("Models to measure", sources, [name for name in sources if name not in stored])
    gpu = bool(discover_host().gpus)
    device = st.selectbox(
        "On", ["cpu", "cuda"] if gpu else ["cpu"], help="" if gpu else discover_host().message
    )
    text = st.text_input("Batch sizes", "1, 2, 4", help="Whole numbers, comma-separated.")
    if st.button("Measure", type="primary", disabled=not chosen):
        with frame.telling():
            batches = batch_sizes(text)
            for source in chosen:
                jobs.start(
                    workspace,
                    f"Profile {source}",
                    PROFILE_JOB,
                    _parameters(workspace, source, device, batches),
                )
            st.rerun()


def _parameters(workspace: Workspace, source: str, device: str, batches: list[int]) -> dict[str, object]:
    """What the job needs; an upload is executed only as it was trusted when it was traced."""
    parameters: dict[str, object] = {"source": source, "device": device, "batch_sizes": batches}
    if source.startswith("sample:"):
        return parameters
    for record in workspace.job_records():
        if record.parameters.get("source") == source and record.parameters.get("upload"):
            trust = bool(record.parameters.get("trust")) and not execution.refused()
            if not trust and str(record.parameters["upload"]).endswith(".py"):
                raise InputFault(
                    "source", source, "a .py file is executed only when it is trusted", execution.REFUSED
                )
            return parameters | {"upload": record.parameters["upload"], "trust": trust}
    raise InputFault("source", source, "its file is in this workspace", "Upload it on the Models page first.")


def batch_sizes(text: str) -> list[int]:
    """`1, 2, 4` as numbers. Raises InputFault for anything else, and for a grid that would never end."""
    parts = [part.strip() for part in text.replace(" ", ",").split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        raise InputFault(
            "batch sizes", text, "they are whole numbers, comma-separated", "Write for example 1, 2, 4."
        )
    if len(parts) > MOST_BATCHES:
        raise InputFault(
            "batch sizes", f"{len(parts)} of them", f"at most {MOST_BATCHES} at once", "Name fewer."
        )
    numbers = sorted({int(part) for part in parts})
    if numbers[0] < 1 or numbers[-1] > MOST_BATCH:
        worst = numbers[0] if numbers[0] < 1 else numbers[-1]
        raise InputFault("batch sizes", worst, f"a batch size is 1 to {MOST_BATCH}", "Mend it.")
    return numbers


def _picture(rows: list[tuple[str, ProfileRow]], colours: dict[str, str], kind: str, quantity: str) -> None:
    if not rows:
        st.info("No row fits this choice: choose another device or slice.")
        return
    dark = st.context.theme.type == "dark"
    figure = curves([(scenario.short_name(name), row) for name, row in rows], colours, quantity, dark=dark)
    with st.container(border=True):
        st.plotly_chart(
            figure, theme=None, key="curves", config={"displaylogo": False},
            alt=f"{quantity} over batch size on {kind}; the table below has the same figures",
        )  # fmt: skip
        st.caption("Filled: measured. Amber ring: estimated, with its 90 % interval where one is known.")
    st.dataframe(table(rows), hide_index=True, height=320, placeholder="n/a", alt="Rows behind the curves")


def table(rows: list[tuple[str, ProfileRow]]) -> pd.DataFrame:
    """The rows with their basis, sorted as people look for them."""
    return pd.DataFrame(
        [
            {
                "model": name,
                "stage": row.stage,
                "device": row.gpu_type,
                "slice": row.profile or "whole",
                "batch": row.batch_size,
                "processes": row.processes,
                "req/s": row.throughput_rps,
                "p95 ms": row.latency_ms,
                "low req/s": row.low_rps,
                "high req/s": row.high_rps,
                "GiB": row.memory_gib,
                "basis": row.basis,
            }
            for name, row in rows
        ]
    ).sort_values(["model", "slice", "processes", "batch"], ignore_index=True)


def _downloads(workspace: Workspace, chosen: list[str]) -> None:
    with st.container(horizontal=True):
        for name in chosen[:6]:
            st.download_button(
                f"{plain(name)} (JSON)", workspace.get_bytes("profile", name), f"{name.replace('/', '-')}.profile.json",
                "application/json", on_click="ignore", key=f"profile-{name}",
            )  # fmt: skip

"""The files of a plan: those that make the plan real, one tab a format."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

import streamlit as st

from app.format.numbers import plain
from app.shell import frame
from torchsplit_core.deployment import FORMATS, DeploymentFile, deploy
from torchsplit_core.values import InputFault, PlanOutcome

TITLES = {"mig-parted": "mig-parted", "nvidia-smi": "nvidia-smi", "kubernetes": "Kubernetes"}


MOST_LINES = 240
"""Lines of a file that are shown on the page."""


def show(name: str, plan: PlanOutcome | None) -> None:
    """The whole tab for a scenario's plan."""
    if plan is None:
        st.write("Here you will get the files that cut the GPUs as planned and start the models on them.")
        st.info("Not planned yet: press Plan.")
        return
    if plan.status not in ("optimal", "feasible"):
        st.warning("This scenario has no plan to deploy: the tab Plan says why.")
        return
    _head(name, plan)
    if not any(gpu.slices for gpu in plan.gpus):
        st.info(
            "The plan has no slice, so there is nothing to deploy: no model is served. The tab Plan says why, and "
            "which figures are missing."
        )
        return
    # A plan whose hosts are no nodes of a cluster still has its other files.
    possible = [kind for kind in FORMATS if _can(plan, kind)]
    files = deploy(plan, possible or FORMATS)
    tabs = st.tabs([TITLES.get(kind, kind) for kind in FORMATS] + ["What it does and disrupts"])
    for tab, kind in zip(tabs, FORMATS, strict=False):
        with tab, frame.telling():
            for file in deploy(plan, (kind,))[1:]:
                _file(file)
    with tabs[-1]:
        _file(files[0], shown=True)
    st.download_button(
        "All files (zip)",
        zipped(files),
        f"{name}.deploy.zip",
        "application/zip",
        type="primary",
        on_click="ignore",
    )


def _can(plan: PlanOutcome, kind: str) -> bool:
    try:
        deploy(plan, (kind,))
    except InputFault:
        return False
    return True


def _head(name: str, plan: PlanOutcome) -> None:
    """Whose files, and what applying them ends; whether the plan gives what is asked stands above."""
    cut = sum(bool(gpu.slices) for gpu in plan.gpus)
    slices = sum(len(gpu.slices) for gpu in plan.gpus)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"Files of **{plain(name)}**: {slices} slices on {cut} GPUs", width="content")
        st.badge("untested on hardware", color="yellow")
    if cut:
        st.warning(
            f"Applying removes every MIG instance that exists on these {cut} GPUs and stops what runs on them. "
            "The scripts show what they would do, and change nothing until told to apply."
        )


def _file(file: DeploymentFile, *, shown: bool = False) -> None:
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            st.markdown(f"**{plain(file.name)}**", width="content")
            flat = file.name.replace("/", "-")
            st.download_button(
                "Download", file.text, flat, "text/plain", key=f"get-{file.name}", on_click="ignore"
            )
        if shown:
            st.markdown(file.text)
        else:
            # Plain: the highlighter's colours do not reach the contrast that text needs.
            # Wrapped, and as tall as it is: a block that scrolls cannot be reached with the keyboard.
            lines = file.text.split("\n")
            st.code("\n".join(lines[:MOST_LINES]), language=None, height="content", wrap_lines=True)
            if len(lines) > MOST_LINES:
                st.caption(f"The first {MOST_LINES} of {len(lines)} lines; the download has them all.")


def zipped(files: Sequence[DeploymentFile]) -> bytes:
    """All files as one zip archive; scripts keep their executable bit."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if file.executable else 0o100644) << 16
            archive.writestr(entry, file.text)
    return buffer.getvalue()

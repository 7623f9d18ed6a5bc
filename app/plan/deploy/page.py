"""The files of a plan: those that cut its GPUs, one tab a format, and the way to the workloads that run on them."""

from __future__ import annotations

import shlex

import streamlit as st

from app.format.numbers import plain
from app.plan.verdict import verdict_of
from app.shell import frame
from torchsplit_core.deployment import (
    LAYOUT_FORMATS,
    REMOVES,
    WORKLOAD_FORMATS,
    DeploymentFile,
    deploy,
    models_to_write,
    zipped,
)
from torchsplit_core.files import write_text
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, point_type

WORKLOADS = {
    "kubernetes": "Deployments with probes, a Service for each model, a router for cut ones; for the GPU operator",
    "ray-serve": "a Ray Serve application: a deployment for each part on each kind of slice",
    "triton": "a model repository for each kind of slice, ensembles for cut models",
    "compose": "a container for each slice of a host, by its UUID",
    "systemd": "a unit for each slice of a host, by its UUID",
    "slurm": "gres.conf and a job for each node",
}
"""What each format that runs models is, in a line."""


MOST_LINES = 240
"""Lines of a file that are shown on the page."""


def show(name: str, plan: PlanOutcome | None, request: PlanRequest | None) -> None:
    """The whole tab for a scenario's plan; `request` is what it answers, None where nobody has that."""
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
    *tabs, runs, what = st.tabs([*LAYOUT_FORMATS, "What runs there", "What it does and disrupts"])
    possible = []
    for tab, kind in zip(tabs, LAYOUT_FORMATS, strict=True):
        # A plan of cores alone has no GPU to cut.
        with tab, frame.telling():
            for file in deploy(plan, (kind,))[1:]:
                _file(file)
            possible.append(kind)
    told = verdict_of(request, plan).sentence
    files = deploy(plan, possible, verdict=told) if possible else ()
    with runs:
        _workloads(name, plan, request)
    with what:
        if files:
            _file(files[0], shown=True)
        else:
            st.info("Nothing is cut: the plan uses cores alone.")
    if files or request is not None:
        st.download_button(
            "All files (zip)",
            lambda: zipped((*files, *_contracts(name, plan, request))),
            f"{name}.deploy.zip",
            "application/zip",
            type="primary",
            on_click="ignore",
        )


def _contracts(name: str, plan: PlanOutcome, request: PlanRequest | None) -> tuple[DeploymentFile, ...]:
    """The plan and its request, which the command line makes workloads of; none without the request."""
    if request is None:
        return ()
    return (
        DeploymentFile(f"{name}.plan.json", write_text(plan)),
        DeploymentFile(f"{name}.request.json", write_text(request)),
    )


def _workloads(name: str, plan: PlanOutcome, request: PlanRequest | None) -> None:
    """The formats that run models, and the command that writes them: it runs each model once to write its parts."""
    st.markdown(
        "A server for each slice, an image that has the models' parts, one address for all models:\n\n"
        + "\n".join(f"- `{kind}`: {words}" for kind, words in WORKLOADS.items())
    )
    try:
        models_to_write(plan, WORKLOAD_FORMATS, request)
    except InputFault as fault:
        st.warning(f"Not for this plan. {plain(str(fault))}")
        return
    st.write("Their parts are written by running each model once, so the command line makes these files:")
    st.code(
        f"torchsplit deploy {shlex.quote(f'{name}.plan.json')} --request {shlex.quote(f'{name}.request.json')} \\\n"
        "    --format kubernetes -o deployment/",
        language=None,
        wrap_lines=True,
    )
    st.caption("The zip below has both files. Models from .py or .pt2 files need --trust.")


def _head(name: str, plan: PlanOutcome) -> None:
    """Whose files, and what applying them ends; whether the plan gives what is asked stands above."""
    cut = sum(bool(gpu.slices) for gpu in plan.gpus)
    slices = sum(len(gpu.slices) for gpu in plan.gpus)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"Files of **{plain(name)}**: {slices} slices on {cut} GPUs", width="content")
        st.badge("untested on hardware", color="yellow")
    gpus = sum(bool(gpu.slices) and point_type(gpu.type) == gpu.type for gpu in plan.gpus)
    if gpus:
        st.warning(f"{REMOVES} The scripts show what they would do, and change nothing until told to apply.")


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

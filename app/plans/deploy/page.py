"""The way from what runs now to a plan, and its files: those that cut its GPUs, and the workloads that run on them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import streamlit as st

from app.plans.deploy import cluster, today
from app.plans.verdict import verdict_of
from app.shell import frame, widgets
from torchsplit_core import deployment
from torchsplit_core.deployment import FORMATS, REMOVES, CustomImage, DeploymentFile, deploy, has_source
from torchsplit_core.files import write_text
from torchsplit_core.pictures.numbers import counted, escape_markdown
from torchsplit_core.values import PlanOutcome, PlanRequest, point_type
from torchsplit_core.workspace.store import Workspace

WORKLOADS = {
    "kubernetes": (
        "Deployments with probes, a Service for each model, a router for cut ones; for the GPU operator, with the "
        "device plugin or (dra/) with ResourceClaims"
    ),
    "ray-serve": "a Ray Serve application: a deployment for each part on each kind of slice",
    "triton": "a model repository for each kind of slice, ensembles for cut models",
    "compose": "a container for each slice of a host, by its UUID",
    "systemd": "a unit for each slice of a host, by its UUID",
    "slurm": "gres.conf and a job for each node",
}
"""What each format that runs models is, in a line."""
Images = Mapping[str, CustomImage] | None
"""Images of the user's own by model; None where they are unknown or wrong."""

MOST_FILES = 12
"""Files of a format that are shown on the page."""
MOST_LINES = 240
"""Lines of a file that are shown on the page."""


def render(workspace: Workspace, name: str, plan: PlanOutcome | None, request: PlanRequest | None) -> None:
    """The whole tab for a scenario's plan; `request` is what it answers, None where it is not stored."""
    if plan is None:
        st.write("Here you will get the files that cut the GPUs as planned and start the models on them.")
        st.info("Not planned yet: press Plan.")
        return
    if plan.status not in ("optimal", "feasible"):
        st.warning("This scenario has no plan to deploy: the tab Plan says why.")
        return
    if _has_gpus(plan):
        today.render(workspace, name, plan, request)
    # Its warning is of the files below, not of the way above.
    _head(name, plan)
    if not any(gpu.slices for gpu in plan.gpus):
        st.info(
            "The plan has no slice, so there is nothing to deploy: no model is served. The tab Plan says why, and "
            "which figures are missing."
        )
        return
    images = None if request is None else _images(name, plan, request)
    *tabs, what = st.tabs([*FORMATS, "What it does and disrupts"])
    shown: list[str] = []
    for tab, kind in zip(tabs, FORMATS, strict=True):
        with tab, frame.fault_boundary():
            if _format(kind, name, plan, request, images):
                shown.append(kind)
    sentence = verdict_of(request, plan).sentence
    files = deploy(plan, shown, request, images=images, verdict=sentence) if shown else ()
    with what:
        if files:
            _file(files[0], shown=True)
        else:
            st.info("Nothing is cut here: the plan uses only cores.")
    if files or request is not None:
        st.download_button(
            "All files (zip)", lambda: deployment.zip_files((*files, *_contracts(name, plan, request))),
            f"{name}.deploy.zip", "application/zip", type="primary", on_click="ignore",
        )  # fmt: skip


def _images(name: str, plan: PlanOutcome, request: PlanRequest) -> Images:
    """The user's own image of each served model that has one; None where a text is no image or command."""
    served = {model.name for model in plan.models if model.variant is not None}
    models = [model for model in request.models if model.name in served]
    without = sum(not has_source(model) for model in models)
    key = f"deploy-images {name}"
    # Kept beside the widget, whose state Streamlit drops once another page is shown.
    saved: dict[str, tuple[str, str]] = st.session_state.setdefault(f"{key} kept", {})
    if key not in st.session_state:
        st.session_state[f"{key} base"] = dict(saved)
    base = st.session_state[f"{key} base"]
    with st.expander(f"What runs: {len(models) - without} of {len(models)} models have a source"):
        st.caption(
            "TorchSplit serves a model that has a source. Give a model an image of your own, and its slices run that "
            "image instead. A model with neither gets a placeholder: set it before you apply anything."
        )
        before = {model.name: base.get(model.name, ("", "")) for model in models}
        rows = [
            {"Model": model.name, "Source": model.source if has_source(model) else "none",
             "Image": before[model.name][0], "Command": before[model.name][1]}
            for model in models
        ]  # fmt: skip
        about = "What follows the image in docker run. Empty: what the image does by itself."
        config = {
            "Image": st.column_config.TextColumn(help="As docker pull takes it: registry/name:tag."),
            "Command": st.column_config.TextColumn(help=about),
        }
        edited: list[dict[str, Any]] = st.data_editor(
            rows, key=key, disabled=["Model", "Source"], hide_index=True, alt="What each model runs as",
            column_config=config,
        )  # fmt: skip
    given = {row["Model"]: ((row["Image"] or "").strip(), (row["Command"] or "").strip()) for row in edited}
    st.session_state[f"{key} kept"] = given
    with frame.fault_boundary():
        image_of = {model: image for model, (image, _) in given.items() if image}
        command_of = {model: command for model, (_, command) in given.items() if command}
        return deployment.custom_images(request, image_of, command_of)
    return None


def _format(kind: str, name: str, plan: PlanOutcome, request: PlanRequest | None, images: Images) -> bool:
    """A format's files, or why there are none; whether they are shown."""
    if kind in WORKLOADS:
        st.caption(f"{WORKLOADS[kind][0].upper()}{WORKLOADS[kind][1:]}.")
    if kind == "kubernetes":
        cluster.render(name, plan, request)
    omitted, everything = deployment.omitted_by(plan, kind, images)
    if omitted:
        st.info(f"Left out: {escape_markdown(omitted)}.")
    if everything:
        return False
    if deployment.models_to_write(plan, (kind,), request, images):
        st.write("To write these files each model has to run once, so the command line does it:")
        st.code(_command(name, kind, images or {}), language=None, wrap_lines=True)
        st.caption("The zip below has both files. Models from .py or .pt2 files need --trust.")
        return False
    files = deploy(plan, (kind,), request, images=images)[1:]
    for file in files[:MOST_FILES]:
        _file(file)
    if len(files) > MOST_FILES:
        st.caption(f"{len(files) - MOST_FILES} more files are in the zip below.")
    return True


def _command(name: str, kind: str, images: Mapping[str, CustomImage]) -> str:
    """The command that writes a format, with the images of the user's own."""
    lines = [
        f"torchsplit deploy {shlex.quote(f'{name}.plan.json')} --request {shlex.quote(f'{name}.request.json')}",
        f"--format {kind} -o deployment/",
    ]
    for model, image in images.items():
        if not image.placeholder and image.image:
            lines.append(f"--image {shlex.quote(f'{model}={image.image}')}")
        if image.command:
            lines.append(f"--command {shlex.quote(f'{model}={shlex.join(image.command)}')}")
    return " \\\n    ".join(lines)


def _contracts(name: str, plan: PlanOutcome, request: PlanRequest | None) -> tuple[DeploymentFile, ...]:
    """The files of the plan and its request, from which the command line writes workloads; none without the request."""
    if request is None:
        return ()
    return (
        DeploymentFile(f"{name}.plan.json", write_text(plan)),
        DeploymentFile(f"{name}.request.json", write_text(request)),
    )


def _head(name: str, plan: PlanOutcome) -> None:
    """Whose files these are, and what applying them ends."""
    cut = sum(bool(gpu.slices) for gpu in plan.gpus)
    slices = sum(len(gpu.slices) for gpu in plan.gpus)
    with st.container(horizontal=True, vertical_alignment="center"):
        kind = "GPU" if any(point_type(gpu.type) == gpu.type for gpu in plan.gpus) else "host"
        text = f"Files of **{escape_markdown(name)}**: {counted(slices, 'slice')} on {counted(cut, kind)}"
        st.markdown(text, width="content")
        widgets.badge("untested on hardware", "yellow")
    if _has_gpus(plan):
        st.warning(f"{REMOVES} The scripts only show what they would do until you run them with `--apply`.")


def _has_gpus(plan: PlanOutcome) -> bool:
    """Whether it uses GPUs, not cores alone."""
    return any(gpu.slices and point_type(gpu.type) == gpu.type for gpu in plan.gpus)


def _file(file: DeploymentFile, *, shown: bool = False) -> None:
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            st.markdown(f"**{escape_markdown(file.name)}**", width="content")
            flat = file.name.replace("/", "-")
            key = f"get-{file.name}"
            st.download_button("Download", file.text, flat, "text/plain", key=key, on_click="ignore")
        if shown:
            st.markdown(file.text)
        else:
            # Plain, since the highlighter's colours lack contrast; wrapped and as tall as the text, since the keyboard
            # cannot reach a block that scrolls.
            lines = file.text.split("\n")
            st.code("\n".join(lines[:MOST_LINES]), language=None, height="content", wrap_lines=True)
            if len(lines) > MOST_LINES:
                st.caption(f"The first {MOST_LINES} of {len(lines)} lines; the download has them all.")

"""The tab Measure: which models, on which devices, over which batch sizes. It asks before it measures again."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

import streamlit as st

from app.models.profile.measuring import devices as measuring_devices
from app.models.profile.measuring import grid as measuring_grid
from app.session import trust
from app.session.uploads import needs_file, refuse_untrusted, upload_of
from app.shell import frame, widgets
from sample_models.registry import SAMPLES
from torchsplit_core import jobs
from torchsplit_core.hardware import discover_host
from torchsplit_core.jobs.job_kinds import PROFILE, ProfileParameters, UploadedFile, from_stored
from torchsplit_core.jobs.profile import ProfilePoint
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.profiling.measuring.grids import check_batch_sizes
from torchsplit_core.values import Device, InputFault, Profile
from torchsplit_core.values.errors import quoted
from torchsplit_core.workspace.store import Workspace

SAMPLE = "sample:"
_PENDING = "profile-asked"
"""The session key of a question that waits for its answer: the parameters and the points."""


def render(workspace: Workspace, graphs: Sequence[str], profiles: Mapping[str, Profile]) -> None:
    """The whole tab."""
    host = discover_host()
    known = {device.id: device for device in measuring_devices.measurable_devices(host)}
    running = jobs.running(workspace, (PROFILE,))
    left, right = st.columns([5, 11], gap="medium")
    box = left.container(border=True)
    with box:
        st.header("Measure", anchor=False)
        options = sources(graphs, profiles)
        first = [name for name in options if name in graphs and name not in profiles] or list(graphs)[:1]
        chosen = widgets.multi_choice(
            "Models to measure", options, first, "profile-measure-models",
            help="Models of this workspace first, then the samples that ship with TorchSplit.",
        )  # fmt: skip
        devices = measuring_devices.choose(host)
        text = st.text_input(
            "Batch sizes", key="profile-measure-batches", placeholder="those of each model's client",
            help="Whole numbers, comma-separated. Empty: the batch_sizes that each model's SplitClient offers.",
            persist_state="session",
        )  # fmt: skip
        settings = _settings(devices)
        trusted = _trust(workspace, chosen)
    with right:
        grid = st.container()
        if not running:
            measuring_devices.devices_table(devices)
        to_make = measuring_devices.missing_slices(host)
    with box:
        ready = bool(chosen and (devices or to_make))
        pressed = st.button("Measure", type="primary", disabled=not ready, key="profile-measure")
        with frame.fault_boundary():
            sizes = batch_sizes(text) if text.strip() else None
            parameters = replace(settings, sources=tuple(chosen), batch_sizes=sizes, make_slices=to_make)
            parameters = replace(parameters, device=",".join(device.id for device in devices))
            points = () if running and not pressed else measuring_grid.known_cells(workspace, parameters)
            if pressed:
                complete = replace(parameters, uploads=_uploads(workspace, chosen, trusted))
                _start_or_ask(workspace, complete, points)
            with grid:
                if points and not running:
                    measuring_grid.render(workspace, points, known, profiles)
    with grid:
        for status in running:
            _running(workspace, status, known, profiles)
        if not chosen and not running:
            st.info("Choose a model: its points appear here, those measured before with their figures.")
    if _PENDING in st.session_state:
        _ask(workspace, known)


def sources(graphs: Sequence[str], profiles: Mapping[str, Profile]) -> list[str]:
    """The models to measure: those of the workspace, then the samples. Imported tables are no models."""
    workspace_models = {name for name in (*graphs, *profiles) if name.startswith(SAMPLE)} | set(graphs)
    samples = [f"{SAMPLE}{sample.name}" for sample in SAMPLES]
    return [*sorted(workspace_models), *(name for name in samples if name not in workspace_models)]


def batch_sizes(text: str) -> tuple[int, ...]:
    """Parse `1, 2, 4`. Raises InputFault for anything else, and for a grid that would take too long."""
    parts = [part.strip() for part in text.replace(" ", ",").split(",") if part.strip()]
    for part in parts:
        if not (part.isascii() and part.isdigit()):
            remedy = "Write for example 1, 2, 4."
            raise InputFault("batch sizes", f"{quoted(part)} is no whole number", remedy)
    return check_batch_sizes([int(part) for part in parts])


def _settings(devices: Sequence[Device]) -> ProfileParameters:
    """The settings under How to measure; models and devices are left open."""
    with st.expander("How to measure"):
        budget = st.number_input(
            "Seconds a point", 0.1, 600.0, 2.0, key="profile-measure-budget", persist_state="session",
            help="Time for the timed runs of one batch size; at least three runs whatever they take.",
        )  # fmt: skip
        limit = st.number_input(
            "Give a point up after, seconds", 1.0, 86_400.0, None, key="profile-measure-limit",
            placeholder="120, or 40 times the above", persist_state="session",
        )  # fmt: skip
        parameters = ProfileParameters((), point_budget_s=budget, point_limit_s=limit)
        if any(device.kind != "cpu" for device in devices):
            off = any(device.kind == "cpu" for device in devices)
            graphs = st.checkbox("With CUDA graphs", key="profile-measure-graphs", disabled=off)
            parameters = replace(parameters, cuda_graphs=graphs)
        shared = [device.physical for device in devices if device.kind == "mig"]
        if len(shared) > len(set(shared)):
            label = "Slices of one GPU at the same time"
            about = "Faster, and they disturb each other: the profile says so."
            at_once = st.checkbox(label, key="profile-measure-at-once", help=about)
            parameters = replace(parameters, at_once=at_once)
    return parameters


def _trust(workspace: Workspace, chosen: Sequence[str]) -> frozenset[str]:
    """Ask for trust in the files of the chosen models; the SHA-256 of the trusted files."""
    uploads = [upload_of(workspace, name) for name in chosen if needs_file(workspace, name)]
    files = {file.name: file.sha256 for file in uploads if file}
    if not files:
        return frozenset()
    st.caption("A .pt2 that is not trusted is estimated, not measured; a .py needs your trust.")
    return frozenset(files.values()) if trust.trust_box(files, "profile-measure-trust") else frozenset()


def _uploads(workspace: Workspace, chosen: Sequence[str], trusted: Container[str]) -> dict[str, UploadedFile]:
    """The file of each chosen model that is no sample. Raises InputFault for one that is gone or must be trusted."""
    files = {}
    for name in chosen:
        if not needs_file(workspace, name):
            continue
        file = upload_of(workspace, name)
        if file is None:
            problem = f"the file of {name} is no longer in this workspace"
            raise InputFault("", problem, "Upload it on the Models page.")
        refuse_untrusted(file.name, file.sha256 in trusted)
        files[name] = UploadedFile(file.name, file.sha256 if file.sha256 in trusted else None)
    return files


def _start_or_ask(
    workspace: Workspace, parameters: ProfileParameters, points: Sequence[ProfilePoint]
) -> None:
    """Start the job; if points of the grid are known already, ask first what is to become of them."""
    if any(cell.state != "open" for cell in points):
        # The session keeps the question: a rerun, such as that after a job ends, must not close it.
        st.session_state[_PENDING] = (parameters, tuple(points))
    else:
        start(workspace, parameters)
        st.rerun()


def _forget() -> None:
    st.session_state.pop(_PENDING, None)


@st.dialog("Measure again?", on_dismiss=_forget)
def _ask(workspace: Workspace, devices: Mapping[str, Device]) -> None:
    parameters, points = st.session_state[_PENDING]
    st.markdown(describe_known_points(points, devices))
    missing = sum(cell.state == "open" for cell in points)
    unknown = parameters.batch_sizes is None  # a client may offer more than was measured
    label = f"Measure only the {missing} missing" if missing else "Nothing is missing"
    label = "Measure what is missing" if unknown else label
    only = st.button(label, type="primary", disabled=not (missing or unknown), width="stretch")
    again = st.button(f"Measure all {'' if unknown else f'{len(points)} '}again and replace", width="stretch")
    cancel = st.button("Cancel", width="stretch", key="profile-ask-cancel")
    if only or again:
        start(workspace, replace(parameters, again_since=time.time()) if again else parameters)
    if only or again or cancel:
        _forget()
        st.rerun()


def describe_known_points(grid_points: Sequence[ProfilePoint], devices: Mapping[str, Device]) -> str:
    """How many points are known, of when and of which devices."""
    known = [cell for cell in grid_points if cell.state != "open"]
    failed = sum(cell.state == "failed" for cell in known)
    days = sorted({measuring_grid.format_time(cell.kept)[:10] for cell in known if cell.kept})
    period = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else "an earlier day"
    names = list(dict.fromkeys(cell.device for cell in known))
    labels = [measuring_devices.label(devices[name]) for name in names if name in devices]
    total = f" of {len(grid_points)}" if len(known) < len(grid_points) else ""
    where = f"{'these devices' if len(names) > 1 else 'this device'}: {escape_markdown(', '.join(labels))}"
    text = f"**{len(known)}{total} points** were measured on {period} on {where}."
    if failed:
        text += f" {failed} of them gave no figure (out of memory)."
    return text


def start(workspace: Workspace, parameters: ProfileParameters) -> str:
    """Profile in a job of its own; its id."""
    sources = parameters.sources
    title = f"Profile {sources[0] if len(sources) == 1 else f'{len(sources)} models'}"
    count = len(parameters.device.split(",")) if parameters.device else 0
    count += len(parameters.make_slices.profiles) if parameters.make_slices else 0
    return jobs.start(workspace, f"{title} on {count} devices" if count > 1 else title, PROFILE, parameters)


def _running(
    workspace: Workspace,
    status: jobs.JobStatus,
    devices: Mapping[str, Device],
    profiles: Mapping[str, Profile],
) -> None:
    """The live grid of one running job."""
    record = next(candidate for candidate in workspace.job_records() if candidate.id == status.id)
    st.markdown(f"**{escape_markdown(status.title)}**: the points as they come")
    with frame.fault_boundary():
        parameters: ProfileParameters = from_stored(PROFILE, record.parameters)
        if parameters.device:
            measuring_grid.render_live(workspace, parameters, devices, profiles, status)
        else:
            st.caption(
                "The slices are made, measured and removed one after the other; the progress above says which."
            )

"""The grid of a measurement: model × device over batch sizes, what is known of each point, live during the job."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

import streamlit as st

from app.components import saving
from app.format.html import table_html
from app.models.profile import rows as profile_rows
from app.models.profile.measuring.devices import label
from app.session import scenario
from app.shell import frame
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import ProfileParameters
from torchsplit_core.jobs.profile import ProfilePoint, profile_points
from torchsplit_core.pictures.colours import UNKNOWN
from torchsplit_core.pictures.numbers import short
from torchsplit_core.values import Device, InputFault, Profile
from torchsplit_core.values.profile import NOT_TRIED
from torchsplit_core.workspace.measured_points import OLD_POINTS_TEXT
from torchsplit_core.workspace.store import Workspace

REFRESH_S = 1.0
Row = tuple[str, str]
"""A model and a device."""


@dataclass(frozen=True, slots=True)
class JobPosition:
    """The progress of a running job; None for what its message does not say."""

    source: str | None = None
    device: str | None = None
    batch_size: int | None = None
    waiting: bool = False
    past_batches: bool = False


def parse_progress(message: str, sources: Sequence[str], devices: Sequence[str]) -> JobPosition:
    """Parse a job's progress message, "MODEL · DEVICE: batch size 4", which names model and device only if several."""
    source = next((name for name in sources if message.startswith(f"{name} · ")), None)
    rest = message.removeprefix(f"{source} · ")
    device = next((name for name in devices if rest.startswith(f"{name}: ")), None)
    rest = rest.removeprefix(f"{device}: ")
    batch = rest.removeprefix("batch size ")
    source = source or (sources[0] if len(sources) == 1 else None)
    device = device or (devices[0] if len(devices) == 1 else None)
    size = int(batch) if batch != rest and batch.isdecimal() else None
    return JobPosition(source, device, size, rest.startswith("queued"), rest.startswith("timing"))


def point_labels(points: Sequence[ProfilePoint], at: JobPosition | None) -> dict[tuple[str, str, int], str]:
    """The label of each open point; `at` is None while nothing runs.

    Batch sizes are measured in ascending order: an open point before the present one gave no figure.
    """
    labels: dict[tuple[str, str, int], str] = {}
    source = (at.source if at else None) or (points[0].source if points else "")
    begun: set[Row] = set()
    for cell in points:
        if cell.state != "open":
            continue
        row, point = (cell.source, cell.device), (cell.source, cell.device, cell.batch_size)
        if at is None:
            labels[point] = "to measure"
        elif cell.source != source:
            labels[point] = "queued"
        elif cell.device != at.device:
            # Progress names one device at a time; if it names none, every device is at its next point.
            labels[point] = "queued" if row in begun or at.device is not None else "measuring"
            begun.add(row)
        elif at.past_batches or (at.batch_size is not None and cell.batch_size < at.batch_size):
            labels[point] = "no figure"
        elif at.waiting or row in begun:
            labels[point] = "queued"
        else:
            labels[point] = "measuring"
            begun.add(row)
    return labels


def render(
    workspace: Workspace,
    points: Sequence[ProfilePoint],
    devices: Mapping[str, Device],
    profiles: Mapping[str, Profile],
    *,
    job: jobs.JobStatus | None = None,
) -> None:
    """The grid as a table, and below it why points failed."""
    sources, names = (list(dict.fromkeys(map(attrgetter(name), points))) for name in ("source", "device"))
    labels = point_labels(points, parse_progress(job.message, sources, names) if job else None)
    earlier = {} if job else failures(profiles, points)
    batches = sorted({cell.batch_size for cell in points})
    by_point = {(cell.source, cell.device, cell.batch_size): cell for cell in points}
    rows = dict.fromkeys((cell.source, cell.device) for cell in points)
    short_names = profile_rows.short_names(sources)
    colours = scenario.colours(workspace)
    body, reasons = [], []
    for source, device in rows:
        named = html.escape(label(devices[device]) if device in devices else device)
        colour = colours.get(scenario.short_name(source), UNKNOWN)
        parts = [
            f'<td class="name"><i class="swatch" style="background:{colour}"></i>'
            f"{html.escape(short_names[source])}</td><td>{named}</td>"
        ]
        for batch in batches:
            point = (source, device, batch)
            cell = by_point[point]
            why = cell.message if cell.state == "failed" else earlier.get(point, "")
            measured = short(cell.throughput_rps) if cell.state == "measured" else ""
            parts.append(_td(measured or _short_failure(why) or labels[point], cell, why))
            if why:
                reasons.append(f"{short_names[source]}, {device}, batch {batch}: {why}")
        body.append(f"<tr>{''.join(parts)}</tr>")
    head = "<th>model</th><th>device</th>" + "".join(f'<th class="n">batch {batch}</th>' for batch in batches)
    saving.exportable_table(table_html(head, body), "Points, requests/s", "points", key="measure-grid")
    st.caption("Requests per second; point at a failure for its reason, or read it below.")
    if old := sum(cell.old for cell in points):
        st.caption(
            f"{old} of these points {'is' if old == 1 else 'are'} kept as {OLD_POINTS_TEXT}: never taken over, so "
            "measured again."
        )
    if reasons:
        with st.expander(f"Why {len(reasons)} point{'s have' if len(reasons) != 1 else ' has'} no figure"):
            for text in reasons:
                st.text(text)


def _td(words: str, cell: ProfilePoint, why: str) -> str:
    title = f' title="{html.escape(why)}"' if why else ""
    if cell.state == "measured" and cell.kept:
        title = f' title="measured {format_time(cell.kept)}"'
    elif cell.old and not why:
        title = f' title="{OLD_POINTS_TEXT}"'
    body = f"<b>{words}</b>" if cell.state == "measured" else f"<span>{html.escape(words)}</span>"
    return f'<td class="n"{title}>{body}</td>'


def _short_failure(why: str) -> str:
    if not why:
        return ""
    if "out of memory" in why:
        return "out of memory"
    return "not tried" if why.startswith(NOT_TRIED) else "failed"


def failures(
    profiles: Mapping[str, Profile], points: Sequence[ProfilePoint]
) -> dict[tuple[str, str, int], str]:
    """Why open points gave no figure at the last attempt, by model, device and batch size."""
    wanted = {(cell.source, cell.device, cell.batch_size) for cell in points if cell.state == "open"}
    messages = {}
    for source, profile in profiles.items():
        for item in profile.failures:
            point = (source, item.device or "", item.batch_size)
            if point in wanted:
                messages[point] = item.message
    return messages


def format_time(timestamp: float) -> str:
    """A time of the store as a date and a time of day."""
    return datetime.fromtimestamp(timestamp).strftime("%Y-%m-%d %H:%M")


def render_live(
    workspace: Workspace,
    parameters: ProfileParameters,
    devices: Mapping[str, Device],
    profiles: Mapping[str, Profile],
    job: jobs.JobStatus,
) -> None:
    """The grid of a running job, drawn anew every second."""

    def draw() -> None:
        status = jobs.status(workspace, job.id)
        with frame.fault_boundary():
            points = profile_points(workspace, parameters)
            render(workspace, points, devices, profiles, job=status if status.state == "running" else None)

    st.fragment(draw, run_every=REFRESH_S)()


def known_cells(workspace: Workspace, parameters: ProfileParameters) -> tuple[ProfilePoint, ...]:
    """The points of a job that has not begun; none without a device, or where one is gone."""
    if not parameters.device or not parameters.sources:
        return ()
    try:
        return profile_points(workspace, parameters)
    except InputFault as fault:
        st.error(str(fault))
        return ()

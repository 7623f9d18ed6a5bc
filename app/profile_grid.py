"""The grid of a measurement: model × device over batch sizes, what is known of each point, live while it runs."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import streamlit as st

from app import frame, profile_rows, scenario
from app.charts.colours import UNKNOWN
from app.numbers import short
from app.profile_devices import label
from torchsplit_core import jobs
from torchsplit_core.profile_run import Cell, cells
from torchsplit_core.storage import Workspace
from torchsplit_core.values import Device, InputFault, Profile

REFRESH_S = 1.0
Row = tuple[str, str]
"""A model and a device."""


def states(found: Sequence[Cell], *, running: bool, source: str | None) -> dict[tuple[str, str, int], str]:
    """What to say of each open point: in a running job the next of the present model is being measured.

    `source` is the model that the job is at, None where it has one only.
    """
    said: dict[tuple[str, str, int], str] = {}
    begun: set[Row] = set()
    for cell in found:
        row = (cell.source, cell.device)
        if cell.state != "open":
            continue
        here = running and cell.source == (source or found[0].source)
        if here and row not in begun and not any(device == cell.device for _, device in begun):
            said[(*row, cell.batch_size)] = "measuring"
            begun.add(row)
        else:
            said[(*row, cell.batch_size)] = "queued" if running else "to measure"
    return said


def current_source(message: str, sources: Sequence[str]) -> str | None:
    """The model that a job of several is at, as its progress says."""
    return next((name for name in sources if message.startswith(f"{name} · ")), None)


def show(
    workspace: Workspace,
    found: Sequence[Cell],
    devices: Mapping[str, Device],
    profiles: Mapping[str, Profile],
    *,
    job: jobs.JobStatus | None = None,
) -> None:
    """The grid as a table, and under it in words why points failed."""
    sources = list(dict.fromkeys(cell.source for cell in found))
    at = current_source(job.message, sources) if job and len(sources) > 1 else None
    said = states(found, running=job is not None, source=at)
    earlier = {} if job else failures(profiles, found)
    batches = sorted({cell.batch_size for cell in found})
    by_point = {(cell.source, cell.device, cell.batch_size): cell for cell in found}
    rows = dict.fromkeys((cell.source, cell.device) for cell in found)
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
            words = short(cell.throughput_rps) if cell.state == "measured" else _outcome(why) or said[point]
            parts.append(_td(words, cell, why))
            if why:
                reasons.append(f"{short_names[source]}, {device}, batch {batch}: {why}")
        body.append(f"<tr>{''.join(parts)}</tr>")
    head = "<th>model</th><th>device</th>" + "".join(f'<th class="n">batch {batch}</th>' for batch in batches)
    st.html(frame.table_html(head, body))
    st.caption("Requests per second; point at a failure for its reason, or read it below.")
    if reasons:
        with st.expander(f"Why {len(reasons)} point{'s have' if len(reasons) != 1 else ' has'} no figure"):
            for text in reasons:
                st.text(text)


def _td(words: str, cell: Cell, why: str) -> str:
    title = f' title="{html.escape(why)}"' if why else ""
    if cell.state == "measured" and cell.kept:
        title = f' title="measured {when(cell.kept)}"'
    body = f"<b>{words}</b>" if cell.state == "measured" else f"<span>{html.escape(words)}</span>"
    return f'<td class="n"{title}>{body}</td>'


def _outcome(why: str) -> str:
    """A failure in two or three words."""
    if not why:
        return ""
    return "out of memory" if "out of memory" in why else "failed"


def failures(profiles: Mapping[str, Profile], found: Sequence[Cell]) -> dict[tuple[str, str, int], str]:
    """Why open points gave no figure when they were tried last, by model, device and batch size."""
    wanted = {(cell.source, cell.device, cell.batch_size) for cell in found if cell.state == "open"}
    told = {}
    for source, profile in profiles.items():
        for item in profile.failures:
            point = (source, item.device or "", item.batch_size)
            if point in wanted:
                told[point] = item.message
    return told


def when(kept: float) -> str:
    """A time of the store as a date and a time of day."""
    return datetime.fromtimestamp(kept).strftime("%Y-%m-%d %H:%M")


def live(
    workspace: Workspace,
    parameters: Mapping[str, Any],
    devices: Mapping[str, Device],
    profiles: Mapping[str, Profile],
    job: jobs.JobStatus,
) -> None:
    """The grid of a running job, drawn anew every second; the panel above the page ends it."""

    def draw() -> None:
        status = jobs.status(workspace, job.id)
        with frame.telling():
            show(
                workspace,
                cells(workspace, parameters),
                devices,
                profiles,
                job=status if status.state == "running" else None,
            )

    st.fragment(draw, run_every=REFRESH_S)()


def known_cells(workspace: Workspace, parameters: Mapping[str, Any]) -> tuple[Cell, ...]:
    """The points of a job that has not begun; none where no device is chosen or one has gone."""
    if not parameters["device"] or not parameters["sources"]:
        return ()
    try:
        return cells(workspace, parameters)
    except InputFault as fault:
        st.error(str(fault))
        return ()
